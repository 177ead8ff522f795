"""`RedistributeRows`: parts exchange rows for columns, sum over neighbours with the whole matrix, and exchange back.

Each rank sums up all rows of its share of the columns. There is no halo and no partitioner, and the balance is perfect:
2·N·M·(P-1)/P elements cross in an aggregation of M channels, whatever the graph, where a halo grows with P. Backward
does the same with the transposed matrices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise, product
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor

from trisect.comm.rows import Shape
from trisect.comm.wire import encoded_bytes
from trisect.graph.adjacency import Adjacency
from trisect.layout import Wire
from trisect.ops.memory import empty
from trisect.ops.spmm.grouping import Snapshots
from trisect.ops.spmm.sums import aggregate_into
from trisect.schedule.action import Action
from trisect.views.door import Door
from trisect.views.ending import Ending
from trisect.views.exchange import Crossing, Place, Work, crossing
from trisect.views.local import Local
from trisect.views.spatial import Spatial
from trisect.views.total import sum_over_parts
from trisect.views.trace import Call, LayerTrace


class RedistributeRows(Spatial):
    """The rows of one part over some steps, whose sums are done by columns.

    Args:
        matrices: of each step, all rows × all rows; they may be made when asked for, and are asked for in order.
        rows: of each part.
    """

    name: ClassVar[str] = "redistribute rows"
    letter: ClassVar[str] = "r"
    option: ClassVar[str] = "redistribute"
    by_columns: ClassVar[bool] = True
    moves = True
    door: Door

    @classmethod
    def refusal(cls, layer: LayerTrace) -> str | None:
        """Attention and the like weigh neighbours by whole rows."""
        return None if layer.collects else "it does more with its neighbours' rows than sum them up"

    @classmethod
    def expand(cls, at: Place, call: Call, *, back: bool) -> Iterator[Crossing | Work]:
        """Yield rows that become columns, their sums, and columns that become rows."""
        if back:
            yield Work(at.layer, "behind", at.share)
        if not back or at.trained(call):
            yield from crossing(call.width)
            yield Work(at.layer, "sum", at.share)
            yield from crossing(call.width)
        if not back:
            yield Work(at.layer, "behind", at.share)

    @classmethod
    def bytes_of(cls, at: Place, action: Action, fetched: Sequence[int]) -> tuple[str, float]:
        """N·M·(P-1)/P elements a step, on the way there or back: each part sends all but its share of the columns."""
        size = cls.bytes(at.plan.rows, action.width, len(at.steps), at.plan.layout.wire, at.plan.dtype)
        return "redistribute", size / 2

    def __init__(self, matrices: Snapshots, rows: Sequence[int], door: Door) -> None:
        self.door, self.part_rows = door, rows
        self._part, self._bounds = door.mesh.part_index, [0, *accumulate(rows)]
        self.rows, self.steps = rows[self._part], len(matrices)
        self._whole = Local(matrices, self._bounds[-1])
        self._width = 0  # of the rows that cross

    @property
    def blocks(self) -> Sequence[Adjacency]:
        """Refuse: no rank has all columns of a row's neighbours."""
        _refuse()

    @staticmethod
    def bytes(rows: Sequence[int], channels: int, steps: int, wire: Wire, dtype: torch.dtype) -> int:
        """Return the bytes that leave all parts in one aggregation, forward or backward, on the way there and back.

        Args:
            rows: of each part.
            channels: of the rows that are summed.
        """
        bounds = _shares(channels, len(rows))
        widths = [high - low for low, high in pairwise(bounds)]
        # of many parts, most have as many rows and columns as others
        every = Counter({(r, w): n * m for (r, n), (w, m) in product(Counter(rows).items(), Counter(widths).items())})
        every.subtract(Counter(zip(rows, widths, strict=True)))
        return 2 * steps * sum(n * encoded_bytes(r, w, wire, dtype) for (r, w), n in every.items() if w)

    # Sums

    def sum(
        self,
        call: Hashable,
        x: Tensor,
        out: Tensor,
        *,
        alpha: float = 1.0,
        add: Tensor | None = None,
        beta: float = 1.0,
        bias: Tensor | None = None,
        ending: Ending = Ending.NONE,
        trained: bool = False,
    ) -> Any:
        """Write the sums over all rows; return the matrices, where a backward will follow."""
        columns = self._to_columns(call, x, back=False)
        sums = empty(columns.shape, x.dtype, x.device)
        trail = self._whole.sum(call, columns, sums, trained=trained)
        del columns  # no backward reads them
        self._to_rows(call, sums, out, back=False)
        if alpha != 1.0 or add is not None or bias is not None or ending.relu or ending.noises is not None:
            for step in range(self.steps):
                own = out[step]
                # in place: the sums are the addend of a sum over `add`, or over nothing
                aggregate_into(
                    own,
                    own[:0] if add is None else add[step],
                    _nothing(self.rows, x.device) if add is None else _identity(self.rows, x.device),
                    alpha=beta,
                    add=own,
                    beta=alpha,
                    bias=bias,
                    relu=ending.plain_relu,
                    slope=ending.slope,
                    p=ending.p,
                    noise=ending.noise(step),
                )
        return trail

    def sum_gradient(self, call: Hashable, gradient: Tensor, trail: Any, *, alpha: float = 1.0) -> Tensor:
        """Return the sums with the transposed matrices, which are done by columns too."""
        columns = self._to_columns(call, gradient, back=True)
        # steps that are summed up together know no factor
        sums = self._whole.sum_gradient(call, columns, trail, alpha=alpha if self.steps == 1 else 1.0)
        del columns
        if self.steps > 1 and alpha != 1.0:
            sums *= alpha
        out = empty(gradient.shape, gradient.dtype, gradient.device)
        self._to_rows(call, sums, out, back=True)
        return out

    # Rows themselves

    def gather(self, call: Hashable, x: Tensor) -> list[Tensor]:
        """Refuse: layouts do, for layers that do more with their neighbours' rows than sum them up."""
        _refuse()

    def gather_gradient(self, call: Hashable, gradients: Sequence[Tensor]) -> Tensor:
        """Refuse, as `gather`."""
        _refuse()

    # Sums over all rows

    def total(self, call: Hashable, sums: Tensor) -> Tensor:
        """Return the sum over all parts."""
        return sum_over_parts(self.door, call, sums[:, 0], back=False)

    def total_gradient(self, call: Hashable, gradient: Tensor) -> Tensor:
        """Return the sum of what all parts want of the total."""
        return sum_over_parts(self.door, call, gradient, back=True)

    # Crossing

    def _to_columns(self, call: Hashable, x: Tensor, *, back: bool) -> Tensor:
        """Return all rows of this part's share of the columns: [steps, all rows, share]."""
        self._width = x.shape[2]
        shares = _shares(x.shape[2], len(self.part_rows))
        share = shares[self._part + 1] - shares[self._part]
        columns = empty((self.steps, self._bounds[-1], share), x.dtype, x.device)
        pieces = [x[:, :, low:high] for low, high in pairwise(shares)]
        places = [columns[:, low:high] for low, high in pairwise(self._bounds)]
        self._swap("columns", call, pieces, places, back=back)
        return columns

    def _to_rows(self, call: Hashable, sums: Tensor, out: Tensor, *, back: bool) -> None:
        """Write the own rows, all columns of them, from all rows of this part's share: out [steps, rows, channels]."""
        self._width = out.shape[2]
        pieces = [sums[:, low:high] for low, high in pairwise(self._bounds)]
        places = [out[:, :, low:high] for low, high in pairwise(_shares(out.shape[2], len(self.part_rows)))]
        self._swap("rows", call, pieces, places, back=back)

    def _swap(
        self, into: str, call: Hashable, pieces: Sequence[Tensor], places: Sequence[Tensor], *, back: bool
    ) -> None:
        """Give each part its piece, and put what the parts give in its place, [steps, rows, columns] each."""
        part = self._part
        places[part].copy_(pieces[part])
        # a share without columns has nothing to send
        empties = [part == q or not piece.shape[2] for q, piece in enumerate(pieces)]
        outgoing = [piece.flatten(0, 1)[: 0 if none else None] for piece, none in zip(pieces, empties, strict=True)]
        targets: list[Tensor | Shape] = []
        for q, place in enumerate(places):
            steps, rows, width = place.shape
            if steps == 1 and q != part and width:
                targets.append(place[0])
            else:
                targets.append(Shape(0 if q == part or not width else steps * rows, width, place.dtype))
        received = self.door.swap(
            self.name,
            call,
            outgoing,
            targets,
            "redistribute",
            back=back,
            key=f"{self.name} into {into} {'back' if back else ''}",
            columns=self._width,
            crossing=into == "rows",
        ).wait()
        for place, target, piece in zip(places, targets, received, strict=True):
            if isinstance(target, Shape) and piece.numel():
                place.copy_(piece.view(place.shape))


def _shares(channels: int, parts: int) -> list[int]:
    """Return where the equal share of the columns of each part begins, and where the last one ends."""
    return [channels * part // parts for part in range(parts + 1)]


@lru_cache(maxsize=4)
def _identity(rows: int, device: torch.device) -> Adjacency:
    """Return a matrix whose sums are the rows themselves."""
    index = torch.arange(rows + 1, device=device)
    return Adjacency(index[:-1], index[1:], index[:-1].to(torch.int32), None, rows).vouched()


@lru_cache(maxsize=4)
def _nothing(rows: int, device: torch.device) -> Adjacency:
    """Return a matrix of no columns, whose sums are zero."""
    none = torch.zeros(rows, dtype=torch.int64, device=device)
    return Adjacency(none, none, none[:0].to(torch.int32), None, 0).vouched()


def _refuse() -> NoReturn:
    raise RuntimeError("internal error: rows are redistributed by columns, and a layer asks for rows of its neighbours")
