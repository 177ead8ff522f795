"""Cells, their memory, and the one loop that executes a rank's actions. Knows no files."""
