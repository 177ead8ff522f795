"""What a run tells of what crosses ranks is what its schedule says: post by post and wait by wait, on every rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from ranks import on_ranks
from trisect.comm.mesh import Mesh
from trisect.config import TrainOptions
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import parse_layout
from trisect.nn.models.source import NamedModel
from trisect.pipeline.events import Events
from trisect.plan.build import schedule_of
from trisect.schedule.action import Action, Verb
from trisect.tasks import make_task
from trisect.train.loop import Trainer
from trisect.train.ranks import cut_data
from trisect.train.recorders import NoRecorder
from trisect.train.setup import Setup
from trisect.train.worker import read_cut

EPOCHS = 3

# model and its options, layout, letters that cross, task
GRAPHS: list[tuple[str, dict[str, Any], str, str]] = [
    ("gcn", {"layers": 3}, "vertex=3,spatial=halo", "h"),
    ("gcn", {"layers": 3}, "vertex=2,spatial=redistribute", "r"),
    ("gcn", {"layers": 5}, "vertex=2,spatial=halo,recompute=true", "h"),
    ("gcn", {"layers": 5}, "vertex=2,spatial=redistribute,recompute=true", "r"),
    ("gcnii", {"layers": 4}, "layer=2,vertex=2,chunks=3,spatial=halo", "bh"),
    ("gat", {"layers": 3, "heads": 2}, "vertex=2,layer=2", "bh"),
]
TIMELINES: list[tuple[str, dict[str, Any], str, str, str]] = [
    ("cd-gcn", {"layers": 2}, "time=2,blocks=2,temporal=carry", "c", "nodes"),
    ("wd-gcn", {"layers": 3}, "time=2,blocks=3,temporal=redistribute", "t", "nodes"),
    ("wd-gcn", {"layers": 3}, "time=2,blocks=2,temporal=redistribute,recompute=true", "t", "nodes"),
    ("tm-gcn", {"layers": 2, "window": 3}, "time=3,blocks=2,temporal=halo", "w", "nodes"),
    ("evolvegcn-h", {"layers": 2}, "time=2,vertex=2,blocks=2,spatial=halo", "cmh", "nodes"),
    ("wd-gcn", {"layers": 2}, "time=2,vertex=2,temporal=carry,spatial=halo", "chf", "pairs"),
    ("cd-gcn", {"layers": 4}, "layer=2,vertex=2,blocks=3,spatial=halo,recompute=true", "bh", "nodes"),
]


class Log(NoRecorder):
    def __init__(self) -> None:
        self.names: list[str] = []

    def event(self, name: str, start: float, seconds: float, **fields: Any) -> None:
        self.names.append(name)


def graph() -> Graph:
    draw = torch.Generator().manual_seed(1)
    source = torch.randint(0, 60, (240,), generator=draw)
    target = (source + torch.randint(1, 9, source.shape, generator=draw)) % 60
    train = torch.arange(60) % 2 == 0
    x, y = torch.randn(60, 5, generator=draw), torch.randint(3, (60,), generator=draw)
    return Graph.from_edges(source, target, x=x, y=y, splits={"train": train, "val": ~train, "test": ~train})


def timeline() -> Timeline:
    draw = torch.Generator().manual_seed(2)
    steps, events, vertices = 14, 60, 30
    source = torch.randint(0, vertices, (steps * events,), generator=draw)
    target = (source + torch.randint(1, 9, source.shape, generator=draw)) % vertices
    x = torch.randn(steps, vertices, 4, generator=draw)
    y = torch.randint(3, (steps, vertices), generator=draw)
    offsets = torch.arange(steps + 1) * events
    return Timeline.from_arrays(source, target, offsets, vertices=vertices, x=x, y=y)


def told(mesh: Mesh, folder: Path, model: NamedModel, task: Any, wrong: bool) -> tuple[list[str], list[str]]:
    """Return what a rank told of the last of some epochs, and what the schedule says."""
    options = TrainOptions(precision="float64")
    setup = Setup.of(model, read_cut(folder), task, options, mesh.layout, mesh=mesh, local_ranks=mesh.layout.world)
    program, log = setup.program, Log()
    trainer, place = Trainer(setup, options, log), Events._place
    shifted = lambda events, crossing, turn: (int(crossing.back), *place(events, crossing, turn)[1:])  # noqa: E731
    with patch.object(Events, "_place", shifted if wrong else place):
        for epoch in range(1, EPOCHS + 1):
            log.names.clear()
            trainer.train_epoch(epoch)
    order = program._order if program.plan.stale else None
    actions = schedule_of(program._epoch_plan, order=order).ranks[mesh.rank]
    return log.names, [action.text for action in actions]


def moves(names: list[str]) -> list[str]:
    """Return all pieces of cells and all that crosses, in order; a message's room is made ahead, and not told."""
    return [name for name in names if Action.parse(name).verb is not Verb.EXPECT]


def check(
    data: Graph | Timeline,
    model: NamedModel,
    layout: str,
    letters: str,
    task: Any,
    folder: Path,
    wrong: bool = False,
) -> None:
    cut_data(data, model, make_task(task), parse_layout(layout), TrainOptions(precision="float64"), folder)
    found = on_ranks(__file__, "told", layout, folder, model, task, wrong)
    crossed: set[str] = set()
    for rank, (run, schedule) in enumerate(found):
        assert moves(run) == moves(schedule), f"rank {rank}"
        crossed |= {Action.parse(name).exchange or "" for name in schedule}
    assert set(letters) <= crossed


@pytest.mark.parametrize(("name", "options", "layout", "letters"), GRAPHS, ids=lambda value: str(value))
def test_on_a_graph(name: str, options: dict[str, Any], layout: str, letters: str, tmp_path: Path) -> None:
    model = NamedModel(name, {"hidden": 6, **options}, 3)
    check(graph(), model, layout, letters, {"name": "node-classification"}, tmp_path)


@pytest.mark.parametrize(("name", "options", "layout", "letters", "task"), TIMELINES, ids=lambda value: str(value))
def test_on_a_timeline(
    name: str, options: dict[str, Any], layout: str, letters: str, task: str, tmp_path: Path
) -> None:
    tasks = {"nodes": {"name": "node-classification"}, "pairs": {"name": "link-prediction", "eval_negatives": 2}}
    check(timeline(), NamedModel(name, {"hidden": 6, **options}, 3), layout, letters, tasks[task], tmp_path)


def test_another_chunk_is_seen(tmp_path: Path) -> None:
    name, options, layout, letters = GRAPHS[0]
    model = NamedModel(name, {"hidden": 6, **options}, 3)
    with pytest.raises(AssertionError, match="rank 0"):
        check(graph(), model, layout, letters, {"name": "node-classification"}, tmp_path, wrong=True)
