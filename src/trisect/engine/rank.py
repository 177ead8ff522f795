"""`RankEngine`: what one rank keeps from pass to pass; each pass over the data is an `Executor`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor
from torch.nn import Parameter

from trisect.comm.transport import Transport
from trisect.engine.boards import Boards
from trisect.engine.cell import Loss, Stage
from trisect.engine.executor import Executor
from trisect.engine.frames import FrameHalf
from trisect.engine.gradients import MessageGradients
from trisect.engine.packed import SMALLEST, PackedActivations
from trisect.engine.pass_state import PassState
from trisect.engine.recurrence import Recurrence, Resumption
from trisect.engine.rows import RowCutter
from trisect.engine.temporal import TemporalHalf, WeightHalf
from trisect.engine.units import StageUnits, units_of
from trisect.exchanges.catalogue import CATALOGUE, sets_apart
from trisect.exchanges.facts import Facts
from trisect.exchanges.history import History, HistoryUse
from trisect.nn.base import State
from trisect.nn.halves import AnyLayer
from trisect.nn.temporal.dynamic import DynamicLayer
from trisect.nn.temporal.evolving import Evolving
from trisect.noise import Noise
from trisect.schedule.action import Pass
from trisect.shards.shard import Shard
from trisect.views.history_rows import HistoryRows
from trisect.views.staleness import DriftMeter

Readers = Callable[[int, Noise | None], Sequence[Sequence[Tensor]]]


class RankEngine:
    """One rank: its layers, boards, states and row cuts, which outlive a pass.

    Args:
        facts: of training; a pass may bring its own (other blocks, no chunks).
        layers: by number, the layers of the rank's stage; the head is the one after the model's last.
        loss: see `Stage`.
        readers: readers(step, noise)[reader][owner] are the positions among the owner part's rows that the reader part
            wants of that step's output, int64, the same on all parts. Only asked where the loss fetches rows.
        extra: further parameters of the last stage (the task's decoder), reduced with the others.
        history: how chunks read history, where they do.
        drift: measures how far history was from the fresh rows; None: nobody asks.
    """

    def __init__(
        self,
        facts: Facts,
        transport: Transport,
        shard: Shard,
        layers: Mapping[int, AnyLayer],
        loss: Loss,
        *,
        readers: Readers | None = None,
        extra: Sequence[Parameter] = (),
        history: HistoryUse | None = None,
        drift: DriftMeter | None = None,
    ) -> None:
        self.facts, self.transport, self.mesh, self.shard = facts, transport, transport.mesh, shard
        self.dtype, self.device = facts.dtype, self.mesh.device
        stage = self.mesh.stage_index
        self.is_last = stage == self.mesh.layout.layer - 1
        self.readers = readers
        ready = {half.layer for half in facts.halves if half.aggregated}
        crossing = [
            k
            for k in range(facts.bounds[stage], facts.bounds[stage + 1])
            if k not in ready and any(exchange.needs_board(facts, k) for exchange in CATALOGUE)
        ]
        self.boards: Boards | None = None
        if crossing:
            self.boards = self._make_boards(crossing, history or HistoryUse(), drift)
        self.recurrences = {
            number: Recurrence(layer, facts.layers[number], self.dtype, self.device)
            for number, layer in layers.items()
            if isinstance(layer, DynamicLayer)
        }
        pack = facts.layout.pack
        packed = None
        if pack is True or (pack == "auto" and History.fits(facts)):
            rows = None if self.boards is None else self.boards.history
            widest = max(max(layer.in_channels, layer.out_channels, layer.message_channels) for layer in facts.layers)
            row_bytes = widest * self.dtype.itemsize
            packed = PackedActivations(rows, row_bytes, smallest=SMALLEST if pack == "auto" else 0)
        self.stage = Stage(
            facts,
            layers,
            shard,
            self.boards,
            self.recurrences,
            packed,
            loss if self.is_last else None,
            self.dtype,
            self.device,
        )
        trained = [p for layer in layers.values() for p in layer.parameters() if p.requires_grad]
        self.parameters = trained + (list(extra) if self.is_last else [])
        self.cutter = RowCutter(shard, self.boards, timeline=facts.timeline)
        self.temporal: dict[int, TemporalHalf] = {}
        self._units: dict[Facts, StageUnits] = {}

    def _make_boards(self, layers: Sequence[int], history: HistoryUse, drift: DriftMeter | None) -> Boards:
        facts = self.facts
        widths = {k: facts.layers[k].message_channels for k in layers}
        rows = HistoryRows(
            list(widths.values()),
            0 if facts.timeline else self.shard.part_graph(0).adjacency.columns,
            self.dtype,
            self.device,
            stale=History.fits(facts),
            apart=history.apart,
            drift=drift,
            own_rows=self.shard.rows,
        )
        gradients = MessageGradients(
            rows,
            list(widths.values()),
            self.dtype,
            collects=all(facts.layers[k].collects for k in layers),
            symmetric=facts.symmetric,
            halo=facts.parts > 1,
            scale=history.scale,
        )
        return Boards(widths, rows, gradients, parts=facts.parts, part=self.mesh.part_index, timeline=facts.timeline)

    def units(self, facts: Facts) -> StageUnits:
        """Give the units of the rank's stage under the facts of a pass, made once."""
        units = self._units.get(facts)
        if units is None:
            boards = () if self.boards is None else tuple(self.boards.slots)
            units = self._units[facts] = units_of(facts, self.mesh.stage_index, boards)
        return units

    def temporal_halves(self, facts: Facts) -> dict[int, TemporalHalf]:
        """Give the temporal halves that are done apart under the facts of a pass, by half; they begin anew."""
        for half, step in self.units(facts).apart.items():
            temporal = self.temporal.get(half)
            if temporal is None:
                recurrence, exchange = self.recurrences[step.layer], sets_apart(facts, half)
                if isinstance(recurrence.layer, Evolving):
                    kind: type[TemporalHalf] = WeightHalf
                else:
                    kind = FrameHalf if exchange is not None and exchange.brings_frames else TemporalHalf
                temporal = kind(step, facts, recurrence, self.mesh.part_index, self.mesh.run_index)
                self.temporal[half] = temporal
            temporal.clear(facts)
        return self.temporal

    def begin(
        self,
        noise: Noise | None,
        *,
        pass_: Pass = Pass.TRAIN,
        facts: Facts | None = None,
        chunked: bool = False,
        keep: float | None = None,
    ) -> Executor:
        """Begin a pass; the rank does its actions through what this gives.

        Args:
            facts: of the pass, where they differ from those of training.
            chunked: whether rows go through chunk by chunk and read history; otherwise all at once, which is exact.
            keep: the pass becomes history, in which what it was before has this weight; None: it does not.
        """
        facts = self.facts if facts is None else facts
        return Executor(PassState(self, facts, noise, pass_, chunked=chunked, keep=keep))

    def resume(self, resumption: Resumption, facts: Facts) -> None:
        """Let the pass that was begun, whose facts these are, start with states, and keep those that are asked for."""
        starts = [block[0].start for block in facts.runs]
        for number, recurrence in self.recurrences.items():
            recurrence.resumed = resumption.states.get(number)
            recurrence.watched = starts.index(resumption.keep) if resumption.keep in starts else None

    def kept_states(self) -> dict[int, State]:
        """Give the states that the pass was asked to keep, by layer, as far as it came by them."""
        return {number: each.kept() for number, each in self.recurrences.items() if each.seen}
