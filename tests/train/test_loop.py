from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from trisect.config import TrainOptions
from trisect.errors import CheckpointError, ConfigError, RunError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.train.fit import model_maker
from trisect.train.loop import Result, Trainer
from trisect.train.recorders import NoRecorder
from trisect.train.setup import Setup


class Memory:
    """A recorder that keeps everything."""

    def __init__(self) -> None:
        self.epochs: list[dict[str, Any]] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.checkpoints: list[tuple[dict[str, torch.Tensor], dict[str, Any], bool]] = []

    def epoch(self, record: Mapping[str, Any]) -> None:
        self.epochs.append(dict(record))

    def event(self, name: str, start: float, seconds: float, **fields: Any) -> None:
        self.events.append((name, fields))

    def checkpoint(self, tensors: Mapping[str, torch.Tensor], meta: Mapping[str, Any], *, best: bool) -> None:
        self.checkpoints.append((dict(tensors), dict(meta), best))


def gcn(
    data: Graph | Timeline, recorder: Memory | None = None, resume: Any = None, say: Any = str, **options: Any
) -> Result:
    name, task, extra = "gcn", "node-classification", {"dropout": 0.5}
    if isinstance(data, Timeline):
        name, task, extra = "cd-gcn", "link-prediction", {"dropout": 0.2}
    norm = options.pop("norm", "none")
    maker = model_maker(name, {"hidden": 8, "layers": 2, "norm": norm, **extra}, options.get("seed", 0))
    chosen = TrainOptions(**options)
    trainer = Trainer(Setup.of(maker, data, task, chosen), chosen, recorder or NoRecorder(), say=say)
    if resume is not None:
        trainer.load(*resume)
    return trainer.run()


def same(one: Mapping[str, torch.Tensor], two: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


@pytest.fixture(params=["community", "timeline"])
def data(request: pytest.FixtureRequest) -> Graph | Timeline:
    found: Graph | Timeline = request.getfixturevalue(request.param)
    return found


def test_a_run_is_reproduced_to_the_bit(data: Graph | Timeline) -> None:
    one, two, other = (gcn(data, epochs=4, seed=seed) for seed in (3, 3, 4))
    assert one.loss == two.loss
    assert one.metrics == two.metrics
    assert same(one.modules.state_dict(), two.modules.state_dict())
    assert one.loss != other.loss


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm": "batch"},
        {"optimiser": "sgd", "lr_schedule": "plateau"},
        {"eval_every": 2, "clip": 0.1},
        {"optimizer": "AdamW", "scheduler": {"name": "OneCycleLR", "max_lr": 0.1, "total_steps": 9}},
        {"optimizer": "Adagrad", "ema": 0.8},
        {"optimizer": "SGD", "scheduler": {"name": "ReduceLROnPlateau", "patience": 0}, "ema": 0.5},
    ],
)
def test_a_resumed_run_equals_a_straight_one_to_the_bit(data: Graph | Timeline, options: dict[str, Any]) -> None:
    straight, first, second = Memory(), Memory(), Memory()
    result = gcn(data, straight, epochs=7, checkpoint_every=2, **options)
    gcn(data, first, epochs=3, **options)
    tensors, meta, _ = first.checkpoints[-1]
    resumed = gcn(data, second, resume=(tensors, meta), epochs=7, checkpoint_every=2, **options)
    assert resumed.loss == result.loss
    assert resumed.metrics == result.metrics
    assert resumed.best_epoch == result.best_epoch
    for (tensors, meta, best), (others, other_meta, other_best) in zip(
        straight.checkpoints[-3:], second.checkpoints[-3:], strict=True
    ):
        assert same(tensors, others)
        assert meta == other_meta
        assert best == other_best
    # the comparison can fail
    assert not same(straight.checkpoints[-1][0], straight.checkpoints[-2][0])


def test_no_global_randomness_is_read_or_changed(data: Graph | Timeline) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = gcn(data, epochs=2)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert gcn(data, epochs=2).loss == one.loss


