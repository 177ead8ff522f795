"""The SC'21 paper on dynamic graphs by the planner: time cut over 128 GPUs, and snapshots that stream to them.

The planner has the seconds of computing and of exchanges. The paper's snapshots lie in the host's memory and cross to
the device in forward and again in recomputation; those bytes, by the formula of their encoding, divided by the rate of
the link between host and device, come on top here: the planner itself does not count them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from trisect.config import TrainOptions
from trisect.layout import Layout
from trisect.nn.models.source import NamedModel
from trisect.plan.cluster import Cluster
from trisect.plan.estimate import Estimate, estimate
from trisect.plan.memory import MemoryModel
from trisect.plan.presets import PRESETS
from trisect.plan.workload import Workload
from trisect.train.workloads import DescribedData, workload_of_description
from trisect_bench._paper_figures import AML_EDGES, AML_STEPS, AML_VERTICES, TOTAL_SAVED
from trisect_bench._paper_layers import total_seconds

PRESET = "16x8-v100"
MODELS = ("cd-gcn", "tm-gcn", "evolvegcn-o")
GPUS = (1, 2, 4, 8, 16, 32, 64, 128)
# steps that an edge lives: the width of the window in the public code of TM-GCN
LIFE = 20
_BLOCKS = (1, 2, 4, 8, 16, 32, 64)
# bytes of an edge: two int64 and a float32; the indices alone; a value; two int32
_WHOLE, _PAIR, _VALUE, _EVENT = 20, 16, 4, 8


def ratio(life: int) -> float:
    """Say how many times fewer bytes the difference of two snapshots has than a snapshot as it is."""
    return _WHOLE * life / (_VALUE * life + 2 * _PAIR)


def transfer_seconds(layout: Layout, encoding: str, life: int = LIFE) -> float:
    """Give the seconds in which the snapshots of a rank's steps cross to its device, forward and in recomputation.

    Args:
        encoding: `whole` snapshots, their `difference` (the first of each run whole), or `compact`: the edges of each
            step once, with those that are alive when a run begins.
    """
    blocks = layout.block_count
    born = AML_EDGES / AML_STEPS / layout.vertex
    alive = born * life
    steps = -(-AML_STEPS // (blocks * layout.time))
    if encoding == "whole":
        size = steps * _WHOLE * alive
    elif encoding == "difference":
        size = _WHOLE * alive + (steps - 1) * (_VALUE * alive + 2 * _PAIR * born)
    else:
        size = _EVENT * (alive + (steps - 1) * born)
    passes = 2 * blocks - 1
    return passes * size / (PRESETS[PRESET].device.host_link or 1.0)


def time_cut(devices: int) -> Layout:
    """Give the paper's layout: steps dealt to ranks, rows redistributed around the recurrent part."""
    return Layout(time=devices, temporal="redistribute") if devices > 1 else Layout()


@dataclass(frozen=True)
class System:
    """A model on AML-Sim: two features, two layers, six wide.

    Attributes:
        slower: how many times longer layers take than the preset's guess.
    """

    model: str
    life: int = LIFE
    slower: float = 1.0

    @cached_property
    def workload(self) -> Workload:
        """What is to be planned."""
        data = DescribedData(
            AML_VERTICES, AML_EDGES, steps=AML_STEPS, undirected=False, length=self.life, train=1.0, classes=2
        )
        return workload_of_description(NamedModel(self.model, {"layers": 2, "hidden": 6}, 0), data, TrainOptions())

    @cached_property
    def _memory(self) -> MemoryModel:
        return MemoryModel(self.workload)

    @cached_property
    def _cluster(self) -> Cluster:
        preset = PRESETS[PRESET]
        device = preset.device
        slowed = replace(
            device,
            flops=device.flops / self.slower,
            gather={width: rate / self.slower for width, rate in device.gather.items()},
            elementwise=device.elementwise / self.slower,
            half=device.half * self.slower,
            step=device.step * self.slower,
        )
        return replace(preset, device=slowed)

    def estimate(self, layout: Layout) -> Estimate:
        """Estimate a layout with the fewest blocks that fit the device, where snapshots stream and need not."""
        counts = [count for count in _BLOCKS if count == 1 or count * layout.time <= self.workload.training]
        for count in counts:
            layout = replace(layout, blocks=count)
            made = estimate(self.workload, layout, self._cluster, self._memory, timed=False)
            if made.memory.total - made.memory.snapshots <= made.room:
                break
        return estimate(self.workload, layout, self._cluster, self._memory)

    def on(self, devices: int) -> Estimate:
        """Estimate the paper's layout; the weights of EvolveGCN-O evolve on every rank, and nothing crosses."""
        layout = time_cut(devices)
        return self.estimate(replace(layout, temporal="auto") if self.model == "evolvegcn-o" else layout)


