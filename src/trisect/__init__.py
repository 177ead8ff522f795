"""Trisect: train graph neural networks that no longer fit one device, cut by vertex, by layer, by time."""

__version__ = "0.1.0"
