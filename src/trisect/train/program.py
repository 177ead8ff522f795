"""`Program`: one rank of a model on its data under a layout: epochs, exact passes and outputs, on the one engine."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from trisect.comm.ledger import Ledger
from trisect.comm.mesh import Mesh
from trisect.comm.transport import Transport
from trisect.errors import RunError
from trisect.layout import Layout
from trisect.layout.history import MERGED
from trisect.layout.steps import Batch, Steps
from trisect.nn.models.source import AnyModel
from trisect.nn.temporal.dynamic import DynamicModel
from trisect.noise import Noise
from trisect.partition.halo import merge_chunks
from trisect.partition.partition import order_digest
from trisect.pipeline.events import Observer
from trisect.pipeline.rank import Rank, Run
from trisect.pipeline.resumption import Resumption
from trisect.plan.build import schedule_of
from trisect.plan.volume import volume
from trisect.schedule.action import Pass
from trisect.schedule.schedule import Schedule
from trisect.schedule.validate import validate
from trisect.shards.graph_shard import GraphShard
from trisect.shards.shard import Shard
from trisect.tasks.base import BoundTask, Split, Statistics
from trisect.train.batches import make_batches
from trisect.train.processes.memory import peak_rss_bytes
from trisect.views.plan import Plan, runs_from, runs_split, runs_until
from trisect.views.staleness import DriftMeter, historical_reads, outside_reads

_EPOCH = Steps()
# states on their way to a later run, by axis and kind; as many gradients go back
_HANDED_ON = {("time", "carry"), ("time", "halo")}


class Program:
    """One rank's work; one process is a layout of one rank. Its answers are those of all ranks together.

    Args:
        model: the whole model; layers of other stages may lie on the meta device.
        decoder: the task's trained part, in the last stage.
        task: bound to all vertices, in the order of the shards.
        seed: of everything random.
        plan: how the model goes over the data.
        shard: what this rank reads of them.
        starts: part p has the positions starts[p] .. starts[p+1]-1.
        order: the user's vertex at each position, or None where they were not reordered.
        ledger: the one that the shard counts in.
        steps: how often an epoch steps.

    Attributes:
        decodes: whether the task has a trained part; the same on all ranks, where `decoder` is in the last stage alone.
        resumption: where `outputs` begin that carry a state; None: at step 0.
        stops: whether any rank was asked to stop, as of the end of the latest epoch.
        loss_calls: how often the epoch that was begun calls the loss, on all ranks together.
        sent_bytes: that left all ranks in the latest epoch; `peak_bytes`: the most memory that a rank has held so far.
    """

    def __init__(
        self,
        model: AnyModel,
        decoder: nn.Module | None,
        task: BoundTask,
        seed: int,
        *,
        mesh: Mesh,
        plan: Plan,
        shard: Shard,
        starts: Sequence[int],
        order: Tensor | None,
        ledger: Ledger | None = None,
        steps: Steps = _EPOCH,
    ) -> None:
        self.steps = steps
        self.model, self.mesh, self.plan, self.shard = model, mesh, plan, shard
        self.decodes = decoder is not None
        self.resumption: Resumption | None = None
        self.stops = False
        self.sent_bytes = self.peak_bytes = 0
        self.loss_calls = 1
        self.decoder = decoder if mesh.stage_index == mesh.layout.layer - 1 else None
        self.ledger = Ledger() if ledger is None else ledger
        self.history = self._recipe = mesh.layout.recipe if plan.stale else None
        self._full_task = task
        self._first_row = starts[mesh.part_index]
        own = (starts[mesh.part_index], starts[mesh.part_index + 1])
        self._starts = tuple(starts)
        self._bounds = torch.tensor(self._starts, device=mesh.device)
        self._fetched: tuple[int, dict[int, list[list[Tensor]]]] = (0, {})
        cut = plan.parts > 1
        self.own_task = task.divide(starts, mesh.part_index) if cut else task
        # outputs of a task on pairs are measured with the rows of all parts
        self.task = task if task.reads_pairs or not cut else self.own_task
        self._row_tasks: dict[tuple[int, int], BoundTask] = {(0, own[1] - own[0]): self.own_task}
        self._losses: list[Tensor] = []
        self._batches: list[Batch] = []
        self._origin = Noise(seed, vertices=shard.vertices)
        self.noise = self._origin
        self._transport = Transport(mesh, self.ledger, mesh.layout.wire)
        self._plain = Transport(mesh, Ledger())
        self._drift = DriftMeter()
        self._order: list[int] = []
        self._first_epoch: int | None = None
        self._history_name = None if order is None or self.history is None else history_name(mesh.layout, order)
        self._schedules: dict[tuple[Plan, Pass], Schedule] = {}
        self._volumes: dict[Plan, int] = {}
        self.engine = self._make_engine()
        self._state: Run | None = None
        self._epoch_plan = plan
        self._schedule(plan, Pass.TRAIN)

    def _make_engine(self) -> Rank:
        stage, plan = self.mesh.stage_index, self.plan
        layers: dict[int, nn.Module] = {
            number: self.model.stack[number] for number in range(plan.bounds[stage], plan.bounds[stage + 1])
        }
        last = stage == self.mesh.layout.layer - 1
        head = self.model.head
        if last and head is not None:
            layers[len(plan.layers)] = head
        history = self.history
        return Rank(
            plan,
            self._transport,
            self.shard,
            layers,
            self._loss,
            readers=self._readers if plan.fetches else None,
            extra=[] if self.decoder is None else list(self.decoder.parameters()),
            history=history,
            drift=self._drift,
            batches=partial(make_batches, self.shard, self.model) if self.in_chunks else None,
        )

    # Training

    @property
    def in_chunks(self) -> bool:
        """Whether each step is some chunks; not any more where the guard has made every epoch exact."""
        return self.steps.kind == "chunk" and self.plan.layout.chunks > 1

    def batches(self, epoch: int) -> list[Batch] | list[None]:
        """Return the steps of an epoch, which `begin` takes one after the other; [None]: it is one step."""
        if self.in_chunks:
            self._batches = self.steps.of_chunks(self.plan.layout.chunks, self._origin.seed, epoch)
            return self._batches
        if self.in_blocks:
            return self.steps.of_blocks(self.plan.blocks)
        return [None]

    @property
    def steps_per_epoch(self) -> int:
        """How often an epoch steps."""
        return self.plan.blocks if self.in_blocks else self.plan.updates

    @property
    def in_blocks(self) -> bool:
        """Whether each step is a block of snapshots."""
        return self.steps.kind == "block" and self.plan.timeline and self.plan.blocks > 1

    def begin(self, epoch: int, batch: Batch | None = None, *, drops: bool = True) -> None:
        """Enter an epoch (1, 2, …), or a step of it: all that it draws is a function of its number.

        Args:
            batch: one of `batches(epoch)`.
            drops: whether layers draw random numbers.
        """
        if batch is not None and batch.block is not None and self._state is not None:
            self._state.go_on(batch)
            self.loss_calls = self.plan.parts * sum(len(run) > 0 for run in self.plan.runs[batch.block])
            return
        self.noise = Noise(self._origin.seed, epoch, vertices=self._origin.vertices)
        history, plan, order = self.history, self.plan, None
        if self._first_epoch is None:
            self._first_epoch = epoch
        exact = history is None or history.is_exact(epoch, self._first_epoch)
        noise = self.noise if drops else None
        if batch is not None and batch.chunks:
            if history is not None and batch.number == 0 and (exact or history.refreshes(epoch)):
                self._refresh(trains=drops)
            layers = plan.layout.layer
            self.loss_calls = plan.parts * (len(batch.chunks) if layers > 1 else 1)
            pushed = history is not None and history.keeps(epoch, self._first_epoch)
            keep = history.blend if history is not None and pushed else None
            self._state = self.engine.begin(noise, plan=plan, keep=keep, batch=batch)
            return
        if history is not None and not exact:
            if history.refreshes(epoch):
                self._refresh(trains=drops)
            order = self._order = history.order(plan.layout.chunks, self.noise.seed, epoch)
        self._epoch_plan = plan = plan if order is not None or plan.timeline else plan.without_chunks()
        runs = sum(len(run) > 0 for block in plan.runs for run in block) if plan.timeline else 1
        if batch is not None and batch.block is not None:
            runs = sum(len(run) > 0 for run in plan.runs[batch.block])
        self.loss_calls = plan.parts * runs * (1 if exact else plan.layout.chunks)
        keep = None
        if history is not None and history.keeps(epoch, self._first_epoch):
            keep = 0.0 if exact else history.blend
        self._state = self.engine.begin(noise, plan=plan, chunked=not exact, keep=keep, order=order, batch=batch)

    def run(self, observer: Observer | None = None, **fields: Any) -> None:
        """Do all cells of the epoch that was begun; the gradients are then those of all ranks."""
        self._require_state().run(observer, **fields)

    def end_step(self) -> None:
        """End a step that was run, and is not the last of its epoch. A pass over blocks goes on."""
        if not self.in_blocks:
            self._end_pass()

    def _end_pass(self) -> None:
        self._losses.append(self._require_state().finish().detach().double())
        self._state = None

    def finish(self, *, asked_to_stop: bool = False) -> float:
        """End the epoch that was run; return its loss, the sum over steps, chunks, runs and ranks.

        Args:
            asked_to_stop: whether this rank was. It travels with the loss, so that all ranks stop after the same
                epoch; the bytes that each has sent and holds do too, for the record of the epoch.
        """
        own = torch.zeros(3 + self.mesh.layout.world, dtype=torch.float64)
        self._end_pass()
        own[0] = torch.stack(self._losses).sum().cpu()
        self._losses.clear()
        own[1], own[2] = asked_to_stop, self.ledger.bytes
        own[3 + self.mesh.rank] = peak_rss_bytes()
        loss, asked, sent, *held = self._transport.sum_everywhere(own).tolist()
        self.stops, self.sent_bytes, self.peak_bytes = bool(asked), int(sent), int(max(held))
        return float(loss)

    def reduce(self, gradients: Sequence[Tensor]) -> None:
        """Sum gradients over the ranks that hold the same layers, in place, when all messages have left."""
        self._transport.flush()
        self._transport.reduce_gradients(gradients)

    def _require_state(self) -> Run:
        if self._state is None:
            raise RuntimeError("internal error: the program was run before an epoch was begun")
        return self._state

    def _schedule(self, plan: Plan, pass_: Pass) -> Schedule:
        schedule = self._schedules.get((plan, pass_))
        if schedule is None:
            schedule = self._schedules[plan, pass_] = schedule_of(plan, pass_=pass_)
            validate(schedule)
        return schedule

    def _loss(self, frames: Any, rows: slice | Tensor, first_step: int) -> Tensor:
        if isinstance(rows, Tensor):  # of a batch that is drawn anew in each epoch
            drawn = self._full_task.restrict(rows + self._first_row)
            return drawn.loss(self.decoder, frames, first_step, self.noise)
        key = (rows.start, rows.stop)
        task = self._row_tasks.get(key)
        if task is None:
            first = self._first_row
            task = self._full_task.restrict(torch.arange(first + rows.start, first + rows.stop))
            self._row_tasks[key] = task
        return task.loss(self.decoder, frames, first_step, self.noise)

    def _readers(self, step: int, noise: Noise | None) -> list[list[Tensor]]:
        """List [reader][owner] → positions among the owner's rows that the reader's loss wants at a step."""
        noise = self.noise if noise is None else noise
        if self._fetched[0] != noise.epoch:
            self._fetched = (noise.epoch, {})
        lists = self._fetched[1]
        # forward and backward ask for the same; how many rows there are is read from the device once
        if step not in lists:
            wanted = self.own_task.wanted(step, noise) or []
            cuts = torch.stack([torch.searchsorted(rows, self._bounds) for rows in wanted]).tolist()
            lists[step] = [
                [rows[a:b] - start for a, b, start in zip(own, own[1:], self._starts, strict=False)]
                for rows, own in zip(wanted, cuts, strict=True)
            ]
        return lists[step]

    @property
    def formula_bytes(self) -> int:
        """Give the bytes that leave all ranks in the latest epoch, by formula; a loss may fetch what it samples."""
        plan = self._epoch_plan
        if not plan.fetches:
            if plan not in self._volumes:
                self._volumes[plan] = sum(self._moved(plan).values())
            return self._volumes[plan]
        training = plan.runs[-1][-1].stop
        fetched = [
            sum(rows.numel() for rows in self.own_task.wanted(step, self.noise) or ()) for step in range(training)
        ]
        return sum(self._moved(plan, fetched).values())

    def _moved(self, plan: Plan, fetched: Sequence[int] = ()) -> dict[tuple[str, str], int]:
        """Return the bytes of an epoch by axis and kind: rows cross once, gradients of weights with each step."""
        moved = volume(plan, self._schedule(plan, Pass.TRAIN), fetched)
        if not self.in_blocks:
            return moved
        inside: Counter[tuple[str, str]] = Counter()
        for runs in plan.runs:
            block = replace(plan, runs=(runs,))
            inside.update(volume(block, self._schedule(block, Pass.TRAIN), fetched))
        # from block to block states go forward, and no gradients back
        edges = {key: (size - inside[key]) // 2 for key, size in moved.items() if key in _HANDED_ON}
        return {key: inside[key] + edges.get(key, 0) for key in moved}

    def described(self) -> dict[str, Any]:
        """Return what was decided before the run, as plan.json has it: exchanges, stages, runs, bytes by formula."""
        plan = self.plan
        schedule = self._schedule(plan, Pass.TRAIN)
        moved = self._moved(plan) if not plan.fetches else {}
        return {
            "layout": str(plan.layout),
            "stages": [[numbers[0], numbers[-1]] for numbers in map(plan.numbers, range(plan.layout.layer))],
            "layers": [{"across": layer.across, "along": layer.along} for layer in plan.layers],
            "rows": list(plan.rows),
            "runs": [[[run.start, run.stop] for run in block] for block in plan.runs] if plan.timeline else None,
            "actions_per_epoch": [len(actions) for actions in schedule.ranks],
            "bytes_per_epoch": {f"{axis}/{kind}": size for (axis, kind), size in sorted(moved.items())},
        }

    # Exact passes

    @torch.no_grad()
    def outputs(
        self, steps: range, *, hidden: bool = False, observer: Observer | None = None, **fields: Any
    ) -> Iterator[tuple[int, Tensor]]:
        """Give exact outputs (nothing dropped) of this rank's steps and rows: (first step, [steps, rows, channels]).

        A timeline is run from its first step on where a state is carried (or from that of the `resumption`), and
        otherwise from the first step that the wanted ones read. All ranks must go through to the end; only those of the
        last stage yield anything. With `hidden`, what a static model's last layer, or a dynamic one's
        head, reads instead. Of a task on pairs all rows are given, the steps of a run dealt to its parts.
        """
        for first, frames in self._evaluate(steps, None, hidden_only=hidden, observer=observer, **fields):
            skip = max(0, steps.start - first)
            if skip < len(frames):
                if self.task.reads_pairs and self.plan.parts > 1:
                    yield from self._all_rows(first + skip, frames[skip:])
                else:
                    yield first + skip, frames[skip:]

    def _evaluate(
        self,
        steps: range,
        noise: Noise | None,
        *,
        hidden_only: bool = False,
        observer: Observer | None = None,
        **fields: Any,
    ) -> Iterator[tuple[int, Tensor]]:
        plan, resumption = self.plan, None
        runs = None
        if plan.timeline:
            runs = runs_until(plan.runs, plan.runs[-1][-1].stop, max(1, steps.stop))
            reach = self._reach()
            resumption = self.resumption if reach is None else None
            if reach is not None:
                runs = runs_from(runs, min(steps.start, max(0, steps.stop - 1)) - reach)
            elif resumption is not None:
                runs = runs_from(runs, resumption.first)
                runs = runs if resumption.keep is None else runs_split(runs, resumption.keep)
        plan = plan.forward_only(runs)
        if hidden_only:
            plan = plan.hidden(dynamic=isinstance(self.model, DynamicModel))
        state = self.engine.begin(noise, pass_=Pass.EVALUATE, plan=plan)
        if resumption is not None:
            self.engine.resume(resumption, plan)
        yield from state.stream(observer, **fields)
        if resumption is not None:
            resumption.kept = self.engine.kept_states()
        state.finish()

    def _reach(self) -> int | None:
        """Give how many steps back an output reads; None where a state is carried from the first step on."""
        layers = self.plan.layers
        if any(layer.state not in (None, "window") for layer in layers):
            return None
        return sum(layer.window - 1 for layer in layers if layer.state == "window")

    def _all_rows(self, first: int, frames: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Give every `parts`-th step of [steps, own rows, channels] with the rows of all parts, [1, rows, channels]."""
        parts, mine, channels = self.plan.parts, self.mesh.part_index, frames.shape[2]
        own, rows = frames[mine::parts], [b - a for a, b in pairwise(self._starts)]
        counts = [0 if part == mine else len(own) * rows[part] for part in range(parts)]
        outgoing = [frames[part::parts].reshape(-1, channels) for part in range(parts)]
        received = self._plain.swap(outgoing, counts, channels, frames.dtype, "evaluation", 0)
        by_part = [own if p == mine else received[p].view(len(own), rows[p], channels) for p in range(parts)]
        joined = torch.cat(by_part, 1)
        for index in range(len(own)):
            yield first + mine + index * parts, joined[index : index + 1]

    @torch.no_grad()
    def exact_loss(self, epoch: int) -> float | None:
        """Give the training loss computed exactly, with all that the epoch draws; None where every epoch is exact."""
        if self.history is None:
            return None
        noise = Noise(self._origin.seed, epoch, vertices=self._origin.vertices)
        own = 0.0
        for first, frames in self._evaluate(range(1), noise):
            own += float(self.own_task.loss(self.decoder, frames, first, noise))
        return self.total(own)

    @torch.no_grad()
    def _refresh(self, *, trains: bool) -> None:
        """Fill the history from an exact pass, in which norms are as in training."""
        plan = self.plan.forward_only()
        pass_ = Pass.REFRESH if trains else Pass.EVALUATE
        state = self.engine.begin(None, pass_=pass_, plan=plan, keep=0.0)
        state.run()
        state.finish()

    # History

    def state(self) -> dict[str, Tensor]:
        """Give what else than parameters a resumed run needs: history, which belongs to this rank and layout alone."""
        boards = self.engine.boards
        if self.history is None or boards is None:
            return {}
        return {self._prefix() + name: value for name, value in boards.state().items()}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Put history back. That of another layout or cut is of no use: then it starts anew with the next epoch."""
        if self._history_name is None:
            return
        prefix = self._prefix()
        own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        if self.engine.boards is not None:
            self.engine.boards.restore(own)
        # a stage that sends no messages has no history of its own, and goes on with those that have
        ours = any(name.startswith(self._history_name) for name in tensors)
        self._first_epoch = 1 if ours else None
        if tensors and not ours and self.history is not None and self.mesh.rank == 0:
            other = next(iter(tensors)).partition(".")[0]
            warnings.warn(
                f"The checkpoint's history is that of another layout or cut ({other}); it starts anew in the next"
                " epoch.",
                stacklevel=2,
            )

    def _prefix(self) -> str:
        return f"{self._history_name}rank-{self.mesh.rank}."

    def tighten(self, level: int, epoch: int) -> str:
        """Be as strict as `History.tightened` says, from this epoch on; say what that is in words."""
        if self._recipe is None:
            raise RunError(f"a program without history cannot be made stricter (level {level}, epoch {epoch})")
        layout = self.mesh.layout
        self.history, chunks, words = self._recipe.tightened(level, layout.chunks)
        plan, shard = self.plan, self.shard
        if 1 < chunks < layout.chunks and isinstance(shard, GraphShard):
            self.shard = shard.with_part_graph(merge_chunks(shard.part_graph(0), MERGED))
            bounds = [(*starts[:-1][::MERGED], starts[-1]) for starts in plan.chunk_rows]
            plan = replace(plan, chunk_rows=tuple(bounds))
        self.plan = replace(plan, layout=replace(plan.layout, chunks=chunks), stale=self.history is not None)
        self._first_epoch = epoch
        self.engine = self._make_engine()
        return words

    def staleness(self) -> dict[str, Any] | None:
        """Say which reads were historical in the last stale epoch, and how far history was from what replaced it."""
        if self._recipe is None:
            return None
        graph = self.shard.part_graph(0)
        found = outside_reads(graph, self._batches) if self.in_chunks else historical_reads(graph, self._order)
        historical, reads = found
        drift = self._drift
        layers = self.total(float(drift.layers))
        return {
            "history": self._recipe.parts(),
            "chunks": self.mesh.layout.chunks,
            "historical_reads": self.total(float(historical)) / max(1.0, self.total(float(reads))),
            "drift": self.total(drift.total) / layers if layers else None,
        }

    # All ranks together

    def total(self, value: float) -> float:
        """Give the sum over all ranks of something that each of them counts for itself."""
        return float(self._transport.sum_everywhere(torch.tensor(value, dtype=torch.float64)))

    def total_square(self, square: float) -> float:
        """Give the squared norm of all gradients; parts and runs of a stage hold the same, each counts its share."""
        if self.mesh.layout.world == 1:
            return square
        return self.total(square / (self.mesh.layout.vertex * self.mesh.layout.time))

    def listed(self, value: float) -> list[float]:
        """Give a value of each rank."""
        values = torch.zeros(self.mesh.layout.world, dtype=torch.float64)
        values[self.mesh.rank] = value
        return [float(v) for v in self._transport.sum_everywhere(values)]

    def merged(self, measured: Mapping[Split, Statistics]) -> dict[Split, Statistics]:
        """Give what was measured on all ranks, strung together in their order, the same on all."""
        if self.mesh.layout.world == 1:
            return dict(measured)
        plain: dict[str, Any] = {
            split: [{name: value.cpu() for name, value in values.items()} for values in (part.sums, part.rows)]
            for split, part in measured.items()
        }
        total = {split: Statistics() for split in measured}
        for other in self._transport.gather(plain):
            for split in measured:
                sums, rows = other[split]
                total[split] = total[split].merge(Statistics(sums, rows))
        return total


def history_name(layout: Layout, order: Tensor) -> str:
    """Give how names of history begin: with all that decides which rows it has, and where."""
    return f"layer={layout.layer},vertex={layout.vertex},chunks={layout.chunks},order={order_digest(order)}."
