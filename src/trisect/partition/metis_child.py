"""The child process of `metis.py`: `python metis_child.py FOLDER PARTS SEED TRIES`. Stands alone, to start fast."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np


def main(folder: Path, parts: int, seed: int, tries: int) -> None:
    """Read the graph from `folder`, write assignment.npy beside it: the best of `tries` seeds."""
    import pymetis

    indptr, indices, weights = (
        np.load(folder / f"{name}.npy", allow_pickle=False) for name in ("indptr", "indices", "weights")
    )
    edges = folder / "edge_weights.npy"
    edge_weights = np.load(edges, allow_pickle=False) if edges.exists() else None
    assignment, least = None, None
    for each in range(seed, seed + tries):
        cut, parts_of = pymetis.part_graph(
            parts,
            xadj=indptr,
            adjncy=indices,
            vweights=weights,
            eweights=edge_weights,
            options=pymetis.Options(seed=each),
        )
        if least is None or cut < least:
            assignment, least = parts_of, cut
    np.save(folder / "assignment.npy", np.asarray(assignment, dtype=np.int64), allow_pickle=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
