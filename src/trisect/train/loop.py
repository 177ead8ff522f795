"""The epoch loop: full batch, exact evaluation, early stopping, a state that resumes to the bit."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from trisect.config import TrainOptions
from trisect.errors import CheckpointError, RunError, StoppedError
from trisect.schedule.action import Action, Verb
from trisect.tasks.base import Split
from trisect.train.best import Best, lower_is_better, reaches
from trisect.train.callbacks import Callbacks
from trisect.train.evaluation import Evaluation
from trisect.train.guard import Guard
from trisect.train.optimizer import Optimizer
from trisect.train.processes.memory import PssWatch, peak_rss_bytes, watched_memory
from trisect.train.processes.stopping import StopRequest
from trisect.train.program import Program
from trisect.train.recorders import Offer, Recorder
from trisect.train.run.state import REMEDY, require_state
from trisect.train.setup import Setup

EXPLOSION = 1e4
SHORT = 0.25  # of the grace; an epoch that lasts no longer ends in time


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
    """The loop and its state: parameters, optimizer, epoch, best so far. State lives here and nowhere else.

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
        self._recorder_copies, self._stop, self._offer = recorder_copies, stop, offer
        self._saved, self._longest = 0, 0.0
        self.program = setup.program
        self.modules = setup.modules
        self.monitor = options.monitor or setup.task.monitor
        self.best = Best(self.monitor, options.monitor_mode)
        self.optimizer = Optimizer(
            options,
            dict(self.modules.named_parameters()),
            set(setup.conv_parameters),
            lower=lower_is_better(self.monitor, options.monitor_mode),
            steps=self.program.steps_per_epoch,
        )
        self.evaluation = Evaluation(setup, options.metrics, recorder, say)
        self.callbacks = Callbacks(options.callbacks, self.program)
        self.ledger = self.program.ledger
        self.guard = Guard.of(self.program, self.modules, self.optimizer)
        self.done = 0
        self.loss: list[float] = []
        self._current, self._lr = math.nan, self.optimizer.lr
        self._ended = self._at_target = False

    def run(self) -> Result:
        """Train until the last epoch, or until patience ends."""
        with watched_memory() as memory:
            return self._run(memory)

    def _run(self, memory: PssWatch) -> Result:
        options, seconds, evaluating = self.options, [], 0.0
        # of the latest epoch that brought snapshots to the device: where they are kept, that is the preparation
        transfer = {"full_bytes": self.ledger.full_bytes, "sent_bytes": self.ledger.sent_bytes}
        sent: dict[str, int] = self.ledger.by_axis()
        while self.done < options.epochs and not self._ended:
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
                "lr": self._lr,
                "seconds": seconds[-1],
                "sent_bytes": self.program.sent_bytes,
                "peak_rss_bytes": self.program.peak_bytes,
                **self._guard_after(epoch),
            }
            self._longest = max(self._longest, seconds[-1])
            improved, measured = False, dict[str, dict[str, Any]]()
            if epoch % options.eval_every == 0:
                # and not after the last one, which for a run that is resumed later is none
                begin = time.perf_counter()
                measured, improved = self._evaluate(epoch)
                evaluating += time.perf_counter() - begin
                record.update(measured)
                self._at_target = reaches(options.target, measured, options.monitor_mode)
                self._tell("on_evaluate", measured, best=improved)
            self.recorder.epoch(record)
            self._tell("on_epoch_end", measured, best=improved)
            self._ended = self._out_of_patience() or self.callbacks.stops()
            last = epoch == options.epochs or self._ended
            stops = self.program.stops and not last
            if last or stops or (options.checkpoint_every is not None and epoch % options.checkpoint_every == 0):
                self._tell("on_checkpoint", measured, best=improved)  # whose own state is then in it
                self._saved = epoch
                tensors = self.state_tensors(copied=not self._recorder_copies)
                self.recorder.checkpoint(tensors, self.state_meta(), best=improved)
            if stops:
                raise StoppedError(f"Stopped after epoch {epoch}, as asked (SIGTERM).")
        self._take_best()
        begin = time.perf_counter()
        metrics, scores = self.evaluation.measure_last(self.done, self.best.epoch or self.done)
        evaluating += time.perf_counter() - begin
        return Result(
            loss=self.loss,
            metrics=metrics,
            epochs=self.done,
            best_epoch=self.best.epoch or self.done,
            best_value=self.best.value,
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
            self.optimizer.zero_grad()
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
        """Step the optimizer by the gradients of all ranks; nothing else changes parameters."""
        self._lr = self.optimizer.lr
        self.optimizer.step(self.program.total_square)
        self.optimizer.advance_schedule()

    def _tell(self, method: str, metrics: Mapping[str, Mapping[str, Any]], *, best: bool) -> None:
        """Tell callbacks of the epoch that has ended."""
        self.callbacks.tell(
            method,
            epoch=self.done,
            loss=self._current,
            lr=self._lr,
            metrics=metrics,
            best=best,
            modules=self.modules,
            optimizer=self.optimizer.torch,
        )

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
            self._offer(self.state_tensors(copied=False), self.state_meta(), best=self.best.epoch == self.done)

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
                f" {self._lr:g}), set train.clip, or check the features for huge values{off}."
            )
        self._stepped_in(action)

    def _stepped_in(self, action: Mapping[str, Any]) -> None:
        self.best.stale = 0
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
        """Return the measures of these splits with the parameters as they are; nothing is dropped."""
        return self.evaluation.measure(splits, epoch)

    def _evaluate(self, epoch: int) -> tuple[dict[str, dict[str, Any]], bool]:
        """Return the measures after an epoch, of averaged parameters if there are any, and whether it is the best."""
        with self.optimizer.averaged():
            measured = self.evaluate(self.evaluation.between(self.monitor), epoch=epoch)
            value, first = self.best.measured(measured), self.best.value is None
            improved = self.best.judge(value, epoch, self.modules)
        self.optimizer.evaluated(value, first=first)
        return measured, improved

    def _out_of_patience(self) -> bool:
        if self._at_target:
            return True
        return self.options.patience is not None and self.best.stale >= self.options.patience

    def _take_best(self) -> None:
        if self.best.tensors:
            self.modules.load_state_dict(self.best.tensors)
        else:
            self.optimizer.take_average()

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
        tensors.update({f"best.{key}": tensor for key, tensor in self.best.tensors.items()})
        tensors.update({f"optimiser.{key}": tensor for key, tensor in self.optimizer.state(copied=copied).items()})
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
            **self.best.meta(),
            "optimizer": self.optimizer.plain(),
            "callbacks": self.callbacks.plain(),
            "ended": self._ended,
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
        self.best.load({key: value for key, value in best.items() if key in parameters}, meta)
        self.optimizer.load(
            {
                key.removeprefix("optimiser."): value
                for key, value in tensors.items()
                if key.startswith("optimiser.") and key.removeprefix("optimiser.").partition(".")[2] in parameters
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
        self.monitor = self.best.monitor = meta["monitor"] if self.options.monitor is None else self.options.monitor
        self.optimizer.load_plain(meta["optimizer"])
        self.callbacks.load(meta["callbacks"])
        self._lr, self._ended = self.optimizer.lr, bool(meta["ended"])