def slowness() -> float:
    """Say how many times slower than the preset's guess layers must be for the difference to save what is reported.

    That is, up to 40 % of an epoch, for CD-GCN on one GPU.
    """
    made = System("cd-gcn").on(1)
    whole, less = (transfer_seconds(made.layout, encoding) for encoding in ("whole", "difference"))
    return ((whole - less) / TOTAL_SAVED - whole) / total_seconds(made)


def scaling(slower: float) -> list[dict[str, Any]]:
    """Give the seconds of each model by the number of GPUs, with the difference of snapshots."""
    result = []
    for model in MODELS:
        system = System(model, slower=slower)
        made = {devices: system.on(devices) for devices in GPUS}
        seconds = {
            devices: total_seconds(each) + transfer_seconds(each.layout, "difference") for devices, each in made.items()
        }
        last = made[GPUS[-1]]
        result.append(
            {
                "model": model,
                "seconds": seconds,
                "blocks": made[1].layout.block_count,
                "waits": 0.0 if last.seconds is None else last.seconds.communication,
                "gib": last.total_bytes / 2**30,
            }
        )
    return result


def differences(slower: float, lives: tuple[int, ...] = (5, 10, 20, 40)) -> list[dict[str, Any]]:
    """Give what the difference of snapshots saves, by how long an edge lives and by the number of GPUs."""
    result = []
    for life in lives:
        system = System("cd-gcn", life, slower)
        row: dict[str, Any] = {"life": life, "bound": ratio(life)}
        for devices in (1, 8, 128):
            made = system.on(devices)
            whole, less = (transfer_seconds(made.layout, encoding, life) for encoding in ("whole", "difference"))
            row[str(devices)] = {
                "transfer_ratio": whole / less,
                "saved": (whole - less) / (total_seconds(made) + whole),
            }
        result.append(row)
    return result


def alternatives(slower: float, devices: int = GPUS[-1]) -> list[dict[str, Any]]:
    """Give what other exchanges and a compact transfer would take on all GPUs."""
    result = []
    for model in ("cd-gcn", "tm-gcn"):
        system = System(model, slower=slower)
        along = "carry" if model == "cd-gcn" else "halo"
        layouts = {
            "time, redistribute (the paper's)": time_cut(devices),
            f"time, {along}": Layout(time=devices, temporal=along),
            f"time by vertex, {along}": Layout(time=devices // 8, vertex=8, temporal=along, spatial="halo"),
            f"time by columns, {along}": Layout(time=devices // 2, vertex=2, temporal=along, spatial="redistribute"),
            "vertex, halo": Layout(vertex=devices, spatial="halo"),
        }
        for name, layout in layouts.items():
            # a carry is cut into chunks: the more, the shorter a run waits for the first, and each has its overhead
            chunks = (devices // 4, devices, 4 * devices) if layout.temporal == "carry" else (1,)
            tried = [system.estimate(replace(layout, chunks=count)) for count in chunks]
            made = min(tried, key=total_seconds)
            seconds = made.seconds
            result.append(
                {
                    "model": model,
                    "name": name,
                    "layout": str(made.layout),
                    "seconds": total_seconds(made),
                    "compute": 0.0 if seconds is None else seconds.compute + seconds.overhead,
                    "waits": 0.0 if seconds is None else seconds.communication + seconds.bubble,
                    "gib": made.total_bytes / 2**30,
                    "difference": transfer_seconds(made.layout, "difference"),
                    "compact": transfer_seconds(made.layout, "compact"),
                }
            )
    return result
