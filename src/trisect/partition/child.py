"""A partitioner in a process of its own, and its answer verified.

It is C code over the user's graph: if it crashes or runs away it must take a child down, not the run. Arrays go to and
fro as .npy files; the child imports no torch.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from trisect.data.records import Array

_TIMEOUT = 1800.0


class ChildError(Exception):
    """The child failed, or its answer is none; the message says how, for a warning."""


def run_child(script: str, arrays: Mapping[str, Array], parts: int, seed: int, vertices: int, tries: int = 1) -> Array:
    """`python SCRIPT FOLDER PARTS SEED TRIES` with the arrays in FOLDER: the part of each vertex, int64, none empty."""
    with tempfile.TemporaryDirectory(prefix="trisect-cut-") as folder:
        for name, array in arrays.items():
            np.save(Path(folder, f"{name}.npy"), array, allow_pickle=False)
        command = [sys.executable, str(Path(__file__).with_name(script)), folder, str(parts), str(seed), str(tries)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)  # noqa: S603
            if done.returncode != 0:
                reason = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
                raise ChildError(reason[0])
            assignment: Array = np.load(Path(folder, "assignment.npy"), allow_pickle=False).astype(np.int64)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            raise ChildError(str(error)) from None
    if assignment.shape != (vertices,) or assignment.min() < 0 or assignment.max() >= parts:
        raise ChildError("its answer is not an assignment of the vertices")
    if (np.bincount(assignment, minlength=parts) == 0).any():
        raise ChildError("it left a part empty")
    return assignment
