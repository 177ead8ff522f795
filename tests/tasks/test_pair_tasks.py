from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn import metrics as reference
from torch.nn import functional

from trisect.data.records import TimelineRecord
from trisect.errors import ConfigError, DataError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.noise import Noise
from trisect.tasks import EdgeClassification, LinkPrediction, TaskContext, metrics
from trisect.tasks.decoders import PairDecoder, pair_decoder


def embeddings(timeline: Timeline, channels: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(timeline.steps, timeline.vertices, channels, generator=generator, dtype=torch.float64)


def ready(decoder: PairDecoder) -> PairDecoder:
    decoder.reset_parameters(0, 9)
    if hasattr(decoder, "bilinear"):  # it begins at zero
        torch.nn.init.normal_(decoder.bilinear, generator=torch.Generator().manual_seed(3))
    return decoder.double()


@pytest.mark.parametrize("name", ["dot", "mlp", "bilinear"])
def test_decoders_equal_their_formulas(name: str) -> None:
    decoder = ready(pair_decoder(name, 4, 1, 6))  # type: ignore[arg-type]
    z = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    src, dst = torch.tensor([0, 3, 3, 6]), torch.tensor([1, 3, 2, 0])
    if name == "dot":
        expected = (z[src] * z[dst]).sum(1)
    elif name == "mlp":
        inner = functional.linear(torch.cat([z[src], z[dst]], 1), decoder.weight_in, decoder.bias_in).relu()
        expected = functional.linear(inner, decoder.weight, decoder.bias)[:, 0]
    else:
        expected = torch.einsum("pi,ij,pj->p", z[src], decoder.bilinear[0], z[dst])
        expected = expected + z[src] @ decoder.weight[0] + z[dst] @ decoder.weight[1]
    found = decoder(z, src, dst)[:, 0]
    assert torch.allclose(found, expected)
    (one,) = torch.autograd.grad(found.sum(), z, retain_graph=True)
    (two,) = torch.autograd.grad(expected.sum(), z)
    assert torch.allclose(one, two)
    with torch.no_grad():
        matrix = decoder.blocks(z)(slice(2, 5))
    everyone = torch.arange(7)
    for row, source in zip(matrix, (2, 3, 4), strict=True):
        assert torch.allclose(row, decoder(z, torch.full((7,), source), everyone)[:, 0])
    if name != "dot":
        assert not torch.allclose(decoder(z, dst, src)[:, 0], expected)


def test_dot_gives_one_score() -> None:
    with pytest.raises(ConfigError, match="dot gives one score"):
        pair_decoder("dot", 4, 3, 6)


def test_loss_is_the_binary_cross_entropy_over_pairs(timeline: Timeline) -> None:
    task = LinkPrediction(decoder="dot", memory=0, negatives=3, positive_weight=2.0, split=(4, 1, 2))
    bound = task.bind(timeline, TaskContext())
    frames, decoder = embeddings(timeline), ready(pair_decoder("dot", 4, 1, 1))
    noise = Noise(0, epoch=1)
    positives = negatives = torch.zeros((), dtype=torch.float64)
    count = 0
    for step in range(4):
        pairs = set(zip(*(ends.tolist() for ends in timeline.events(step + 1)), strict=True))
        count += len(pairs)
        for s, d in pairs:
            positives = positives - torch.log(torch.sigmoid(frames[step, s] @ frames[step, d]))
        # the negatives come from the task's own sampler, whose properties are tested beside it
    from trisect.tasks.pairs import sample

    for step in range(4):
        held = bound._pairs[step]
        if len(held):
            key = noise.at(step=step).key("negatives")
            src, dst = sample(key, 3 * len(held), bound._candidates(step), held)
            negatives = negatives - torch.log(1 - torch.sigmoid((frames[step][src] * frames[step][dst]).sum(1))).sum()
    expected = (2 * positives + negatives) / (4 * count)
    assert torch.allclose(bound.loss(decoder, frames, 0, noise), expected, rtol=1e-10)
    parts = bound.loss(decoder, frames[:2], 0, noise) + bound.loss(decoder, frames[2:], 2, noise)
    assert torch.allclose(parts, expected, rtol=1e-10)
    assert not torch.allclose(bound.loss(decoder, frames, 0, Noise(0, epoch=2)), expected, rtol=1e-6)


def test_metrics_over_all_pairs_equal_the_matrix_definition(timeline: Timeline) -> None:
    task = LinkPrediction(decoder="dot", memory=0, eval_negatives="all", split=(4, 1, 2), average="steps")
    bound = task.bind(timeline, TaskContext())
    frames, decoder = embeddings(timeline), ready(pair_decoder("dot", 4, 1, 1))
    found = bound.metrics(bound.measure(decoder, frames, 0, "test"))
    maps, mrrs, aucs = [], [], []
    for step in (5, 6):
        truth = np.zeros((40, 40), dtype=int)
        src, dst = timeline.events(step + 1)
        truth[src.numpy(), dst.numpy()] = 1
        scores = metrics.rounded(frames[step] @ frames[step].t()).numpy()  # ties as the measures have them
        maps.append(reference.average_precision_score(truth.ravel(), scores.ravel()))
        aucs.append(reference.roc_auc_score(truth.ravel(), scores.ravel()))
        rows = []
        for row in range(40):
            if truth[row].any():
                order = np.flip(scores[row].argsort())
                rows.append((1 / (1 + np.nonzero(truth[row][order])[0])).mean())
        mrrs.append(np.mean(rows))
    assert found["per_step"]["map"] == pytest.approx(maps)
    assert found["per_step"]["step"] == [5, 6]
    assert found["map"] == pytest.approx(np.mean(maps))
    assert found["auc"] == pytest.approx(np.mean(aucs))
    # the dot product of a pair and its reverse tie only across rows, so ranks inside a row are strict
    assert found["mrr"] == pytest.approx(np.mean(mrrs))
    reversed_ = bound.metrics(bound.measure(decoder, frames.flip(1), 0, "test"))
    assert reversed_["map"] != pytest.approx(np.mean(maps), rel=1e-3)


def test_evaluation_negatives_are_fixed_and_counted(timeline: Timeline) -> None:
    task = LinkPrediction(decoder="dot", memory=0, eval_negatives=5, split=(4, 1, 2))
    decoder, frames = ready(pair_decoder("dot", 4, 1, 1)), embeddings(timeline)
    one, two, other = (task.bind(timeline, TaskContext(seed)) for seed in (0, 0, 1))
    first = one.measure(decoder, frames, 0, "test")
    assert one.metrics(first) == one.metrics(one.measure(decoder, frames, 0, "test"))
    assert one.metrics(first) == two.metrics(two.measure(decoder, frames, 0, "test"))
    assert one.metrics(first) != other.metrics(other.measure(decoder, frames, 0, "test"))
    pairs = {step: len(one._pairs[step]) for step in (5, 6)}
    assert first.sums["pairs"][[5, 6]].tolist() == [6 * pairs[5], 6 * pairs[6]]


def test_averages_weigh_steps_by_pairs_or_alike(timeline: Timeline) -> None:
    decoder, frames = ready(pair_decoder("dot", 4, 1, 1)), embeddings(timeline)
    by = {}
    for average in ("pairs", "steps"):
        bound = LinkPrediction(decoder="dot", memory=0, average=average, split=(4, 1, 2)).bind(timeline, TaskContext())  # type: ignore[arg-type]
        found = bound.measure(decoder, frames, 0, "test")
        by[average] = bound.metrics(found)
        weight = found.sums["pairs"][[5, 6]].numpy()
    values = np.array(by["pairs"]["per_step"]["map"])
    assert by["pairs"]["map"] == pytest.approx((values * weight).sum() / weight.sum())
    assert by["steps"]["map"] == pytest.approx(values.mean())


def test_memory_is_of_the_past_and_the_same_in_blocks(timeline: Timeline) -> None:
    task = LinkPrediction(decoder="dot", memory=2, split=(4, 1, 2))
    bound = task.bind(timeline, TaskContext())
    decoder = ready(bound.decoder(4))
    torch.nn.init.constant_(decoder.weight, 0.7)
    memory = bound._remembered(3)["memory"]
    past = {code for step in (2, 3) for code in _codes(timeline, step)}
    assert set(memory.pairs.codes.tolist()) == past
    frame, everyone = embeddings(timeline)[3], torch.arange(40)
    with torch.no_grad():
        matrix = decoder.blocks(frame, memory)(slice(5, 20))
        plain = decoder.blocks(frame)(slice(5, 20))
    for row, source in zip(matrix, range(5, 20), strict=True):
        assert torch.allclose(row, decoder(frame, torch.full((40,), source), everyone, memory)[:, 0])
    changed = torch.nonzero(matrix != plain)
    assert {(int(r) + 5) * 40 + int(c) for r, c in changed} == {code for code in past if 5 <= code // 40 < 20}
    loss = bound.loss(decoder, embeddings(timeline), 0, Noise(0, epoch=1))
    (gradient,) = torch.autograd.grad(loss, decoder.weight)
    assert (gradient != 0).all()


def _codes(timeline: Timeline, step: int) -> list[int]:
    src, dst = timeline.events(step)
    return (src.long() * 40 + dst.long()).tolist()


def test_undirected_events_are_pairs_both_ways(record: TimelineRecord) -> None:
    both = LinkPrediction().bind(Timeline.from_record(replace(record, undirected=True)), TaskContext())
    one = LinkPrediction().bind(Timeline.from_record(record), TaskContext())
    codes = set(one._pairs[0].codes.tolist())
    assert set(both._pairs[0].codes.tolist()) == codes | {c % 40 * 40 + c // 40 for c in codes}


def test_seen_candidates_come_from_the_past(timeline: Timeline) -> None:
    bound = LinkPrediction(candidates="seen").bind(timeline, TaskContext())
    src, dst = timeline.events(0)
    assert set(bound._candidates(0).rows.tolist()) == set(src.tolist()) | set(dst.tolist())


def test_an_empty_target_step_is_skipped(timeline: Timeline) -> None:
    bound = LinkPrediction(split=(2, 1, 4)).bind(timeline, TaskContext())
    decoder, frames = ready(pair_decoder("mlp", 4, 1, 8)), embeddings(timeline)
    assert len(bound._pairs[2]) == 0
    assert bound.metrics(bound.measure(decoder, frames, 0, "val")) == {}


def test_link_prediction_needs_a_timeline(community: Graph, timeline: Timeline) -> None:
    with pytest.raises(DataError, match="needs a timeline"):
        LinkPrediction().bind(community, TaskContext())
    with pytest.raises(DataError, match="more than 9 steps"):
        LinkPrediction(horizon=9).bind(timeline, TaskContext())
    with pytest.raises(ConfigError, match=r"task\.negatives is 0"):
        LinkPrediction(negatives=0).bind(timeline, TaskContext())


def test_edge_classification_is_the_cross_entropy_of_events(timeline: Timeline) -> None:
    bound = EdgeClassification(split=(5, 1, 2)).bind(timeline, TaskContext())
    decoder = bound.decoder(4)
    decoder.reset_parameters(0, 9)
    decoder.double()
    frames = embeddings(timeline)
    scores, labels = [], []
    for step in range(5):
        src, dst = timeline.events(step)
        scores.append(decoder(frames[step], src.long(), dst.long()))
        labels.append(timeline.event_labels(step))
    expected = functional.cross_entropy(torch.cat(scores), torch.cat(labels))
    assert torch.allclose(bound.loss(decoder, frames, 0, Noise(0)), expected)
    with torch.no_grad():
        found = bound.metrics(bound.measure(decoder, frames, 0, "train"))
    predicted = torch.cat(scores).argmax(1)
    assert found["f1_micro"] == pytest.approx(reference.f1_score(torch.cat(labels), predicted, average="micro"))
    assert found["f1"] == pytest.approx(reference.f1_score(torch.cat(labels), predicted))
    assert found["f1_per_class"] == pytest.approx(
        reference.f1_score(torch.cat(labels), predicted, average=None).tolist()
    )


def test_edge_classification_needs_labels(record: TimelineRecord) -> None:
    with pytest.raises(DataError, match="edge_y"):
        EdgeClassification().bind(Timeline.from_record(replace(record, edge_y=None)), TaskContext())


def test_train_is_measured_on_its_last_steps_and_every_pair_is_scored_once(timeline: Timeline) -> None:
    bound = LinkPrediction("link-prediction").bind(timeline, TaskContext(0))
    decoder, frames = CountingDecoder(), torch.randn(timeline.steps, timeline.vertices, 4)
    most = min(8, len(bound.steps("val")))
    assert len(bound.steps("train")) > most
    train = bound.metrics(bound.measure(decoder, frames, 0, "train"))
    last = list(bound.steps("train"))[-most:]
    assert train["per_step"]["step"] == [step for step in last if len(bound._pairs[step])]
    decoder.steps.clear()
    for split in ("val", "test"):
        measured, counted = bound.measure_and_count(decoder, frames, 0, split)
        for sums, alone in (
            (measured.sums, bound.measure(CountingDecoder(), frames, 0, split).sums),
            (counted.sums, bound.count_scores(CountingDecoder(), frames, 0, split).sums),
        ):
            assert all(torch.equal(sums[name], alone[name]) for name in alone)
    assert len(decoder.steps) == len(bound.steps("val")) + len(bound.steps("test"))


def test_another_decoder_on_the_same_outputs_is_measured_anew(timeline: Timeline) -> None:
    bound = LinkPrediction(memory=0, decoder="bilinear").bind(timeline, TaskContext(0))
    frames = embeddings(timeline)
    decoder = ready(bound.decoder(4)).requires_grad_(False)
    first = bound.metrics(bound.measure(decoder, frames, 0, "val"))
    decoder.bilinear.neg_()
    assert bound.metrics(bound.measure(decoder, frames, 0, "val"))["map"] != first["map"]


def test_train_is_measured_on_its_last_steps_that_have_pairs() -> None:
    steps = torch.cat([torch.arange(10), torch.arange(16, 22)]).repeat_interleave(20)
    src, dst = torch.randint(0, 12, (2, steps.numel()), generator=torch.Generator().manual_seed(0))
    quiet = Timeline.from_events(src, dst, steps, period=1)
    bound = LinkPrediction(split=(14, 2, 5)).bind(quiet, TaskContext(0))
    frames = embeddings(quiet)
    measured = bound.metrics(bound.measure(ready(bound.decoder(4)).requires_grad_(False), frames, 0, "train"))
    assert measured["per_step"]["step"] == [7, 8]
    assert "train is measured on its last 2 steps" in bound.settings


@pytest.mark.parametrize("undirected", [False, True])
def test_bytes_of_memories_are_those_that_are_kept(undirected: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    src, dst = torch.randint(0, 9, (2, 200), generator=generator)
    steps = torch.randint(0, 12, (200,), generator=generator).sort().values
    timeline = Timeline.from_events(src, dst, steps, period=1, undirected=undirected)
    bound = LinkPrediction(memory=3).bind(timeline, TaskContext(0))
    ends = [bound._events(step)[0].numel() for step in range(11)]
    kept = sum(len(bound._remembered(step)["memory"].pairs) for step in range(11))
    most = max(sum(ends[max(0, step - 2) : step + 1]) for step in range(11))
    assert bound.remembered_bytes(1) == 32 * kept + 64 * most
    assert bound.remembered_bytes(2) == 32 * (kept // 2) + 64 * most
    assert LinkPrediction(memory=0).bind(timeline, TaskContext(0)).remembered_bytes(1) == 0


class CountingDecoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps: list[int] = []

    def forward(self, frame: torch.Tensor, src: torch.Tensor, dst: torch.Tensor, **more: object) -> torch.Tensor:
        self.steps.append(len(src))
        return (frame[src] * frame[dst]).sum(1, keepdim=True)


@pytest.mark.parametrize("sampling", ["uniform", "destinations"])
def test_where_no_vertex_was_seen_pairs_are_drawn_from_all(timeline: Timeline, sampling: str) -> None:
    bound = LinkPrediction(candidates="seen", sampling=sampling).bind(timeline, TaskContext())
    bound._first_seen = torch.full((timeline.vertices,), 99)
    src, dst = bound._sample(7, 0)
    assert src.numel() > 0
    everyone = LinkPrediction(sampling=sampling).bind(timeline, TaskContext())
    assert all(map(torch.equal, (src, dst), everyone._sample(7, 0)))
