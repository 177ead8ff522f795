"""Workloads of small models on data that are described, for tests of the planner."""

from __future__ import annotations

from typing import Any

from trisect.config import TrainOptions
from trisect.nn.models.source import NamedModel
from trisect.plan.cluster import Cluster, Device, Link
from trisect.plan.workload import Workload
from trisect.train.workloads import DescribedData, workload_of_description

OPTIONS = TrainOptions()


def static(model: str = "gcn", layers: int = 4, hidden: int = 8, **data: Any) -> Workload:
    described = DescribedData(**{"vertices": 1000, "edges": 4000, "features": 6, "halo": {8: 1.5}, **data})
    return workload_of_description(NamedModel(model, {"layers": layers, "hidden": hidden}, 0), described, OPTIONS)


def timeline(model: str = "cd-gcn", steps: int = 24, hidden: int = 8, **data: Any) -> Workload:
    sizes = {"vertices": 1000, "edges": 4000, "features": 6, "halo": {8: 1.5}, "train": 1.0, **data}
    return workload_of_description(
        NamedModel(model, {"layers": 2, "hidden": hidden}, 0), DescribedData(steps=steps, **sizes), OPTIONS
    )


def cluster(**more: Any) -> Cluster:
    device = Device(
        **{
            "flops": 1e9,
            "gather": {4: 1e8, 64: 1e9},
            "elementwise": 1e9,
            "memory": 8 << 30,
            "half": 1e-5,
            "step": 1e-6,
            "host_link": 1e10,
            **more.pop("device", {}),
        }
    )
    inside = more.pop("inside", Link(bandwidth=1e9, latency=1e-6, message=1e-6))
    between = more.pop("between", Link(bandwidth=1e8, latency=1e-5, message=1e-6))
    return Cluster(**{"name": "test", "device": device, "inside": inside, "between": between, "devices": 64, **more})
