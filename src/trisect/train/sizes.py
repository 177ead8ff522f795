"""How large data are before they are read: as they are described, from a generator's arguments or a manifest."""

from __future__ import annotations

from pathlib import Path

import torch

from trisect.config import Config
from trisect.data.formats.store import MANIFEST, read_manifest
from trisect.data.generators.generate import GENERATORS
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.ops.memory import free_bytes
from trisect.train.workloads import DescribedData

# A record, the graph that is made of it and what sorting takes, for each edge and for each number of a vertex.
_EDGE_BYTES = 100
_NUMBER_BYTES = 12
# Data that take more are not generated to be planned or checked.
MOST_BYTES = 2 << 30
# Generators whose degree counts each edge at both of its ends, and those whose edges are undirected at all.
_BOTH_ENDS = ("community", "evolving")
_UNDIRECTED = (*_BOTH_ENDS, "citation")


def described_data(config: Config) -> DescribedData | None:
    """Give the sizes of data that are described; None where they have a source."""
    if not config.data.described:
        return None
    return DescribedData.of_section(config.data.options, _length(config))


def generated_sizes(config: Config) -> DescribedData | None:
    """Give about the sizes of data that are generated, by the generator's arguments; None for other sources."""
    name = config.data.generate
    if name is None:
        return None
    generator = GENERATORS[name]
    values = {key: argument.default for key, argument in generator.arguments.items()} | config.data.options
    vertices, steps = int(values["vertices"]), int(values.get("steps", 1))
    # edges of a vertex, in each step of a timeline
    degree = float(values.get("degree", values.get("transactions", 10.0)))
    degree /= 2.0 if name in _BOTH_ENDS else 1.0
    return DescribedData(
        vertices=vertices,
        edges=max(1, round(degree * vertices * steps)),
        steps=steps,
        features=int(values.get("features", 2)) or 2,
        classes=max(2, int(values.get("classes", 2))),
        undirected=name in _UNDIRECTED or bool(values.get("symmetrise", False)),
        length=_length(config),
    )


def stored_sizes(config: Config) -> DescribedData | None:
    """Give the sizes of a graph directory by its manifest; None for other sources, and where the period is another."""
    path, options = config.data.path, config.data.options
    if path is None or options.get("period") is not None or not (Path(path) / MANIFEST).is_file():
        return None
    manifest = read_manifest(Path(path))
    shapes = {name: entry.get("shape") for name, entry in manifest["arrays"].items()}
    src, x, steps = shapes.get("src"), shapes.get("x"), manifest.get("steps", 1)
    if not isinstance(src, list) or not src or not isinstance(src[0], int) or not isinstance(steps, int):
        return None
    width = options.get("features", x[-1] if isinstance(x, list) and x else 2)
    return DescribedData(
        vertices=max(1, manifest["vertices"]),
        edges=max(1, src[0]),
        steps=max(1, steps),
        features=max(1, width) if isinstance(width, int) else 2,
        undirected=manifest["undirected"] or bool(options.get("symmetrise", False)),
        length=_length(config),
        fixed=not isinstance(x, list) or len(x) < 3,
    )


def sizes_of(data: Graph | Timeline) -> DescribedData:
    """Give the sizes of data that are here."""
    width = 2 if data.x is None else int(data.x.shape[-1])
    if isinstance(data, Timeline):
        return DescribedData(
            vertices=data.vertices,
            edges=max(1, data.total_events),
            steps=data.steps,
            features=width,
            undirected=data.undirected,
            length=data.smoothing.length if data.smoothing.kind != "none" else 1,
            fixed=data.x is None or data.x.dim() == 2,
        )
    return DescribedData(data.vertices, max(1, -(-data.edges // 2)), features=width)


def sizes_before_reading(config: Config) -> DescribedData | None:
    """Give the sizes of a configuration's data without reading them; None where only the data tell."""
    return generated_sizes(config) or stored_sizes(config)


def least_bytes(sizes: DescribedData) -> int:
    """Give the bytes of the arrays that the data are read into: two ends of an edge, and what a vertex has."""
    frames = 1 if sizes.fixed else sizes.steps
    return 8 * sizes.edges + 4 * sizes.vertices * sizes.features * frames


def too_large_to_read(config: Config) -> DescribedData | None:
    """Give the sizes of data that are not to be made only to look at them; None where they may be read."""
    sizes = generated_sizes(config)
    limit = min(MOST_BYTES, free_bytes(torch.device("cpu")) // 2)
    return sizes if sizes is not None and bytes_to_read(sizes) > limit else None


def bytes_to_read(sizes: DescribedData) -> int:
    """Estimate the memory that it takes to have data in this process."""
    return sizes.edges * _EDGE_BYTES + sizes.vertices * sizes.features * _NUMBER_BYTES


def _length(config: Config) -> int:
    smoothing = config.data.smoothing
    return 1 if smoothing is None else smoothing.length
