"""The SC'21 paper on dynamic graphs by the planner: time cut over 128 GPUs, and snapshots that stream to them.

The planner has the seconds of computing and of exchanges. The paper's snapshots lie in the host's memory and cross to
the device in forward and again in recomputation; those bytes, by the formula of their encoding, divided by the rate of
the link between host and device, come on top here: the planner itself does not count them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trisect.bench._paper_figures import TIMELINES
from trisect.bench._paper_layers import total_seconds
from trisect.config import TrainOptions
from trisect.layout import Layout
from trisect.nn.models.source import NamedModel
from trisect.plan.estimate import Estimate, estimate
from trisect.plan.memory import MemoryModel
from trisect.plan.presets import PRESETS
from trisect.plan.workload import Workload
from trisect.train.workloads import DescribedData, workload_of_description

PRESET = "16x8-v100"
MODELS = ("cd-gcn", "tm-gcn", "evolvegcn-o")
GPUS = (1, 2, 4, 8, 16, 32, 64, 128)
LIFE = 10
_BLOCKS = (1, 2, 4, 8, 16, 32, 64)
# bytes of an edge: two int64 and a float32; the indices alone; a value; two int32
_WHOLE, _PAIR, _VALUE, _EVENT = 20, 16, 4, 8


def workload(data: str, model: str, life: int = LIFE) -> Workload:
    """Give one of the paper's timelines and models: two features, two layers, six wide."""
    sizes = TIMELINES[data]
    described = DescribedData(
        sizes.vertices, sizes.edges, steps=sizes.steps, undirected=False, length=life, train=1.0, classes=2
    )
    return workload_of_description(NamedModel(model, {"layers": 2, "hidden": 6}, 0), described, TrainOptions())


def ratio(life: int) -> float:
    """Say how many times fewer bytes the difference of two snapshots has than a snapshot as it is."""
    return _WHOLE * life / (_VALUE * life + 2 * _PAIR)


def transfer_seconds(data: str, layout: Layout, encoding: str, life: int = LIFE) -> float:
    """Give the seconds in which the snapshots of a rank's steps cross to its device, forward and in recomputation.

    Args:
        encoding: `whole` snapshots, their `difference` (the first of each run whole), or `compact`: the edges of each
            step once, with those that are alive when a run begins.
    """
    sizes, blocks = TIMELINES[data], layout.block_count
    born = sizes.edges / sizes.steps / layout.vertex
    alive = born * life
    steps = -(-sizes.steps // (blocks * layout.time))
    if encoding == "whole":
        size = steps * _WHOLE * alive
    elif encoding == "difference":
        size = _WHOLE * alive + (steps - 1) * (_VALUE * alive + 2 * _PAIR * born)
    else:
        size = _EVENT * (alive + (steps - 1) * born)
    passes = 2 * blocks - 1
    link = PRESETS[PRESET].device.host_link
    return passes * size / (link or 1.0)


def with_blocks(work: Workload, layout: Layout, memory: MemoryModel) -> Estimate:
    """Estimate a layout with the fewest blocks that fit the device, where snapshots stream and need not."""
    cluster = PRESETS[PRESET]
    made = None
    for count in _BLOCKS:
        if made is not None and count * layout.time > work.training:
            break
        made = estimate(work, replace(layout, blocks=count), cluster, memory, timed=False)
        if made.memory.total - made.memory.snapshots <= made.room:
            break
    if made is None:
        raise RuntimeError("internal error: no number of blocks was tried")
    return estimate(work, made.layout, cluster, memory)


def time_cut(devices: int) -> Layout:
    """Give the paper's layout: steps dealt to ranks, rows redistributed around the recurrent part."""
    return Layout(time=devices, temporal="redistribute") if devices > 1 else Layout()


def scaling() -> list[dict[str, Any]]:
    """Give the seconds of each timeline and model by the number of GPUs, with the difference of snapshots."""
    result = []
    for data in TIMELINES:
        for model in MODELS:
            work = workload(data, model)
            memory = MemoryModel(work)
            seconds, blocks = {}, {}
            for devices in GPUS:
                layout = time_cut(devices)
                if model == "evolvegcn-o":
                    layout = replace(layout, temporal="auto")
                made = with_blocks(work, layout, memory)
                seconds[devices] = total_seconds(made) + transfer_seconds(data, made.layout, "difference")
                blocks[devices] = made.layout.block_count
            result.append({"data": data, "model": model, "seconds": seconds, "blocks": blocks})
    return result


def differences(lives: tuple[int, ...] = (5, 10, 20, 40)) -> list[dict[str, Any]]:
    """Give what the difference of snapshots saves on one GPU and on 8, by how long an edge lives."""
    result = []
    for data in TIMELINES:
        for life in lives:
            work = workload(data, "cd-gcn", life)
            memory = MemoryModel(work)
            row: dict[str, Any] = {"data": data, "life": life, "bound": ratio(life)}
            for devices in (1, 8):
                made = with_blocks(work, time_cut(devices), memory)
                whole, less = (
                    transfer_seconds(data, made.layout, encoding, life) for encoding in ("whole", "difference")
                )
                total = total_seconds(made)
                row[str(devices)] = {
                    "seconds": total + whole,
                    "transfer_ratio": whole / less,
                    "saved": (whole - less) / (total + whole),
                }
            result.append(row)
    return result


def alternatives(devices: int = 128) -> list[dict[str, Any]]:
    """Give what other exchanges and a compact transfer would take on all GPUs."""
    result = []
    for data in TIMELINES:
        for model in ("cd-gcn", "tm-gcn"):
            work = workload(data, model)
            memory = MemoryModel(work)
            along = "carry" if model == "cd-gcn" else "halo"
            layouts = {
                "time, redistribute": time_cut(devices),
                f"time, {along}": Layout(time=devices, temporal=along),
                "time and vertex, " + along: Layout(time=devices // 8, vertex=8, temporal=along, spatial="halo"),
                "time and vertex by columns, " + along: Layout(
                    time=devices // 2, vertex=2, temporal=along, spatial="redistribute"
                ),
                "vertex, halo": Layout(vertex=devices, spatial="halo"),
            }
            for name, layout in layouts.items():
                made = with_blocks(work, layout, memory)
                seconds = made.seconds
                result.append(
                    {
                        "data": data,
                        "model": model,
                        "name": name,
                        "layout": str(made.layout),
                        "seconds": total_seconds(made),
                        "compute": 0.0 if seconds is None else seconds.compute + seconds.overhead,
                        "waits": 0.0 if seconds is None else seconds.communication + seconds.bubble,
                        "gib": made.total_bytes / 2**30,
                        "difference": transfer_seconds(data, made.layout, "difference"),
                        "compact": transfer_seconds(data, made.layout, "compact"),
                    }
                )
    return result
