"""Which pairs will be linked in the next snapshot: embeddings of step t score pairs of step t + horizon."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from trisect.errors import ConfigError, DataError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.noise import Noise
from trisect.tasks import metrics
from trisect.tasks.all_pairs import rank_all_pairs
from trisect.tasks.base import SPLITS, BoundTask, Frames, MeasuredRules, Split, Statistics, Task, TaskContext
from trisect.tasks.curves import count_pairs
from trisect.tasks.decoders import Block, PairDecoder, PairDecoderName, Remembering, pair_decoder
from trisect.tasks.division import Division
from trisect.tasks.pairs import Candidates, Memory, Pairs, sample, sample_destinations, sample_distinct
from trisect.tasks.rules.links import RULES, LinkRules
from trisect.tasks.splits import SplitSizes, notes_on_steps, split_steps

_MEASURES = ("map", "mrr", "auc")
_KEPT = 1 << 24  # remembered pairs of all steps that stay in memory
_REMEMBERED, _GATHERED = 32, 64  # bytes of a remembered pair, and of each event while a memory is made
_TRAIN_STEPS = 8
_FOR_ALL = 100  # sampled pairs a positive that stand for all, where probabilities are fitted


@dataclass(frozen=True)
class LinkPrediction(Task):
    """Binary cross entropy over the pairs of the next snapshot and sampled pairs that are not in it.

    Args:
        decoder: `mlp` (on the concatenation), `dot` or `bilinear`.
        hidden: width inside an `mlp` decoder.
        memory: the decoder reads beside the embeddings how often the pair itself was linked in so many steps, t among
            them, and how long ago; 0: it does not.
        horizon: how many steps ahead the pairs lie.
        negatives: sampled pairs a positive in training, new in each epoch.
        sampling: `uniform` draws both ends of a sampled pair; `destinations` keeps the source of the positive.
        eval_negatives: the same in evaluation, fixed for the whole run and uniform; or `all`: every ordered pair of
            vertices that is not linked, a vertex with itself included, as EvolveGCN evaluates (val and test only).
        candidates: whether pairs are sampled from `all` vertices or from those `seen` up to step t, or, before any
            was, from all.
        positive_weight, negative_weight: of a pair in the loss.
        average: over `pairs` (a step counts by the pairs that it scores, in the loss and in the measures) or `steps`.
        mrr: over source `rows`, as EvolveGCN counts (all positives of a source are ranked together), or `pairs` (each
            positive against the negatives of its source).
        split: fractions of the steps, or whole counts, for train, val and test in this order.
    """

    decoder: PairDecoderName = "mlp"
    hidden: int = 64
    memory: int = 20
    horizon: int = 1
    negatives: int = 1
    sampling: Literal["uniform", "destinations"] = "uniform"
    eval_negatives: int | Literal["all"] = 100
    candidates: Literal["all", "seen"] = "all"
    positive_weight: float = 1.0
    negative_weight: float = 1.0
    average: Literal["pairs", "steps"] = "pairs"
    mrr: Literal["rows", "pairs"] = "rows"
    split: SplitSizes = (0.7, 0.1, 0.2)

    def bind(self, data: Graph | Timeline, context: TaskContext) -> BoundLinkPrediction:
        """The data must be a timeline of more than `horizon` steps."""
        if not isinstance(data, Timeline):
            raise DataError(f"task {self.name} needs a timeline, and the data are one graph; give events with times.")
        for option, least in (("horizon", 1), ("negatives", 1), ("memory", 0)):
            if getattr(self, option) < least:
                raise ConfigError(f"task.{option} is {getattr(self, option)}; it must be at least {least}.")
        if isinstance(self.eval_negatives, int) and self.eval_negatives < 1:
            raise ConfigError(f"task.eval_negatives is {self.eval_negatives}; it must be at least 1, or all.")
        if data.steps <= self.horizon:
            raise DataError(
                f"task {self.name} with horizon {self.horizon} needs more than {self.horizon} steps, and the"
                f" timeline has {data.steps}; use a shorter period."
            )
        return BoundLinkPrediction(self, data, context)

    def outputs(self, data: Graph | Timeline) -> int:
        """A pair has one score."""
        return 1

    def make_decoder(self, channels: int, outputs: int) -> PairDecoder:
        """The decoder scores pairs, and reads the memory of pairs where the task has one."""
        decoder = pair_decoder(self.decoder, channels, outputs, self.hidden)
        return Remembering(decoder) if self.memory else decoder

    def columns(self, decoder: nn.Module | None, frames: Tensor) -> dict[str, Tensor]:
        """`embedding` [steps, rows, channels]; scores of pairs come from the decoder on them."""
        return {"embedding": frames}


class BoundLinkPrediction(BoundTask):
    """This is link prediction on one timeline."""

    monitor = "val.map"
    cheap = False
    reads_pairs = True

    def __init__(self, task: LinkPrediction, timeline: Timeline, context: TaskContext) -> None:
        self.task, self.timeline, self.context = task, timeline, context
        targets = timeline.event_counts()[task.horizon :].tolist()
        self.runs = split_steps(timeline.steps - task.horizon, task.split, targets)
        self.notes = notes_on_steps(self.runs, targets, task.split, "event", shift=task.horizon)
        self._pairs = {step: self._read_pairs(step) for run in self.runs.values() for step in run}
        everyone = torch.arange(timeline.vertices) if context.vertices is None else torch.argsort(context.vertices)
        self._everyone = Candidates(timeline.vertices, everyone.to(timeline.device))
        self._first_seen = first_seen(timeline) if task.candidates == "seen" else None
        self._negatives: dict[int, tuple[Tensor, Tensor]] = {}
        self._memories: dict[int, Memory] = {}
        self._remembered_pairs = 0
        self._filled = sum(len(self._pairs[step]) > 0 for step in self.runs["train"])
        if task.memory == type(task).memory:
            self.settings = f"task.memory {task.memory}, the default: a pair's own last {task.memory} steps are read"
        last = self.measured_steps("train")
        if len(last) < self._filled:
            self.settings += f"{'; ' if self.settings else ''}train is measured on its last {len(last)} steps"
        self._division: Division | None = None
        self._drawn: dict[Any, Any] = {}
        counts = {name: sum(len(self._pairs[step]) for step in self.runs[name]) for name in SPLITS}
        if counts["train"] == 0:
            raise DataError("the training steps have no pair to predict; check task.split and the period.")
        self._constant = float(counts["train"] * (1 + task.negatives))
        if task.eval_negatives == "all":
            self.final = ("val", "test")  # the train steps would take longer than the training

    def _events(self, step: int) -> tuple[Tensor, Tensor]:
        src, dst = self.timeline.events(step)
        if self.timeline.undirected:
            src, dst = torch.cat([src, dst]), torch.cat([dst, src])
        return src.long(), dst.long()

    def _read_pairs(self, step: int) -> Pairs:
        return Pairs.of(*self._events(step + self.task.horizon), self.timeline.vertices)

    def _candidates(self, step: int) -> Candidates:
        if self._first_seen is None:
            return self._everyone
        rows = self._everyone.rows
        seen = rows[self._first_seen[rows] <= step]
        return Candidates(self.timeline.vertices, seen if seen.numel() else rows)

    def decoder(self, channels: int) -> PairDecoder:
        """The decoder scores pairs, and reads the memory of pairs where the task has one."""
        return self.task.make_decoder(channels, 1)

    def _remembered(self, step: int) -> dict[str, Any]:
        """The decoder reads these arguments at a step, beside the embeddings."""
        if not self.task.memory:
            return {}
        if step not in self._memories:
            last = range(step, max(-1, step - self.task.memory), -1)
            codes = [src * self.timeline.vertices + dst for src, dst in map(self._events, last)]
            memory = Memory.gather(codes, self.timeline.vertices)
            if self._remembered_pairs + len(memory.pairs) > _KEPT:  # is made again whenever it is read
                return {"memory": memory}
            self._remembered_pairs += len(memory.pairs)
            self._memories[step] = memory
        return {"memory": self._memories[step]}

    def steps(self, split: Split) -> range:
        """A split has the steps whose embeddings score its pairs."""
        return self.runs[split]

    def measured_steps(self, split: Split) -> Sequence[int]:
        """Return the steps that a split is measured on: of train the last that have pairs, as many as val has, at
        most 8.

        All of them would take longer than the training.
        """
        steps = self.runs[split]
        if split != "train":
            return steps
        filled = [step for step in steps if len(self._pairs[step])]
        return filled[-min(_TRAIN_STEPS, max(1, len(self.runs["val"]))) :]

    def remembered_bytes(self, times: int) -> int:
        """Return the bytes of the memories of pairs that are kept, where steps are dealt to `times` ranks, and of one
        while it is made.
        """
        kept, events = self._remembered_sizes
        return _REMEMBERED * min(_KEPT, kept // times) + _GATHERED * events

    @cached_property
    def _remembered_sizes(self) -> tuple[int, int]:
        """The pairs in the memories of all steps, and the most events that one is made of."""
        reach, steps = self.task.memory, max(run.stop for run in self.runs.values())
        if not reach:
            return 0, 0
        ends = [self._events(step) for step in range(steps)]
        counts = torch.tensor([src.numel() for src, _ in ends])
        # every code with its step, in ascending order
        codes, step = torch.sort(torch.cat([src * self.timeline.vertices + dst for src, dst in ends]), stable=True)
        step = torch.arange(steps).repeat_interleave(counts)[step.cpu()]
        # a memory has a pair from an event on, until the next one, as far as it reaches, or to the end
        until = torch.full_like(step, steps)
        until[:-1] = torch.where((codes[1:] == codes[:-1]).cpu(), step[1:], steps)
        kept = int((until - step).clamp(max=reach).sum())
        return kept, int(torch.cat([counts, counts.new_zeros(reach)]).unfold(0, reach, 1).sum(1).max())

    def scored_pairs(self, split: Split, *, training: bool) -> list[int]:
        """Those that exist and the sampled ones; where all pairs are ranked, a block at a time, none are kept."""
        each = self.task.negatives if training else self.task.eval_negatives
        return [0 if each == "all" else len(self._pairs[step]) * (1 + int(each)) for step in self.runs[split]]

    def _bce(self, positive: Tensor, negative: Tensor) -> Tensor:
        return (
            self.task.positive_weight * functional.softplus(-positive).sum()
            + self.task.negative_weight * functional.softplus(negative).sum()
        )

    def divide(self, starts: Sequence[int], part_index: int) -> BoundLinkPrediction:
        """A part scores the pairs whose source it owns."""
        part = copy(self)
        part._division, part._drawn = Division(tuple(starts), part_index), {}
        return part

    def wanted(self, step: int, noise: Noise) -> list[Tensor] | None:
        """Each part reads the destinations of the pairs that it scores."""
        if self._division is None:
            return None
        if step not in self.runs["train"] or not len(self._pairs[step]):
            return [torch.zeros(0, dtype=torch.int64, device=self.timeline.device)] * self._division.parts
        ends = self.draw(step, noise)
        # asked for before the loss, after it, and by it; how many rows there are is read from the device
        if ("remote", step) not in self._drawn:
            self._drawn["remote", step] = self._division.remote(*ends)
        remote: list[Tensor] = self._drawn["remote", step]
        return remote

    def loss(self, decoder: nn.Module | None, frames: Frames, first_step: int, noise: Noise) -> Tensor:
        """Weighted binary cross entropy, the mean over pairs or over steps."""
        score = cast(PairDecoder, decoder)
        total = frames[0].new_zeros(())
        for position, frame in enumerate(frames):
            step = first_step + position
            if step not in self.runs["train"] or not len(self._pairs[step]):
                continue
            src, dst = self.draw(step, noise)
            exists, count = len(self._pairs[step]), src.numel()
            more = self._remembered(step)
            if self._division is not None:
                mine = self._division.mine(src)
                remote = (self.wanted(step, noise) or [])[self._division.part_index]
                exists, src, dst = int(mine[:exists].sum()), src[mine], dst[mine]
                if more:
                    more = {**more, "codes": src * self.timeline.vertices + dst}
                src, dst = self._division.local(src, dst, remote)
            logits = score(frame, src, dst, **more)[:, 0]
            part = self._bce(logits[:exists], logits[exists:])
            total = total + (part / count if self.task.average == "steps" else part)
        return total / (self._filled if self.task.average == "steps" else self._constant)

    def draw(self, step: int, noise: Noise) -> tuple[Tensor, Tensor]:
        """Give the ends of the pairs of a training step, those that exist first and then the sampled ones."""
        pairs = self._pairs[step]
        if self._division is None:
            src, dst = self._sample(noise.at(step=step).key("negatives"), step)
            return torch.cat([pairs.src, src]), torch.cat([pairs.dst, dst])
        # asked for when rows are fetched, and again for the loss
        if self._drawn.get("epoch") != noise.epoch:
            self._drawn = {"epoch": noise.epoch}
        if step not in self._drawn:
            src, dst = self._sample(noise.at(step=step).key("negatives"), step)
            self._drawn[step] = torch.cat([pairs.src, src]), torch.cat([pairs.dst, dst])
        pairs_and_negatives: tuple[Tensor, Tensor] = self._drawn[step]
        return pairs_and_negatives

    def _sample(self, key: int, step: int) -> tuple[Tensor, Tensor]:
        pairs, among, each = self._pairs[step], self._candidates(step), self.task.negatives
        if self.task.sampling == "destinations":
            return sample_destinations(key, each, among, pairs, self.context.vertices)
        return sample(key, len(pairs) * each, among, pairs)

    def _judge(
        self, score: PairDecoder, frames: Tensor, first_step: int, step: int, scored: dict[int, Tensor]
    ) -> dict[str, float]:
        """Return the measures of a step, its loss as a sum, and over how many pairs."""
        if self.task.eval_negatives == "all":
            return self._rank(score.blocks(frames[step - first_step], **self._remembered(step)), step)
        src, dst, labels = self._asked(step)
        scored[step] = score(frames[step - first_step], src, dst, **self._remembered(step))[:, 0]
        return self._compare(scored[step], labels, src)

    def _rank(self, block: Block, step: int) -> dict[str, float]:
        """Give what `_judge` does, from the scores of all pairs."""
        task, vertices = self.task, self.timeline.vertices
        weights = (task.positive_weight, task.negative_weight)
        return {
            **rank_all_pairs(block, vertices, self._pairs[step], task.mrr, weights),
            "pairs": float(vertices**2),
        }

    def _compare(self, scores: Tensor, labels: Tensor, sources: Tensor) -> dict[str, float]:
        """Give what `_judge` does, from the scores of the pairs that exist and of the sampled ones."""
        return {
            **metrics.link_measures(scores, labels, sources, self.task.mrr),
            "loss": float(self._bce(scores[labels == 1].double(), scores[labels == 0].double())),
            "pairs": float(scores.numel()),
        }

    def _asked(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Give the pairs that exist and the sampled ones of a step: sources, destinations, labels."""
        pairs = self._pairs[step]
        if step not in self._negatives:
            key = Noise(self.context.seed, epoch=0, step=step).key("evaluation negatives")
            wanted = len(pairs) * int(self.task.eval_negatives)
            self._negatives[step] = sample_distinct(key, wanted, self._candidates(step), pairs)
        src, dst = self._negatives[step]
        sources = torch.cat([pairs.src, src])
        labels = torch.zeros_like(sources)
        labels[: len(pairs)] = 1
        return sources, torch.cat([pairs.dst, dst]), labels

    @torch.no_grad()
    def validation_scores(self, decoder: nn.Module | None, frame: Tensor, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Give scores, labels and weights of the pairs by which a step is judged, float64 [pairs] each.

        A sampled pair weighs as many as it stands for, so that all pairs of candidates weigh what they are: one each.
        """
        pairs, among = self._pairs[step], self._candidates(step)
        wanted = copy(self) if self.task.eval_negatives == "all" else self
        if wanted is not self:
            wanted.task, wanted._negatives = replace(self.task, eval_negatives=_FOR_ALL), {}
        src, dst, labels = wanted._asked(step)
        scores = cast(PairDecoder, decoder)(frame, src, dst, **self._remembered(step))[:, 0]
        weights = torch.ones_like(scores, dtype=torch.float64)
        sampled = scores.numel() - len(pairs)
        if sampled:
            weights[len(pairs) :] = max(1.0, (among.size * (among.size - 1) - len(pairs)) / sampled)
        return scores.double().cpu(), labels.double().cpu(), weights.cpu()

    @torch.no_grad()
    def count_scores(self, decoder: nn.Module | None, frames: Tensor, first_step: int, split: Split) -> Statistics:
        """Count the scores of the split's pairs, of all pairs those that are sampled to stand for them."""
        return self._count_scores(decoder, frames, first_step, split, {})

    def _count_scores(
        self, decoder: nn.Module | None, frames: Tensor, first_step: int, split: Split, scored: dict[int, Tensor]
    ) -> Statistics:
        ratio = self.task.negatives * self.task.negative_weight / max(self.task.positive_weight, 1e-12)
        statistics = Statistics()
        for step in range(first_step, first_step + len(frames)):
            if step not in self.runs[split] or not len(self._pairs[step]):
                continue
            if step in scored:
                scores, labels = scored[step], self._asked(step)[2]
            else:
                scores, labels, _ = self.validation_scores(decoder, frames[step - first_step], step)
            statistics = statistics.merge(count_pairs(scores.double(), labels.double(), max(ratio, 1e-12)))
        return statistics

    def measure(self, decoder: nn.Module | None, frames: Tensor, first_step: int, split: Split) -> Statistics:
        """Each measure becomes a vector with one entry a step of the timeline."""
        return self._measure(decoder, frames, first_step, split, {})

    def _measure(
        self, decoder: nn.Module | None, frames: Tensor, first_step: int, split: Split, scored: dict[int, Tensor]
    ) -> Statistics:
        score, sums = cast(PairDecoder, decoder), self._no_sums()
        measured = self.measured_steps(split)
        for step in range(first_step, first_step + len(frames)):
            if step not in measured or not len(self._pairs[step]):
                continue
            for name, value in {**self._judge(score, frames, first_step, step, scored), "filled": 1.0}.items():
                sums[name][step] = value
        return Statistics(sums)

    @torch.no_grad()
    def measure_and_count(
        self, decoder: nn.Module | None, frames: Tensor, first_step: int, split: Split
    ) -> tuple[Statistics, Statistics]:
        """Return what `measure` and `count_scores` do; pairs are scored once for both."""
        scored: dict[int, Tensor] = {}
        measured = self._measure(decoder, frames, first_step, split, scored)
        return measured, self._count_scores(decoder, frames, first_step, split, scored)

    def _no_sums(self) -> dict[str, Tensor]:
        names = (*_MEASURES, "loss", "pairs", "filled")
        return {name: torch.zeros(self.timeline.steps, dtype=torch.float64) for name in names}

    @torch.no_grad()
    def simple_rules(self, data: Graph | Timeline) -> MeasuredRules:
        """Measure EdgeBank, recency and popularity on the pairs that the model is measured by."""
        window = max(1, len(self.runs["test"]))
        rules = LinkRules(self._events, self.timeline.steps, self.timeline.vertices, window)
        judged: tuple[Split, ...] = ("val", "test")
        measured = {split: {name: Statistics(self._no_sums()) for name in RULES} for split in judged}
        steps = [(split, step) for split in judged for step in self.runs[split] if len(self._pairs[step])]
        for split, step in steps:
            ends = None if self.task.eval_negatives == "all" else self._asked(step)[:2]
            asked = self.timeline.vertices**2 if ends is None else ends[0].numel()
            for name, measures in rules.judge(step, self._pairs[step], ends, self.task.mrr).items():
                for key, value in {**measures, "pairs": float(asked), "filled": 1.0}.items():
                    measured[split][name].sums[key][step] = value
        return MeasuredRules(measured)

    def rule_metrics(self, statistics: Statistics) -> dict[str, float | None]:
        """Return the measures of a simple rule; its scores are no logits, so that it has no loss."""
        return {name: value for name, value in super().rule_metrics(statistics).items() if name != "loss"}

    def metrics(self, statistics: Statistics) -> dict[str, Any]:
        """loss, map, mrr, auc: averaged over the steps that have pairs; and `per_step`, a list each."""
        if not statistics.sums or not bool(statistics.sums["filled"].any()):
            return {}
        steps = torch.nonzero(statistics.sums["filled"])[:, 0]
        pairs = statistics.sums["pairs"][steps]
        weight = pairs if self.task.average == "pairs" else torch.ones_like(pairs)
        loss = statistics.sums["loss"][steps] / pairs
        measures: dict[str, Any] = {"loss": float((loss * weight).sum() / weight.sum())}
        for name in _MEASURES:
            measures[name] = float((statistics.sums[name][steps] * weight).sum() / weight.sum())
        measures["per_step"] = {name: statistics.sums[name][steps].tolist() for name in _MEASURES}
        measures["per_step"]["step"] = steps.tolist()
        return measures

    def predict(self, decoder: nn.Module | None, frames: Tensor, first_step: int) -> dict[str, Tensor]:
        """`embedding` [steps, rows, channels]; scores of pairs come from the decoder on them."""
        return self.task.columns(decoder, frames)


def first_seen(timeline: Timeline) -> Tensor:
    """Give the first step at which each row has an event; int64 [vertices], `steps` where it never has."""
    first_step = torch.full((timeline.vertices,), timeline.steps, dtype=torch.int64, device=timeline.device)
    for step in range(timeline.steps - 1, -1, -1):
        for ends in timeline.events(step):
            first_step[ends.long()] = step
    return first_step
