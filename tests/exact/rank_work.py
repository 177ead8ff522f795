"""What one process of the pool does with a case: train it as one rank or alone, by `fit` as a user does."""

from __future__ import annotations

import itertools
import os
import traceback
import warnings
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from exact_case import ExactCase, make_data, make_model
from hand_cut import cut_by_hand
from native_level import native_level
from noted import CONSULTED
from spoilt_ranks import SHARED, spoilt
from thresholds import lowered

from trisect.comm import world
from trisect.comm.ledger import Ledger
from trisect.errors import TrisectError
from trisect.plan.volume import volume
from trisect.schedule.action import Pass
from trisect.shards import device_stream
from trisect.train import worker
from trisect.train.fit import fit
from trisect.train.outputs.predict import outputs
from trisect.train.program import Program
from trisect.train.recorders import NoRecorder

Array = np.ndarray[Any, Any]
_PATIENCE = 100.0
"""Seconds that a rank waits for another, on a machine that has much else to do."""


@dataclass(frozen=True)
class Place:
    """Where a case is trained.

    Attributes:
        rank, size: of the world; size 0: no world.
        alone: whether this is the process that ranks are compared with.
        number: of the meeting, another one for every case.
        port: of the store where ranks meet.
    """

    rank: int
    size: int
    alone: bool
    number: int
    port: int


@dataclass
class Outcome:
    """What a process found.

    Attributes:
        loss: of each epoch.
        epochs: what was measured after each epoch; from rank 0 alone.
        metrics, baselines: of the summary.
        communication: bytes of the ledger and of the formula.
        sent, formula: bytes of the latest epoch by axis and kind, those that this process sent and those of all ranks.
        parameters: all trained ones, by name.
        rows: predictions of the own rows: name, first step, the user's vertices, values [steps, rows, …].
        refused: the sentence, where Trisect refuses the case; `dirty`: whether it had joined the others by then.
        failed: the traceback of any other error.
        consulted: the lowered constants that were read.
    """

    loss: list[float] = field(default_factory=list)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    baselines: dict[str, Any] = field(default_factory=dict)
    communication: dict[str, Any] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    formula: dict[str, int] = field(default_factory=dict)
    parameters: dict[str, Array] = field(default_factory=dict)
    rows: list[tuple[str, int, Array, Array]] = field(default_factory=list)
    refused: str = ""
    dirty: bool = False
    failed: str = ""
    consulted: set[str] = field(default_factory=set)


class _Epochs(NoRecorder):
    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def epoch(self, record: Mapping[str, Any]) -> None:
        kept = ("epoch", "loss", "lr", "train", "val", "test")
        self.records.append({name: record[name] for name in kept if name in record})


