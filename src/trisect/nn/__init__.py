"""Layers and models as plain modules. Knows no ranks."""
