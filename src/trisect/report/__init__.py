"""A run directory → one HTML page. Knows nothing else."""

from trisect.report.page import render, write_report

__all__ = ["render", "write_report"]
