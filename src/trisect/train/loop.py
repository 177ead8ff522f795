"""The epoch loop: full batch, exact evaluation, early stopping, a state that resumes to the bit."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from trisect.config import TrainOptions
from trisect.errors import CheckpointError, RunError, StoppedError
from trisect.schedule.action import Action, Verb
from trisect.tasks.base import SPLITS, Split, Statistics
from trisect.tasks.curves import summarise as summarise_scores
from trisect.tasks.metrics import LOWER_IS_BETTER, defined
from trisect.train.guard import Guard
from trisect.train.optimiser import LearningRate, Optimiser
from trisect.train.processes.memory import PssWatch, peak_rss_bytes, watched_memory
from trisect.train.processes.stopping import StopRequest
from trisect.train.program import Program
from trisect.train.run.state import REMEDY, require_state
from trisect.train.setup import Setup

EXPLOSION = 1e4
SHORT = 0.25  # of the grace; an epoch that lasts no longer ends in time
SILENCE = 5.0  # seconds between two lines of a long evaluation


def improves(monitor: str, value: float | None, best: float | None) -> bool:
    """Whether a value of the monitored measure is better than the best so far; where nothing was measured, it is."""
    if value is None or math.isnan(value):
        return best is None
    if best is None:
        return True
    return value < best if monitor.partition(".")[2] in LOWER_IS_BETTER else value > best


class Recorder(Protocol):
    """An object that keeps what a run tells."""

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Keep an epoch's `epoch` (1, 2, …), `loss`, `lr`, `seconds`, `sent_bytes` of all ranks together and
        `peak_rss_bytes` of the rank that holds most, and where evaluated `train`, `val`, `test`.
        """

    def event(self, name: str, start: float, seconds: float, **fields: Any) -> None:
        """Keep an action that ran."""

    def checkpoint(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *, best: bool) -> None:
        """Keep the state after meta["epoch"] epochs; `best` where that epoch is the best so far."""


class Offer(Protocol):
    """A function that takes a state, as `Recorder.checkpoint` does, and copies it before it returns."""

    def __call__(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *, best: bool) -> None:
        """Take the state after meta["epoch"] epochs."""


class NoRecorder:
    """A recorder that keeps nothing."""

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Do nothing with an epoch's record."""

    def event(self, name: str, start: float, seconds: float, **fields: Any) -> None:
        """Do nothing with an action that ran."""

    def checkpoint(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *, best: bool) -> None:
        """Do nothing with the state after an epoch."""


class EpochsOnly(NoRecorder):
    """A recorder that hands epochs on and keeps nothing."""

    def __init__(self, on_epoch: Callable[[Mapping[str, Any]], None]) -> None:
        self._on_epoch = on_epoch

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Hand the record of the epoch on."""
        self._on_epoch(record)


class WithCopies(NoRecorder):
    """Hands everything on to a recorder, and tensors of a checkpoint as copies that it may keep."""

    def __init__(self, recorder: Recorder) -> None:
        self.epoch, self.event = recorder.epoch, recorder.event  # type: ignore[method-assign]
        self._recorder = recorder

    def checkpoint(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *, best: bool) -> None:
        """Hand copies of the state after an epoch on."""
        self._recorder.checkpoint({name: value.clone() for name, value in tensors.items()}, meta, best=best)


class Several:
    """Tells several recorders, one after the other."""

    def __init__(self, *recorders: Recorder) -> None:
        self._recorders = recorders

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Hand an epoch's record to every recorder."""
        for recorder in self._recorders:
            recorder.epoch(record)

    def event(self, name: str, start: float, seconds: float, **fields: Any) -> None:
        """Hand an action that ran to every recorder."""
        for recorder in self._recorders:
            recorder.event(name, start, seconds, **fields)

    def checkpoint(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *, best: bool) -> None:
        """Hand the state after an epoch to every recorder."""
        for recorder in self._recorders:
            recorder.checkpoint(tensors, meta, best=best)


