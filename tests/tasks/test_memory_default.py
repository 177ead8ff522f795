"""Links are remembered unless the task says otherwise; what is not kept is made again."""

from __future__ import annotations

from typing import Any

import pytest

import trisect
from trisect.graph.timeline.timeline import Timeline
from trisect.tasks import TaskContext, link_prediction, make_task
from trisect.tasks.decoders import PairMLP, Remembering


def test_links_have_a_memory_by_default(timeline: Timeline) -> None:
    bound = make_task("link-prediction").bind(timeline, TaskContext())
    assert isinstance(bound.decoder(4), Remembering)
    assert bound.settings.startswith(
        "task.memory 20, the default: a pair's own last 20 steps are read; train is measured"
    )


def test_a_memory_of_0_turns_it_off(timeline: Timeline) -> None:
    bound = make_task({"name": "link-prediction", "memory": 0}).bind(timeline, TaskContext())
    assert isinstance(bound.decoder(4), PairMLP)
    assert bound.settings == "train is measured on its last 1 steps"


def test_memories_that_are_not_kept_are_made_again(timeline: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"hidden": 4, "epochs": 3, "progress": False, "rules": False}
    kept = trisect.fit("cd-gcn", timeline, "link-prediction", **options)
    monkeypatch.setattr(link_prediction, "_KEPT", 0)
    bound = make_task("link-prediction").bind(timeline, TaskContext())
    first, second = (bound._remembered(4)["memory"] for _ in range(2))  # type: ignore[attr-defined]
    assert first is not second
    assert trisect.fit("cd-gcn", timeline, "link-prediction", **options).loss == kept.loss