def train(case: ExactCase, place: Place) -> Outcome:
    """Train a case at this place; errors are part of the outcome."""
    outcome = Outcome()
    CONSULTED.clear()
    with (
        _environment(case, place),
        # what ranks and the process that they are compared with have in common cannot be seen
        nullcontext() if place.alone else _unlike_one_process(case),
        cut_by_hand(case),
        _steady_adam(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        spoil = "" if place.alone and case.spoil not in SHARED else case.spoil
        try:
            with _watching(outcome, case), spoilt(spoil, last=place.rank == place.size - 1):
                layout, threads = (case.reference, 1) if place.alone else (case.layout, case.threads)
                _fit(case, layout, threads, outcome)
        except BaseException as error:
            if isinstance(error, TrisectError) and error.exit_code == 2 and "internal error" not in str(error):
                outcome.refused = f"{type(error).__name__}: {error}"
            else:
                outcome.failed = traceback.format_exc()
        if dist.is_initialized():
            outcome.dirty = True
    outcome.consulted = set(CONSULTED)
    return outcome


@contextmanager
def _unlike_one_process(case: ExactCase) -> Iterator[None]:
    """Take the kernels, constants and background work of a case's ranks."""
    with ExitStack() as stack:
        stack.enter_context(native_level(case.native))
        stack.enter_context(lowered(case.thresholds))
        if case.prefetch:
            stack.enter_context(patch.object(device_stream, "_may_prefetch", lambda device, asked: True))
        yield


def _fit(case: ExactCase, layout: Mapping[str, Any], threads: int, outcome: Outcome) -> None:
    model, options = make_model(case)
    recorder = _Epochs()
    run = fit(
        model,
        make_data(case),
        case.task,
        layout,
        recorder=recorder,
        timeout=_PATIENCE,
        threads=threads,
        **options,
        **case.train,
    )
    outcome.loss, outcome.metrics = run.result.loss, run.summary["metrics"]
    outcome.epochs, outcome.baselines = recorder.records, run.summary["baselines"]
    outcome.communication = run.summary["communication"]
    outcome.parameters = {name: value.detach().numpy() for name, value in run.result.modules.state_dict().items()}


@contextmanager
def _steady_adam() -> Iterator[None]:
    """Let Adam divide a gradient by no less than 1e-2: by its own 1e-8, what rounding leaves of one that is zero would
    become a step that differs between any two orders of summation.
    """
    with ExitStack() as stack:
        for name in ("Adam", "AdamW"):
            steady = partial(getattr(torch.optim, name), eps=1e-2)
            stack.enter_context(patch.object(torch.optim, name, steady))
        yield


@contextmanager
def _watching(outcome: Outcome, case: ExactCase) -> Iterator[None]:
    """Let every process start its biases off zero, note what it sends, and predict when it has trained, before the
    ranks part.
    """
    run, by_axis = worker._Worker.run, Ledger.by_axis

    def noted_by_axis(self: Ledger) -> dict[str, int]:  # called where an epoch has ended
        outcome.sent = {f"{entry.axis}/{entry.kind}": entry.bytes for entry in self.entries() if entry.bytes}
        return by_axis(self)

    def run_and_predict(self: Any) -> worker.Outcome:
        setup = self.setup
        _move_biases(setup.modules, case.train["seed"])
        result = run(self)
        outcome.formula = _formula(setup.program)
        for first, columns in outputs(setup):
            for name, values in columns.items():
                count = values.shape[1]
                rows = torch.arange(count) if setup.vertices is None else setup.vertices
                outcome.rows.append((name, first, rows.numpy().copy(), values.numpy().copy()))
        return result

    # without the planner's estimate, which decides nothing and takes longer than most cases
    with (
        patch.object(worker._Worker, "run", run_and_predict),
        patch.object(worker, "estimate_setup", _no_estimate),
        patch.object(Ledger, "by_axis", noted_by_axis),
    ):
        yield


@torch.no_grad()
def _move_biases(modules: torch.nn.Module, seed: int) -> None:
    """Add to each bias numbers that depend on its name: of rows that dropout has emptied, a layer makes its bias, and
    where that is zero, rounding decides on which side of a kink they lie.
    """
    for name, parameter in modules.named_parameters():
        if "bias" in name.rpartition(".")[2]:
            generator = torch.Generator().manual_seed(seed + zlib.crc32(name.encode()))
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)


def _formula(program: Program) -> dict[str, int]:
    """Return the bytes that all ranks send in the latest epoch by formula, by axis and kind."""
    plan, fetched = program._epoch_plan, list[int]()
    if plan.fetches:
        steps = range(plan.runs[-1][-1].stop)
        fetched = [sum(rows.numel() for rows in program.own_task.wanted(t, program.noise) or ()) for t in steps]
    moved = volume(plan, program._schedule(plan, Pass.TRAIN), fetched)
    return {f"{axis}/{kind}": size for (axis, kind), size in moved.items() if size}


def _no_estimate(*values: Any) -> None:
    return None


@contextmanager
def _environment(case: ExactCase, place: Place) -> Iterator[None]:
    """Be the rank of a world that torchrun would have started; the store is that of the pool."""
    own: dict[str, str] = {}
    if place.size:
        own = {
            "RANK": str(place.rank),
            "LOCAL_RANK": str(place.rank),
            "WORLD_SIZE": str(place.size),
            "LOCAL_WORLD_SIZE": str(place.size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(place.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
    if case.memory and not place.alone:
        own["TRISECT_MEMORY"] = case.memory
    # processes meet equally often within a case, and not over all cases
    meetings = itertools.count(1000 * place.number)
    with patch.dict(os.environ, own), patch.object(world, "_meetings", meetings):
        yield
