"""Vertex order, parts, chunks, halo lists, runs of snapshots and their quality. Knows no models."""

from trisect.partition.cut import cut_graph
from trisect.partition.halo import PartGraph, part_graph_of
from trisect.partition.partition import Partition, Quality, quality

__all__ = ["PartGraph", "Partition", "Quality", "cut_graph", "part_graph_of", "quality"]