def test_every_epoch_is_the_schedule(community: Graph) -> None:
    memory = Memory()
    result = gcn(community, memory, epochs=2)
    training = [(name, fields["epoch"]) for name, fields in memory.events if not fields.get("evaluation")]
    assert training == [(name, epoch) for epoch in (1, 2) for name in ("0F0", "0B0", "0U0")]
    assert [name for name, fields in memory.events if fields.get("evaluation")] == ["0F0~e"] * 3
    assert [record["epoch"] for record in memory.epochs] == [1, 2]
    assert [record["loss"] for record in memory.epochs] == result.loss
    assert {"loss", "accuracy"} <= set(memory.epochs[0]["val"])


def test_the_best_epoch_is_kept(community: Graph) -> None:
    memory = Memory()
    result = gcn(community, memory, epochs=12, lr=0.05)
    values = [record["val"]["accuracy"] for record in memory.epochs]
    assert result.best_value == max(values)
    assert result.best_epoch == 1 + values.index(max(values))
    assert result.metrics["val"] == memory.epochs[result.best_epoch - 1]["val"]
    assert result.metrics["test"] == memory.epochs[result.best_epoch - 1]["test"]
    tensors, meta, _ = memory.checkpoints[-1]
    best = {key.removeprefix("best."): value for key, value in tensors.items() if key.startswith("best.")}
    assert same(best, result.modules.state_dict())
    assert meta["best_epoch"] == result.best_epoch


def test_monitor_of_a_loss_is_minimised(community: Graph) -> None:
    memory = Memory()
    result = gcn(community, memory, epochs=5, monitor="val.loss")
    assert result.best_value == min(record["val"]["loss"] for record in memory.epochs)


def test_patience_ends_a_run(community: Graph) -> None:
    memory = Memory()
    result = gcn(community, memory, epochs=500, lr=0.1, patience=5, checkpoint_every=None)
    assert result.stopped_early
    assert result.epochs == result.best_epoch + 5 == len(result.loss)
    assert len(memory.checkpoints) == 1


def test_evaluation_can_be_rare(community: Graph) -> None:
    memory = Memory()
    result = gcn(community, memory, epochs=5, eval_every=2)
    assert ["val" in record for record in memory.epochs] == [False, True, False, True, False]
    assert result.best_epoch in (2, 4)
    never = gcn(community, epochs=3, eval_every=10)
    assert never.best_epoch == 3
    assert never.metrics == gcn(community, epochs=3, eval_every=3).metrics != result.metrics


def test_checkpoints_come_when_asked_and_at_the_end(community: Graph) -> None:
    memory = Memory()
    gcn(community, memory, epochs=7, checkpoint_every=3)
    assert [meta["epoch"] for _, meta, _ in memory.checkpoints] == [3, 6, 7]


def test_a_loss_that_is_not_finite_ends_the_run(community: Graph) -> None:
    with pytest.raises(RunError, match=r"loss of epoch \d+ is (nan|inf).*train\.lr"):
        gcn(community, epochs=50, lr=1e30)


def test_unknown_monitor_names_the_known(community: Graph) -> None:
    with pytest.raises(ConfigError, match=r"val\.precision.*val\.accuracy"):
        gcn(community, epochs=1, monitor="val.precision")


def test_a_monitor_of_no_split_is_refused(community: Graph) -> None:
    with pytest.raises(ConfigError, match=r"train\.monitor is 'accuracy', but must look like val\.accuracy"):
        gcn(community, epochs=1, monitor="accuracy")


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_what_is_monitored_is_measured(timeline: Timeline, split: str) -> None:
    memory = Memory()
    result = gcn(timeline, memory, epochs=30, lr=1e-9, monitor=f"{split}.map", patience=3)
    values = [record[split]["map"] for record in memory.epochs]
    assert result.best_value == max(values)
    assert result.stopped_early
    assert result.epochs == result.best_epoch + 3
    assert memory.epochs[0].keys() & {"train", "val", "test"} == {"val", split}, "the others wait for the end"


