"""The child process of `metis.py`: `python metis_child.py FOLDER PARTS SEED`. Stands alone, so that it starts fast."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np


def main(folder: Path, parts: int, seed: int) -> None:
    """Read the graph from `folder`, write assignment.npy beside it."""
    import pymetis

    indptr, indices, weights = (
        np.load(folder / f"{name}.npy", allow_pickle=False) for name in ("indptr", "indices", "weights")
    )
    edges = folder / "edge_weights.npy"
    edge_weights = np.load(edges, allow_pickle=False) if edges.exists() else None
    _, assignment = pymetis.part_graph(
        parts,
        xadj=indptr,
        adjncy=indices,
        vweights=weights,
        eweights=edge_weights,
        options=pymetis.Options(seed=seed),
    )
    np.save(folder / "assignment.npy", np.asarray(assignment, dtype=np.int64), allow_pickle=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