@dataclass(eq=False)
class Result:
    """All that was measured in a finished run, and the trained modules.

    Attributes:
        loss: the training loss of each epoch, those before a resume included.
        metrics: `train`, `val`, `test` → measures, with the parameters of the best epoch.
        best_epoch: its number; `best_value`: what was monitored.
        seconds: of each epoch in this process, evaluation apart; `evaluation_seconds`: all evaluations together.
        communication, transfer, memory, staleness: as summary.json has them.
        modules: `model` and `decoder`, with the parameters of the best epoch.
        scores: val, test → what a report draws of the scores, as scores.json has it; empty where a task counts none.
        program: that was run; None where that was done by other processes.
    """

    loss: list[float]
    metrics: dict[str, dict[str, Any]]
    epochs: int
    best_epoch: int
    best_value: float | None
    monitor: str
    seconds: list[float]
    evaluation_seconds: float
    communication: dict[str, Any]
    transfer: dict[str, int]
    memory: dict[str, Any]
    modules: nn.ModuleDict
    program: Program | None = field(repr=False)
    stopped_early: bool = False
    staleness: dict[str, Any] | None = None
    scores: dict[str, Any] = field(default_factory=dict)


class Trainer:
    """The loop and its state: parameters, optimiser, epoch, best so far. State lives here and nowhere else.

    Args:
        recorder_copies: whether the recorder copies the tensors of a checkpoint before it returns, so that it may be
            given the trainer's own.
        stop: says whether this process was asked to end; the run then stops on all ranks after the same epoch.
        offer: takes a state in the middle of an epoch that may last longer than there is time to end.
        say: takes sentences for the user, such as how far a long evaluation is.
    """

    def __init__(
        self,
        setup: Setup,
        options: TrainOptions,
        recorder: Recorder,
        *,
        recorder_copies: bool = False,
        stop: StopRequest | None = None,
        offer: Offer | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.setup, self.options, self.recorder = setup, options, recorder
        self._recorder_copies, self._stop, self._offer, self._say = recorder_copies, stop, offer, say
        self._saved, self._longest = 0, 0.0
        self.program = setup.program
        self.modules = setup.modules
        self.optimiser = Optimiser(
            options.optimiser,
            dict(self.modules.named_parameters()),
            setup.conv_parameters,
            lr=options.lr,
            weight_decay=options.weight_decay,
            momentum=options.momentum,
            nesterov=options.nesterov,
        )
        self.lr = LearningRate(options.lr, options.lr_schedule, options.epochs)
        self.monitor = options.monitor or setup.task.monitor
        self.ledger = self.program.ledger
        self.guard = Guard.of(self.program, self.modules, self.optimiser)
        self.done = 0
        self.loss: list[float] = []
        self.best_value: float | None = None
        self.best_epoch = 0
        self.best: dict[str, Tensor] = {}
        self.stale = 0
        self._current = math.nan

    def run(self) -> Result:
        """Train until the last epoch, or until patience ends."""
        with watched_memory() as memory:
            return self._run(memory)

    def _run(self, memory: PssWatch) -> Result:
        options, seconds, evaluating = self.options, [], 0.0
        # of the latest epoch that brought snapshots to the device: where they are kept, that is the preparation
        transfer = {"full_bytes": self.ledger.full_bytes, "sent_bytes": self.ledger.sent_bytes}
        sent: dict[str, int] = self.ledger.by_axis()
        while self.done < options.epochs and not self._out_of_patience():
            epoch = self.done + 1
            evaluating += self._guard_before(epoch)
            begin = time.perf_counter()
            self.train_epoch(epoch)
            if not math.isfinite(self._current) or self._explodes():
                self._rescue(epoch)
                continue
            seconds.append(time.perf_counter() - begin)
            self.done = epoch
            self.loss.append(self._current)
            sent = self.ledger.by_axis()
            if self.ledger.sent_bytes:
                transfer = {"full_bytes": self.ledger.full_bytes, "sent_bytes": self.ledger.sent_bytes}
            record: dict[str, Any] = {
                "epoch": epoch,
                "loss": self._current,
                "lr": self.lr.at(epoch),
                "seconds": seconds[-1],
                "sent_bytes": self.program.sent_bytes,
                "peak_rss_bytes": self.program.peak_bytes,
                **self._guard_after(epoch),
            }
            self._longest = max(self._longest, seconds[-1])
            improved = False
            if epoch % options.eval_every == 0:
                # and not after the last one, which for a run that is resumed later is none
                begin = time.perf_counter()
                measured = self.evaluate(self._splits_between(), epoch=epoch)
                evaluating += time.perf_counter() - begin
                record.update(measured)
                improved = self._judge(measured, epoch)
            self.recorder.epoch(record)
            last = epoch == options.epochs or self._out_of_patience()
            stops = self.program.stops and not last
            if last or stops or (options.checkpoint_every is not None and epoch % options.checkpoint_every == 0):
                self._saved = epoch
                tensors = self.state_tensors(copied=not self._recorder_copies)
                self.recorder.checkpoint(tensors, self.state_meta(), best=improved)
            if stops:
                raise StoppedError(f"Stopped after epoch {epoch}, as asked (SIGTERM).")
        self._take_best()
        begin = time.perf_counter()
        metrics, scores = self._evaluate_last()
        evaluating += time.perf_counter() - begin
        return Result(
            loss=self.loss,
            metrics=metrics,
            epochs=self.done,
            best_epoch=self.best_epoch or self.done,
            best_value=self.best_value,
            monitor=self.monitor,
            seconds=seconds,
            evaluation_seconds=evaluating,
            communication=self._communication(sent),
            transfer={key: int(self.program.total(float(size))) for key, size in transfer.items()},
            memory=self._memory(memory),
            modules=self.modules,
            program=self.program,
            stopped_early=self.done < options.epochs,
            staleness=self._staleness(),
            scores=scores,
        )

    def train_epoch(self, epoch: int) -> float:
        """Run one epoch (1, 2, …): forward, backward, step. Return its loss."""
        self.ledger.clear()
        door = self.program.engine.door
        for batch in self.program.batches(epoch):
            self.optimiser.zero_grad()
            self.program.begin(epoch, batch)
            # a state is offered as it was before the epoch
            offers = self._offer is not None and (batch is None or batch.number == 0)
            door.heed = self._heed if offers else None
            self.program.run(self if offers else self.recorder, epoch=epoch)
            door.heed = None
            if batch is not None and not batch.is_last:
                self.program.end_step()
                self._step()
        start, clock = time.time(), time.perf_counter()
        self._current = self.program.finish(asked_to_stop=self._stop is not None and self._stop.asked)
        if math.isfinite(self._current):
            self._step()
        name = Action(Verb.STEP, self.program.mesh.stage_index).text
        self.recorder.event(name, start, time.perf_counter() - clock, epoch=epoch)
        return self._current

    def _step(self) -> None:
        if self.options.clip is not None:
            self.optimiser.clip(self.options.clip, self.program.total_square)
        self.optimiser.step(self.lr.at(self.done + 1))

    def event(self, name: str, start: float, seconds: float, **fields: Any) -> None:
        """Hand an action of a pass to the recorder; where this process was asked to end, keep the state there is."""
        self.recorder.event(name, start, seconds, **fields)
        self._heed()

    def _heed(self) -> None:
        """Offer the state where this process was asked to end: in every verb, and after every action.

        The optimizer steps behind the pass: here the state is that of the epoch before. History changes with every
        action.
        """
        if self._offer is None or self._stop is None or not self._stop.asked:
            return
        long = self._longest > SHORT * self.options.grace
        if long and self._saved < self.done and self.program.history is None:
            self._saved = self.done
            self._offer(self.state_tensors(copied=False), self.state_meta(), best=self.best_epoch == self.done)

    def _memory(self, watch: PssWatch) -> dict[str, list[int] | None]:
        own = watch.peak()
        pss = self.program.listed(math.nan if own is None else float(own))
        return {
            "peak_rss_bytes": [int(peak) for peak in self.program.listed(float(peak_rss_bytes()))],
            "peak_pss_bytes": None if any(map(math.isnan, pss)) else [int(peak) for peak in pss],
        }

    def _communication(self, sent: Mapping[str, int]) -> dict[str, Any]:
        by_axis = {axis: int(self.program.total(float(size))) for axis, size in sent.items()}
        return {
            "bytes_per_epoch": sum(by_axis.values()),
            "by_axis": by_axis,
            "by_rank": [int(size) for size in self.program.listed(float(sum(sent.values())))],
            "formula_bytes_per_epoch": self.program.formula_bytes,
        }

    def _guard_before(self, epoch: int) -> float:
        """Let the guard prepare an epoch; give the seconds that it took."""
        if self.guard is None:
            return 0.0
        begin = time.perf_counter()
        self.guard.before(epoch)
        return time.perf_counter() - begin

    def _guard_after(self, epoch: int) -> dict[str, Any]:
        """Give what the guard says about an epoch, for its record."""
        told = None if self.guard is None else self.guard.after(epoch, self._current, self.loss[0])
        if told is None:
            return {}
        if "stepped_in" in told:
            self._stepped_in(told["stepped_in"])
        return {"guard": told}

    def _explodes(self) -> bool:
        """Say whether the loss is finite and so large that nothing is learnt any more."""
        if not self.options.guard or not self.loss or not math.isfinite(self._current):
            return False
        return self._current > EXPLOSION * max(1.0, abs(self.loss[0]))

    def _rescue(self, epoch: int) -> None:
        """Let the guard act after a loss that is not finite, or raise a RunError."""
        action = None if self.guard is None else self.guard.rescue(epoch, self._current)
        if action is None:
            exploded = f", more than {EXPLOSION:,.0f} times that of the first epoch" if self._explodes() else ""
            off = ", or set train.guard: false" if exploded else ""
            raise RunError(
                f"the loss of epoch {epoch} is {self._current:.6g}{exploded}; lower train.lr (now"
                f" {self.lr.at(epoch):g}), set train.clip, or check the features for huge values{off}."
            )
        self._stepped_in(action)

    def _stepped_in(self, action: Mapping[str, Any]) -> None:
        self.stale = 0
        self.recorder.event("guard", time.time(), 0.0, **action)
        warnings.warn(
            f"Stale training left the exact one at epoch {action['epoch']} ({action['why']}); back to the state after"
            f" epoch {action['back_to']}, then {action['then']}.",
            stacklevel=2,
        )

    def _staleness(self) -> dict[str, Any] | None:
        staleness = self.program.staleness()
        if staleness is None:
            return None
        guarded = {"loss": None, "checks": 0, "stepped_in": []} if self.guard is None else self.guard.summary()
        return {**staleness, **guarded}

    def evaluate(self, splits: tuple[Split, ...], epoch: int) -> dict[str, dict[str, Any]]:
        """Give the measures of these splits with the parameters as they are; nothing is dropped."""
        measured, _ = self._measure(splits, epoch)
        return {split: defined(self.setup.task.metrics(measured[split])) for split in splits}

    def _evaluate_last(self) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
        """Give the measures at the end, and what a report draws of the scores on val and test."""
        splits = self.setup.task.final
        if not self.setup.task.cheap:
            self._say(f"Measuring {', '.join(splits)} with the parameters of epoch {self.best_epoch or self.done}.")
        counted = tuple(split for split in splits if split != "train")
        measured, scores = self._measure(splits, self.done, counted)
        pictures = {split: summarise_scores(scores[split]) for split in counted}
        return (
            {split: defined(self.setup.task.metrics(measured[split])) for split in splits},
            {split: picture for split, picture in pictures.items() if picture is not None},
        )

    def _measure(
        self, splits: tuple[Split, ...], epoch: int, counted: tuple[Split, ...] = ()
    ) -> tuple[dict[Split, Statistics], dict[Split, Statistics]]:
        """Run an exact pass; give what was measured of `splits` on all ranks, and the scores of `counted`."""
        task = self.program.task
        measured = {split: Statistics() for split in splits}
        scores = {split: Statistics() for split in counted}
        steps = range(min(task.steps(s).start for s in splits), max(task.steps(s).stop for s in splits))
        outputs = self.program.outputs(steps, observer=self.recorder, epoch=epoch, evaluation=True)
        with torch.no_grad():
            for first, frames in self._step_by_step(outputs, steps):
                for split in splits:
                    here = range(max(first, task.steps(split).start), min(first + len(frames), task.steps(split).stop))
                    if here and split in counted:
                        part, counts = task.measure_and_count(self.program.decoder, frames, first, split)
                        measured[split], scores[split] = measured[split].merge(part), scores[split].merge(counts)
                    elif here:
                        part = task.measure(self.program.decoder, frames, first, split)
                        measured[split] = measured[split].merge(part)
        return self.program.merged(measured), self.program.merged(scores) if counted else {}

    def _step_by_step(self, outputs: Iterable[tuple[int, Tensor]], steps: range) -> Iterator[tuple[int, Tensor]]:
        """Yield outputs as they come; of tasks whose measures take long a step at a time, and say now and then how far
        they are.
        """
        last = time.monotonic()
        for first, frames in outputs:
            if self.setup.task.cheap:
                yield first, frames
                continue
            for position in range(len(frames)):
                yield first + position, frames[position : position + 1]
                if time.monotonic() - last > SILENCE:
                    last = time.monotonic()
                    self._say(f"Measured step {first + position - steps.start + 1} of {len(steps)}.")

    def _splits_between(self) -> tuple[Split, ...]:
        """Give all splits where measuring costs little; otherwise validation, and the one that is monitored."""
        if self.setup.task.cheap:
            return SPLITS
        return tuple(split for split in SPLITS if split in ("val", self.monitor.partition(".")[0]))

    def _judge(self, measured: Mapping[str, Mapping[str, Any]], epoch: int) -> bool:
        """Say whether this is the best epoch so far; without anything to compare, the newest is."""
        split, _, name = self.monitor.partition(".")
        values = measured.get(split, {})
        value = values.get(name)
        improved = improves(self.monitor, value, self.best_value)
        value = None if value is None or math.isnan(value) else value
        if improved:
            self.best_value, self.best_epoch = value, epoch
            self.best = {key: tensor.detach().clone() for key, tensor in self.modules.state_dict().items()}
        self.stale = 0 if improved else self.stale + 1
        self.lr.evaluated(improved)
        return improved

    def _out_of_patience(self) -> bool:
        return self.options.patience is not None and self.stale >= self.options.patience

    def _take_best(self) -> None:
        if self.best:
            self.modules.load_state_dict(self.best)

    def state_tensors(self, *, copied: bool = True) -> dict[str, Tensor]:
        """Give `model.…`, `decoder.…` as they are, `best.…` of the best epoch, `optimiser.…`.

        Args:
            copied: False: the trainer's own tensors, which the next epoch changes (`best.…` and `good.…` it does not).
        """
        own = self.modules.state_dict()
        # files hold a tied parameter under each of its names, and refuse two names of the same memory
        first = {tensor.data_ptr(): key for key, tensor in reversed(own.items())}
        tensors = {
            key: tensor.detach().clone() if copied or first[tensor.data_ptr()] != key else tensor.detach()
            for key, tensor in own.items()
        }
        tensors.update({f"best.{key}": tensor for key, tensor in self.best.items()})
        tensors.update({f"optimiser.{key}": tensor for key, tensor in self.optimiser.state(copied=copied).items()})
        tensors.update({f"program.{key}": tensor for key, tensor in self.program.state().items()})
        if self.guard is not None:
            tensors.update({f"good.{key}": tensor for key, tensor in self.guard.tensors().items()})
        return tensors

    def state_meta(self) -> dict[str, Any]:
        """Give all other state, as JSON has it. Random state is (seed, epoch): there is no other."""
        return {
            "epoch": self.done,
            "seed": self.options.seed,
            "precision": self.options.precision,
            "monitor": self.monitor,
            "best_epoch": self.best_epoch,
            "best_value": self.best_value,
            "stale": self.stale,
            "lr": self.lr.state(),
            "loss": list(self.loss),
            "guard": None if self.guard is None else self.guard.meta(),
        }

    def load(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Go on from a state that `state_tensors` and `state_meta` gave."""
        for key in ("seed", "precision"):
            if meta.get(key) != getattr(self.options, key):
                raise CheckpointError(
                    f"train.{key} is {getattr(self.options, key)!r}, but the checkpoint was made with"
                    f" {meta.get(key)!r}; use that, or start a new run."
                )
        for key in self.state_meta():
            if key not in meta:
                raise CheckpointError(f"The checkpoint does not say {key!r}; {REMEDY}")
        # as one rank of several, a part of the checkpoint's
        parameters = self.modules.state_dict()
        require_state(
            {key: tuple(value.shape) for key, value in tensors.items()},
            {key: tuple(value.shape) for key, value in parameters.items()},
            "The checkpoint",
            complete=len(self.program.listed(0.0)) == 1,
        )
        self.modules.load_state_dict({key: value for key, value in tensors.items() if key in parameters})
        best = {key.removeprefix("best."): value for key, value in tensors.items() if key.startswith("best.")}
        self.best = {key: value.clone() for key, value in best.items() if key in parameters}
        self.optimiser.load(
            {
                key.removeprefix("optimiser."): value
                for key, value in tensors.items()
                if key.startswith("optimiser.") and key.split(".", 2)[2] in parameters
            }
        )
        self.done, self.loss = int(meta["epoch"]), [float(value) for value in meta["loss"]]
        self._saved = self.done
        if self.guard is not None and meta.get("guard") is not None:
            good = {key.removeprefix("good."): v for key, v in tensors.items() if key.startswith("good.")}
            own = {key: v for key, v in good.items() if key in parameters or key.split(".", 2)[-1] in parameters}
            self.guard.load(own, meta["guard"])
        self.program.load_state(
            {key.removeprefix("program."): v for key, v in tensors.items() if key.startswith("program.")}
        )
        self.monitor = meta["monitor"] if self.options.monitor is None else self.options.monitor
        self.best_epoch, self.best_value = int(meta["best_epoch"]), meta["best_value"]
        self.stale = int(meta["stale"])
        self.lr.load(meta["lr"])
