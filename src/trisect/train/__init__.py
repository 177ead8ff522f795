"""The epoch loop, tasks, metrics, checkpoints, events. Does not know how a layout works."""
