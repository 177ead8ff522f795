"""Run directories → one HTML page. Knows nothing else."""

from trisect.report.page import render, render_comparison, write_comparison, write_report

__all__ = ["render", "render_comparison", "write_comparison", "write_report"]
