"""`Adjacency` (CSR with its transpose), `Graph`, `Timeline`, normalisation. Knows no ranks and no torch.nn."""

from trisect.graph.adjacency import Adjacency
from trisect.graph.build import adjacency_from_edges, normalise, self_loops, symmetrise, validate
from trisect.graph.graph import Graph
from trisect.graph.timeline.smoothing import Smoothing
from trisect.graph.timeline.snapshots import Snapshots
from trisect.graph.timeline.timeline import Timeline

__all__ = [
    "Adjacency",
    "Graph",
    "Smoothing",
    "Snapshots",
    "Timeline",
    "adjacency_from_edges",
    "normalise",
    "self_loops",
    "symmetrise",
    "validate",
]
