"""One rank's program on a timeline that is cut by time, blocks, vertex and layer; one rank with blocks included."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from trisect.graph.timeline import Timeline
from trisect.layout import Layout
from trisect.nn.dynamic import DynamicModel
from trisect.noise import Noise
from trisect.partition.timeline import deal, step_work
from trisect.runtime.exchange import Exchange
from trisect.runtime.executor import Handler
from trisect.runtime.ledger import Ledger
from trisect.runtime.mesh import Mesh
from trisect.runtime.timeline import TimelineRank
from trisect.runtime.timeline_part import TimelinePart
from trisect.runtime.timeline_plan import plan_of
from trisect.runtime.volume_timeline import timeline_volume
from trisect.schedule.action import Action, Kind
from trisect.schedule.timeline import timeline_schedule
from trisect.schedule.validate import validate
from trisect.train.blocks import keeps_aggregation
from trisect.train.tasks.base import BoundTask
from trisect.train.timeline_shares import whole_part
from trisect.train.together import RankProgram


class TimelineCutProgram(RankProgram):
    """A stage of a dynamic model over a rank's steps and rows, and the exchanges with the other ranks.

    Args:
        model: the whole model.
        task: bound to all vertices, in partition order.
        bounds: where stages begin: stage s has the layers bounds[s] .. bounds[s+1]-1.
        part: this rank's steps and rows.
        starts: way w has the positions starts[w] .. starts[w+1]-1.
        halo: int64 [training steps, ways], the rows of others that each way reads at each step.
        aggregated: whether the part gives Â·x of the first layer.
        fixed: whether its features are the same in all steps.
        ledger: the one that the part counts in.
    """

    def __init__(
        self,
        model: DynamicModel,
        decoder: nn.Module | None,
        task: BoundTask,
        seed: int,
        *,
        mesh: Mesh,
        bounds: Sequence[int],
        part: TimelinePart,
        starts: Sequence[int],
        halo: Tensor,
        aggregated: bool,
        fixed: bool,
        dtype: torch.dtype,
        ledger: Ledger,
    ) -> None:
        cut = mesh.layout.vertex > 1
        divided = task.divide(starts, mesh.way) if cut else task
        super().__init__(model, decoder, task if task.whole else divided, seed, part.vertices)
        self.mesh, self.ledger = mesh, ledger
        self._exchange = Exchange(mesh, ledger, mesh.layout.wire)
        self._plain = Exchange(mesh, Ledger())
        self._starts, self._loss_task, self._training = tuple(starts), divided, part.steps
        rows = [b - a for a, b in pairwise(starts)]
        fetches = cut and task.whole
        self.plan = plan_of(
            model.stack,
            bounds,
            mesh.layout,
            part.runs,
            rows,
            aggregated=aggregated,
            fixed=fixed,
            fetches=fetches,
            dtype=dtype,
        )
        self._volume = partial(
            timeline_volume,
            model.stack,
            self.plan,
            mesh.layout,
            _stage_bytes(model, decoder, bounds),
            remote=halo.sum(1).tolist(),
            out_channels=model.out_channels,
            dtype=dtype,
        )
        schedule = timeline_schedule(mesh.layout, self.plan)
        validate(schedule)
        self._actions = schedule.ranks[mesh.rank]
        self._rank = TimelineRank(
            model.stack,
            model.head,
            bounds,
            part,
            self.plan,
            self._exchange,
            self._loss,
            dtype=dtype,
            readers=self._readers if fetches else None,
            extra=[] if decoder is None else list(decoder.parameters()),
        )

    @property
    def formula_bytes(self) -> int:  # type: ignore[override]
        """What leaves all ranks in the epoch that was begun last; what a loss fetches depends on what it samples."""
        fetched = [
            sum(rows.numel() for rows in self._loss_task.wanted(step, self.noise) or ())
            for step in range(self._training if self.plan.fetches else 0)
        ]
        return sum(self._volume(fetched=fetched).values())

    def begin(self, epoch: int) -> None:
        """Post what can be received ahead."""
        super().begin(epoch)
        self._rank.begin(self.noise, self._actions, train=True)

    def actions(self) -> Sequence[Action]:
        """The same in every epoch."""
        return self._actions

    def handlers(self) -> dict[Kind, Handler]:
        """Those of the rank."""
        return dict(self._rank.handlers())

    def forward(self, action: Action) -> None:
        """Some steps of a block."""
        self._rank.handlers()[Kind.FORWARD](action)

    def total_loss(self) -> float:
        """The sum over runs and ways; all messages have left by then."""
        return float(self._exchange.sum_everywhere(self._rank.finish().detach().double()))

    @torch.no_grad()
    def outputs(self, steps: range, *, hidden: bool = False) -> Iterator[tuple[int, Tensor]]:
        """Of this rank's steps and rows; of a task on pairs all rows, the steps of a run dealt to its ways."""
        for first, frames in self._rank.outputs(steps, hidden=hidden):
            if self.task.whole and self.mesh.layout.vertex > 1:
                yield from self._whole(first, frames)
            else:
                yield first, frames

    def _whole(self, first: int, frames: Tensor) -> Iterator[tuple[int, Tensor]]:
        """frames [steps, own rows, channels] → every `ways`-th step with the rows of all parts, [1, rows, channels]."""
        ways, mine, channels = self.mesh.layout.vertex, self.mesh.way, frames.shape[2]
        own, rows = frames[mine::ways], [b - a for a, b in pairwise(self._starts)]
        counts = [0 if way == mine else len(own) * rows[way] for way in range(ways)]
        outgoing = [frames[way::ways].reshape(-1, channels) for way in range(ways)]
        received = self._plain.swap(outgoing, counts, channels, frames.dtype, "evaluation", 0)
        parts = [own if way == mine else received[way].view(len(own), rows[way], channels) for way in range(ways)]
        whole = torch.cat(parts, 1)
        for place in range(len(own)):
            yield first + mine + place * ways, whole[place : place + 1]

    def _loss(self, frames: Sequence[Tensor] | Tensor, first_step: int) -> Tensor:
        return self._loss_task.loss(self.decoder, frames, first_step, self.noise)

    def _readers(self, step: int, noise: Noise | None) -> list[list[Tensor]]:
        """[reader][owner] → positions among the owner's rows that the reader's loss wants at a step."""
        wanted = self._loss_task.wanted(step, self.noise if noise is None else noise) or []
        bounds = torch.tensor(self._starts)
        found = []
        for rows in wanted:
            places = torch.searchsorted(rows, bounds).tolist()
            found.append([rows[a:b] - start for a, b, start in zip(places, places[1:], self._starts, strict=False)])
        return found