def test_a_long_evaluation_says_how_far_it_is(
    timeline: Timeline, community: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    quiet = gcn(timeline, epochs=2, eval_every=2, say=said.append)
    assert said == ["Measuring train, val, test with the parameters of epoch 2."]
    said.clear()
    monkeypatch.setattr("trisect.train.evaluation.SILENCE", 0.0)
    loud = gcn(timeline, epochs=2, eval_every=2, say=said.append)
    assert said[-1] == "Measured step 7 of 7."
    assert loud.metrics == quiet.metrics
    said.clear()
    gcn(community, epochs=2, say=said.append)
    assert said == []


def test_a_checkpoint_of_another_run_is_refused(community: Graph) -> None:
    memory = Memory()
    gcn(community, memory, epochs=1)
    tensors, meta, _ = memory.checkpoints[0]
    with pytest.raises(CheckpointError, match=r"train\.seed is 1"):
        gcn(community, resume=(tensors, meta), epochs=2, seed=1)
    wrong = {key: value[..., :1] if key == "model.layers.0.weight" else value for key, value in tensors.items()}
    with pytest.raises(CheckpointError, match=r"of shape \[8, 1\], and the model needs"):
        gcn(community, resume=(wrong, meta), epochs=2)


@pytest.mark.parametrize("precision", ["float64", "bfloat16"])
def test_other_precisions_train(data: Graph | Timeline, precision: str) -> None:
    result = gcn(data, epochs=6, precision=precision, lr=0.02)
    assert result.loss[-1] < result.loss[0]
    assert {str(p.dtype) for p in result.modules.parameters()} == {f"torch.{precision}"}


def test_order_of_vertices_changes_nothing(data: Graph | Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout, negatives and splits follow the user's vertices; outputs come back in the user's order."""
    from trisect.train import setup as module
    from trisect.train.fit import fit

    task = "link-prediction" if isinstance(data, Timeline) else "node-classification"
    name = "cd-gcn" if isinstance(data, Timeline) else "gcn"
    options: dict[str, Any] = {"epochs": 3, "precision": "float64", "dropout": 0.5, "hidden": 8}
    plain = fit(name, data, task, **options, order="none")
    shuffle = torch.randperm(data.vertices, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(module, "choose_order", lambda data: shuffle)
    moved = fit(name, data, task, **options)
    assert moved.loss == pytest.approx(plain.loss, rel=1e-10)
    for key, value in plain.predict().items():
        assert torch.allclose(moved.predict()[key].double(), value.double(), rtol=1e-9)
    assert torch.allclose(moved.embeddings(), plain.embeddings(), rtol=1e-9)
    assert not torch.allclose(moved.embeddings().flip(-2), plain.embeddings(), rtol=1e-3)
    assert moved.metrics["test"]["loss"] == pytest.approx(plain.metrics["test"]["loss"], rel=1e-9)


def test_kept_aggregations_do_not_change_the_result(data: Graph | Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    from trisect.train import assemble as module

    kept = gcn(data, epochs=3, precision="float64")
    monkeypatch.setattr(module, "free_bytes", lambda device: 0)
    bare = gcn(data, epochs=3, precision="float64")
    assert not bare.program.plan.aggregated
    assert bare.program.shard.aggregated(range(1)) is None
    assert kept.program.plan.aggregated
    assert kept.program.shard.aggregated(range(1)) is not None
    assert bare.loss == pytest.approx(kept.loss, rel=1e-10)


def test_result_has_what_a_summary_needs(community: Graph) -> None:
    result = gcn(community, epochs=3)
    assert result.communication == {
        "bytes_per_epoch": 0,
        "by_axis": {"vertex": 0, "layer": 0, "time": 0, "weights": 0},
        "by_rank": [0],
        "formula_bytes_per_epoch": 0,
    }
    assert result.transfer == {"full_bytes": 0, "sent_bytes": 0}
    assert result.memory["peak_rss_bytes"][0] > 32 << 20  # a process that has loaded torch
    pss = result.memory["peak_pss_bytes"]
    assert pss is None or 0 < pss[0] <= result.memory["peak_rss_bytes"][0]
    assert len(result.loss) == len(result.seconds) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, r"train\.epochs is 0"),
        ({"lr": -1.0}, r"train\.lr"),
        ({"precision": "float8"}, r"train\.precision"),
        ({"optimiser": "lion"}, r"train\.optimizer"),
        ({"device": "cuda:7"}, r"train\.device"),
        ({"device": "toaster"}, r"train\.device"),
    ],
)
def test_bad_options_are_refused(community: Graph, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        gcn(community, **options)
