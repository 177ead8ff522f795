"""Steps of the optimizer for batches of chunks: in a loop of one's own, resumed, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import trisect
from trisect.errors import ConfigError, LayoutError, TrisectError
from trisect.graph.graph import Graph
from trisect.layout import Layout
from trisect.layout.steps import Steps
from trisect.train.fit import fit


class Net(nn.Module):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(features, 16), nn.Linear(16, classes)

    def forward(self, x: Tensor, g: Any) -> Tensor:
        out: Tensor = g.aggregate(self.out(torch.relu(g.aggregate(self.first(x)))))
        return out


def cross_entropy(out: Tensor, rows: Any) -> Tensor:
    train = rows.train
    return functional.cross_entropy(out[train], rows.y[train], reduction="sum") / rows.total("train")


def trained(graph: Graph, epochs: int = 8, **options: Any) -> tuple[list[float], dict[str, Tensor]]:
    torch.manual_seed(0)
    part = trisect.parallelize(Net(8, 3), graph, precision="float64", **options)
    optimizer, losses = torch.optim.Adam(part.parameters(), 0.01), []
    for epoch in range(1, epochs + 1):
        total = 0.0
        for batch in part.batches(epoch):
            total += part.step(cross_entropy, batch) / batch.count
            optimizer.step()
            optimizer.zero_grad()
        losses.append(total)
    return losses, part.state_dict()


@pytest.fixture(scope="module")
def graph() -> Graph:
    return Graph.generate("community", vertices=300, features=8, classes=3)


@pytest.mark.parametrize("outside", ["history", "drop"])
def test_a_loop_of_ones_own_steps_for_each_batch(graph: Graph, outside: str) -> None:
    """Four steps an epoch learn more in as many epochs than one step does."""
    losses, _ = trained(graph, 20, step="chunk", batches=4, outside=outside)
    torch.manual_seed(0)
    part = trisect.parallelize(Net(8, 3), graph)
    optimizer = torch.optim.Adam(part.parameters(), 0.01)
    for _ in range(20):
        once = part.step(cross_entropy)
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < 0.9 * once
    with pytest.raises(ConfigError, match="one step here"):
        next(iter(part.batches()))


def test_batches_are_a_function_of_seed_and_epoch() -> None:
    steps = Steps("chunk", 3)
    batches = steps.of_chunks(8, seed=1, epoch=2)
    assert sorted(chunk for batch in batches for chunk in batch.chunks) == list(range(8))
    assert [len(batch.chunks) for batch in batches] == [3, 3, 2]
    assert [batch.is_last for batch in batches] == [False, False, True]
    assert batches == steps.of_chunks(8, seed=1, epoch=2) != steps.of_chunks(8, seed=1, epoch=3)


@pytest.mark.parametrize("layout", ["", "chunks=7,history.blend=0.5"])
def test_a_run_resumes_to_the_bit(graph: Graph, layout: str, tmp_path: Path) -> None:
    """History is in the checkpoint; without it, which is the negative control, the run goes on otherwise."""
    options: dict[str, Any] = {"hidden": 8, "step": "chunk", "batches": 3, "rules": False, "checkpoint_every": 2}
    whole = fit("sage", graph, layout=layout, out=tmp_path / "whole", epochs=4, **options)
    fit("sage", graph, layout=layout, out=tmp_path / "parts", epochs=2, **options)
    parts = fit("sage", graph, layout=layout, out=tmp_path / "parts", epochs=4, resume=True, **options)
    assert parts.summary["loss"] == whole.summary["loss"]
    assert parts.metrics == whole.metrics
    assert parts.summary.keys() == whole.summary.keys()
    assert 0.0 < whole.summary["staleness"]["historical_reads"] < 1.0


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"step": "chunk", "batches": 1000}, "train.batches is 1000, more than the graph's 300 vertices"),
    ({"step": "block"}, "train.step is block, and the data are one graph"),
    ({"step": "chunk", "batches": 8, "layout": "chunks=4"}, "train.batches is 8, and layout.chunks is 4"),
    ({"step": "chunk", "layout": "history=exact"}, "layout.history is exact, and train.step is chunk"),
    ({"step": "chunk", "layout": "history.scale=2.0"}, "layout.history.scale is 2, and the steps"),
    ({"step": "chunk", "layout": "recompute=true"}, "layout.recompute is true, and train.step is chunk"),
    ({"step": "chunk", "layout": "spatial=redistribute"}, "layout.spatial is redistribute, and train.step is chunk"),
]


@pytest.mark.parametrize(("options", "sentence"), REFUSED, ids=[sentence[:30] for _, sentence in REFUSED])
def test_what_does_not_fit_is_refused(graph: Graph, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TrisectError, match="^" + sentence.replace(".", r"\.")):
        trisect.parallelize(Net(8, 3), graph, **options)


def test_a_run_ends_at_its_target(graph: Graph) -> None:
    options: dict[str, Any] = {"hidden": 8, "step": "chunk", "batches": 3, "rules": False, "epochs": 30}
    run = fit("sage", graph, target={"val.accuracy": 0.5}, **options)
    assert len(run.summary["loss"]) < 30
    assert run.metrics["val"]["accuracy"] >= 0.5
    with pytest.raises(ConfigError, match=r"train\.target is 'val\.accuracies'"):
        fit("sage", graph, target={"val.accuracies": 0.5}, **options)
    with pytest.raises(ConfigError, match=r"train\.target is 3"):
        fit("sage", graph, target=3, **options)


def test_a_schedule_spans_all_steps(graph: Graph) -> None:
    options: dict[str, Any] = {
        "hidden": 8,
        "rules": False,
        "epochs": 4,
        "scheduler": {"name": "OneCycleLR", "max_lr": 0.1},
    }
    run = fit("sage", graph, step="chunk", batches=3, **options)
    assert len(run.summary["loss"]) == 4


def test_the_layout_has_the_chunks_of_the_steps() -> None:
    assert Steps("chunk", 6).laid_out(Layout()).chunks == 6
    assert Steps("chunk", 6).laid_out(Layout(chunks=12)).chunks == 12
    assert Steps("chunk", 6, "drop").laid_out(Layout()).recipe is None
    assert Steps().laid_out(Layout()) == Layout()
    with pytest.raises(LayoutError):
        Steps("chunk", 6).laid_out(Layout(chunks=3))
