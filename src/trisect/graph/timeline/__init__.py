"""Timelines: events, windows over them, snapshots and their differences."""
