"""The child process of `hypergraph.py`: `python hypergraph_child.py FOLDER PARTS SEED`. Stands alone, as METIS's."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

_IMBALANCE = 0.03


def main(folder: Path, parts: int, seed: int) -> None:
    """Read the nets from `folder`, write assignment.npy beside them."""
    import mtkahypar

    indptr, pins, weights, net_weights = (
        np.load(folder / f"{name}.npy", allow_pickle=False) for name in ("indptr", "pins", "weights", "net_weights")
    )
    library = mtkahypar.initialize(1, print_warnings=False)
    mtkahypar.set_seed(seed)
    context = library.context_from_preset(mtkahypar.PresetType.DETERMINISTIC)
    context.set_partitioning_parameters(parts, _IMBALANCE, mtkahypar.Objective.KM1)
    context.logging = False
    nets = [net.tolist() for net in np.split(pins, indptr[1:-1])]
    graph = library.create_hypergraph(context, len(weights), len(nets), nets, weights.tolist(), net_weights.tolist())
    assignment = graph.partition(context).get_partition()
    np.save(folder / "assignment.npy", np.asarray(assignment, dtype=np.int64), allow_pickle=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
