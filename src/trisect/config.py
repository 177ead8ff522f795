"""The configuration of a run."""
