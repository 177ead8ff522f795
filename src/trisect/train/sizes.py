"""How large data are before they are there: described in the configuration, or about to be generated."""

from __future__ import annotations

import torch

from trisect.config import Config
from trisect.data.generators.generate import GENERATORS
from trisect.ops.memory import free_bytes
from trisect.train.workloads import DescribedData

# A record, the graph that is made of it and what sorting takes, for each edge and for each number of a vertex.
_EDGE_BYTES = 100
_NUMBER_BYTES = 12
# Data that take more are not generated to be planned or checked.
MOST_BYTES = 2 << 30


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
    return DescribedData(
        vertices=vertices,
        edges=max(1, round(degree * vertices * steps)),
        steps=steps,
        features=int(values.get("features", 2)) or 2,
        classes=max(2, int(values.get("classes", 2))),
        length=_length(config),
    )


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
