"""The cases of `trisect bench planner`, listed before the cost model was fitted. Nothing is fitted to `HELD_OUT`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """One run that is predicted and measured.

    Attributes:
        workload: the name of its data and model, by which layouts are compared.
        layout: as for `--layout`; empty: one rank.
        mbit: the rate of emulated hosts, a rank each; 0: ranks of this host.
        held_out: whether it was kept out of fitting.
    """

    workload: str
    config: dict[str, Any]
    layout: str = ""
    mbit: int = 0
    held_out: bool = False

    @property
    def name(self) -> str:
        """The name of the case."""
        return f"{self.workload} {self.layout or 'one rank'}" + (f" {self.mbit} Mbit/s" if self.mbit else "")


def _static(data: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
    return {"data": data, "model": model, "task": "node-classification"}


LINKS = {"name": "link-prediction", "memory": 0, "eval_negatives": 5}


def _timeline(data: dict[str, Any], model: dict[str, Any], task: Any = "node-classification") -> dict[str, Any]:
    smoothing = {"kind": "edge-life", "length": 5}
    return {"data": {**data, "smoothing": smoothing}, "model": model, "task": task}


COMMUNITY = {"generate": "community", "vertices": 20_000}
WIDE = {"generate": "rmat", "vertices": 50_000, "degree": 20, "features": 128}
LARGE = {"generate": "community", "vertices": 200_000, "degree": 8}
CITATION = {"generate": "citation", "vertices": 30_000}
PAYMENTS = {"generate": "laundering", "vertices": 20_000, "steps": 30}
EVOLVING = {"generate": "evolving", "vertices": 20_000, "steps": 24}

# name → (configuration, layouts, layouts on emulated hosts of a gigabit)
Workloads = dict[str, tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]]

WORKLOADS: Workloads = {
    "gcnii-32x64 community": (
        _static(COMMUNITY, {"name": "gcnii", "layers": 32, "hidden": 64}),
        ("", "vertex=2", "layer=2", "layer=2,chunks=8", "vertex=2,layer=2", "recompute=true", "vertex=4"),
        ("vertex=2", "layer=2"),
    ),
    "gcn-3x128 rmat": (
        _static(WIDE, {"name": "gcn", "layers": 3, "hidden": 128}),
        ("", "vertex=2", "vertex=2,spatial=redistribute", "layer=2"),
        ("vertex=2",),
    ),
    "sage-3x32 large": (
        _static(LARGE, {"name": "sage", "layers": 3, "hidden": 32}),
        ("", "vertex=2", "vertex=4"),
        (),
    ),
    "resgcn+-16x64 citation": (
        _static(CITATION, {"name": "resgcn+", "layers": 16, "hidden": 64}),
        ("", "vertex=2", "layer=4,chunks=16", "vertex=2,recompute=true"),
        ("layer=2,chunks=8",),
    ),
    "gat-2x64 citation": (
        _static(CITATION, {"name": "gat", "layers": 2, "hidden": 64}),
        ("", "vertex=2"),
        (),
    ),
    "cd-gcn-2x16 payments": (
        _timeline(PAYMENTS, {"name": "cd-gcn", "layers": 2, "hidden": 16}),
        ("", "blocks=4", "time=2", "time=2,temporal=redistribute", "vertex=2", "layer=2,blocks=4", "time=2,vertex=2"),
        ("time=2", "vertex=2"),
    ),
    "tm-gcn-2x32 evolving": (
        _timeline(EVOLVING, {"name": "tm-gcn", "layers": 2, "hidden": 32, "window": 5}, LINKS),
        ("", "time=2", "vertex=2"),
        (),
    ),
    "evolvegcn-o-2x32 payments": (
        _timeline(PAYMENTS, {"name": "evolvegcn-o", "layers": 2, "hidden": 32}),
        ("", "time=2", "blocks=4"),
        (),
    ),
}

SMALLER = {"generate": "rmat", "vertices": 20_000, "degree": 12, "features": 64}
MIDDLE = {"generate": "community", "vertices": 60_000, "degree": 12}
ACCOUNTS = {"generate": "laundering", "vertices": 40_000, "steps": 20}
CHANGING = {"generate": "evolving", "vertices": 10_000, "steps": 36}

# models, widths and graphs that no constant was chosen with
HELD_OUT: Workloads = {
    "gin-4x48 middle": (
        _static(MIDDLE, {"name": "gin", "layers": 4, "hidden": 48}),
        ("", "vertex=2", "layer=2", "vertex=2,spatial=redistribute", "recompute=true"),
        (),
    ),
    "gatv2-3x32 rmat": (
        _static(SMALLER, {"name": "gatv2", "layers": 3, "hidden": 32}),
        ("", "vertex=2", "vertex=4"),
        (),
    ),
    "gcnii-16x128 citation": (
        _static(CITATION, {"name": "gcnii", "layers": 16, "hidden": 128}),
        ("", "vertex=2", "layer=2,chunks=4", "vertex=2,layer=2"),
        ("vertex=2",),
    ),
    "tm-gcn-2x16 accounts": (
        _timeline(ACCOUNTS, {"name": "tm-gcn", "layers": 2, "hidden": 16, "window": 4}),
        ("", "time=2", "time=4", "vertex=2"),
        (),
    ),
    "cd-gcn-2x32 changing": (
        _timeline(CHANGING, {"name": "cd-gcn", "layers": 2, "hidden": 32}, LINKS),
        ("", "time=2", "blocks=3"),
        (),
    ),
    "evolvegcn-h-2x16 accounts": (
        _timeline(ACCOUNTS, {"name": "evolvegcn-h", "layers": 2, "hidden": 16}),
        ("", "time=2"),
        (),
    ),
}


def _cases() -> Iterator[Case]:
    for workloads in (WORKLOADS, HELD_OUT):
        for name, (config, here, hosts) in workloads.items():
            for layout, mbit in (*((layout, 0) for layout in here), *((layout, 1000) for layout in hosts)):
                yield Case(name, config, layout, mbit, held_out=workloads is HELD_OUT)


CASES: tuple[Case, ...] = tuple(_cases())
