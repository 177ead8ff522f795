"""Toward internet scale by the planner: 10^11 edges on 1,000 devices, and what more devices give four users."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trisect.config import TrainOptions
from trisect.nn.models.source import NamedModel
from trisect.plan.estimate import Estimate
from trisect.plan.parts import halo_share
from trisect.plan.presets import PRESETS
from trisect.plan.search import PlanChoice, search, too_large
from trisect.plan.workload import Workload
from trisect.train.workloads import DescribedData, workload_of_description
from trisect_bench._paper_layers import total_seconds

DEVICES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class User:
    """Somebody's model and data, and the cluster that they have.

    Attributes:
        typical: how many devices such a user has.
        approximate: whether chunks may read history.
    """

    name: str
    model: str
    options: dict[str, Any]
    data: DescribedData
    cluster: str
    typical: int
    approximate: bool = False
    words: str = field(default="", kw_only=True)

    def workload(self) -> Workload:
        """Give what is to be planned."""
        return workload_of_description(NamedModel(self.model, self.options, 0), self.data, TrainOptions())


USERS = (
    User(
        "a bank's transactions",
        "cd-gcn",
        {"layers": 2, "hidden": 32},
        DescribedData(1_000_000, 100_000_000, 365, 16, 2, {8: 1.0}, undirected=False, length=7),
        "cpu-10gb",
        256,
        words="1 M accounts, 100 M payments in 365 days, CD-GCN 32 wide; 8 hosts of 32 cores, 10 Gb/s",
    ),
    User(
        "a social graph",
        "sage",
        {"layers": 3, "hidden": 128},
        DescribedData(100_000_000, 2_000_000_000, 1, 128, 50, {8: 1.5}),
        "8xa100",
        64,
        words="100 M vertices, 2 G edges, GraphSAGE 3 layers 128 wide; 64 A100",
    ),
    User(
        "a deep model",
        "gcnii",
        {"layers": 64, "hidden": 256},
        DescribedData(2_400_000, 62_000_000, 1, 100, 47, {8: 1.0}),
        "8xa100",
        8,
        True,
        words="2.4 M vertices, 62 M edges, GCNII 64 layers 256 wide, chunks may read history; one node of 8 A100",
    ),
    User(
        "a long timeline",
        "tm-gcn",
        {"layers": 2, "hidden": 32},
        DescribedData(4_000_000, 400_000_000, 1024, 16, 2, {8: 1.0}, undirected=False, length=10, train=1.0),
        "16x8-v100",
        128,
        words="4 M vertices, 400 M edges in 1,024 steps, TM-GCN 32 wide; 128 V100",
    ),
)


def curves(devices: tuple[int, ...] = DEVICES) -> list[dict[str, Any]]:
    """Give the best layout of each user by the number of devices."""
    result = []
    for user in USERS:
        work = user.workload()
        points = []
        for count in devices:
            choice = search(work, PRESETS[user.cluster], count, approximate=user.approximate)
            points.append({"devices": count, **_point(choice)})
        result.append({"user": user.name, "typical": user.typical, "words": user.words, "points": points})
    return result


def _point(choice: PlanChoice) -> dict[str, Any]:
    if not choice.best:
        nearest = choice.refused[0]
        return {"layout": None, "needs": f"{nearest.layout} {too_large(nearest)}"}
    best = choice.best[0]
    return {
        "layout": str(best.layout),
        "world": best.layout.world,
        "seconds": total_seconds(best),
        "bottleneck": bottleneck(best),
    }


def bottleneck(made: Estimate) -> str:
    """Say what most of an epoch is spent on."""
    seconds = made.seconds
    if seconds is None:
        return ""
    parts = {
        "computing": seconds.compute,
        "rows on links": seconds.communication,
        "waiting for other ranks": seconds.bubble,
        "starts of actions": seconds.overhead,
    }
    most = max(parts, key=lambda name: parts[name])
    return f"{most}, {parts[most] / seconds.total:.0%}"


INTERNET = DescribedData(10**9, 10**11, 1, 128, 64)
INTERNET_MODEL = ("sage", {"layers": 3, "hidden": 128})
INTERNET_CLUSTER, INTERNET_DEVICES = "8xh100", 1000
# Effective degrees: three tenths of the degree, which is assumed where nothing is said; and better partitions.
INTERNET_DEGREES = (60.0, 20.0, 6.0, 2.0, 0.5)


def internet() -> list[dict[str, Any]]:
    """Give the best layout of 10^9 vertices and 10^11 edges on 1,000 devices, by how well the graph can be cut."""
    result = []
    cluster = PRESETS[INTERNET_CLUSTER]
    for degree in INTERNET_DEGREES:
        share = halo_share(INTERNET_DEVICES, degree)
        data = DescribedData(INTERNET.vertices, INTERNET.edges, 1, INTERNET.features, INTERNET.classes)
        data = DescribedData(data.vertices, data.edges, 1, data.features, data.classes, {INTERNET_DEVICES: share})
        work = workload_of_description(NamedModel(*INTERNET_MODEL, 0), data, TrainOptions())
        choice = search(work, cluster, INTERNET_DEVICES)
        row: dict[str, Any] = {"degree": degree, "halo": share, "tried": choice.tried}
        if choice.best:
            best, seconds = choice.best[0], choice.best[0].seconds
            row |= {
                "layout": str(best.layout),
                "seconds": total_seconds(best),
                "compute": 0.0 if seconds is None else seconds.compute + seconds.overhead,
                "communication": 0.0 if seconds is None else seconds.communication,
                "bottleneck": bottleneck(best),
                "memory": [[name, size / 2**30] for name, size in best.memory.largest(4)],
                "total_memory": best.memory.total / 2**30,
                "tib": best.total_bytes / 2**40,
            }
        else:
            row |= {"layout": None, "needs": f"{choice.refused[0].layout} {too_large(choice.refused[0])}"}
        result.append(row)
    return result
