"""Vertex order, parts, chunks, halo lists, runs of snapshots and their quality. Knows no models."""

from trisect.partition.cut import cut_graph
from trisect.partition.halo import Share, share_of
from trisect.partition.partition import Partition, Quality, quality

__all__ = ["Partition", "Quality", "Share", "cut_graph", "quality", "share_of"]
