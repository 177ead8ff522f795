"""The run directory: its files, its checkpoints, whether a run can go on from them, and its summary."""
