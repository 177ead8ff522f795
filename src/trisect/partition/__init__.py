"""Vertex order, parts, chunks, halo lists, runs of snapshots and their quality. Knows no models."""