def one_rank(
    model: DynamicModel,
    decoder: nn.Module | None,
    task: BoundTask,
    seed: int,
    timeline: Timeline,
    layout: Layout,
    dtype: torch.dtype,
    budget: int,
) -> TimelineCutProgram:
    """All steps and rows in this process, block by block.

    Args:
        layout: of one rank, its number of blocks known.
        budget: bytes that may be kept between epochs, of snapshots and as much again of features.
    """
    training = task.steps("train").stop
    runs = deal(step_work(timeline)[:training], layout.blocks, 1)
    aggregated, ledger = keeps_aggregation(model, timeline, dtype, budget), Ledger()
    return TimelineCutProgram(
        model,
        decoder,
        task,
        seed,
        mesh=Mesh(layout, 0, timeline.device),
        bounds=(0, len(model.stack)),
        part=whole_part(timeline, runs, model, dtype, budget, ledger, aggregated=aggregated, training=training),
        starts=(0, timeline.vertices),
        halo=torch.zeros(training, 1, dtype=torch.int64),
        aggregated=aggregated,
        fixed=timeline.x is not None and timeline.x.dim() == 2,
        dtype=dtype,
        ledger=ledger,
    )


def _stage_bytes(model: DynamicModel, decoder: nn.Module | None, bounds: Sequence[int]) -> list[int]:
    """Bytes of the trained parameters of each stage; head and decoder belong to the last."""
    stages: list[list[nn.Module]] = [list(model.stack[a:b]) for a, b in pairwise(bounds)]
    stages[-1] += [module for module in (model.head, decoder) if module is not None]
    return [
        sum(p.numel() * p.element_size() for module in modules for p in module.parameters() if p.requires_grad)
        for modules in stages
    ]
