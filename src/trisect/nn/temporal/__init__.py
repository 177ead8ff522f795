"""Temporal modules, and layers that run along time."""
