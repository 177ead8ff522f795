"""Does every action of a rank find what it reads? The order in which rows are made, cross and are read.

Forward, a cell reads what the cells before it made and what exchanges brought; an exchange sends what cells made.
Backward it is the other way round. What is computed again reads what was kept, so that its order is that of the first
time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from trisect.schedule.action import EXCHANGES, Action, Pass, Side, Verb

FORWARD = (Verb.FORWARD, Verb.AGAIN)

# the rows and steps that an action is about; and of a cell, also its halves and the direction in which it runs
_Rows = tuple[int | None, int | None]
_Cell = tuple[bool, _Rows, int, int | None, int | None, Side | None]


def first_flaw(actions: Sequence[Action], start: int, *, idles: bool) -> tuple[int, str] | None:
    """Give the position of the first action that runs too early, with what is wrong in words; None where none does.

    Args:
        actions: of one rank.
        start: the first half of its stage.
        idles: whether ranks may be without steps in a block: there weights may evolve where no rows do.
    """
    flow = _Flow(actions, start, idles)
    for position, action in enumerate(actions):
        wrong = flow.flaw(action)
        if wrong is not None:
            return position, wrong
        flow.note(action)
    return None


class _Flow:
    """What a rank's actions make and read, and what is done so far."""

    def __init__(self, actions: Sequence[Action], start: int, idles: bool) -> None:
        self.start, self.idles = start, idles
        self.done: set[Action] = set()
        self.ran: set[_Cell] = set()
        self.states: Counter[object] = Counter()
        # whether the last cell went backward: one that is computed again next begins a group, with what was kept
        self.turned = False
        self.last_block = max((action.block or 0 for action in actions), default=0)
        # only a rank with steps in a block has rows that cross along other axes than time
        self.busy = {action.block for action in actions if _axis(action) in ("vertex", "layer")}
        # chunks, or blocks, in the order in which they first went forward, and their cells that have not gone backward
        self.order: dict[_Rows, int] = {}
        self.left: Counter[_Rows] = Counter()
        self.cells: dict[object, dict[_Cell, Action]] = defaultdict(dict)
        self.waits: dict[object, list[Action]] = defaultdict(list)
        # the same cell in one block after the other, as they go forward for the first time
        self.blocks: dict[object, dict[int, Action]] = defaultdict(dict)
        for action in dict.fromkeys(actions):
            rows = _rows(action)
            if action.verb is Verb.WAIT:
                self.waits[action.back, rows, action.first, action.pass_].append(action)
            elif action.verb in FORWARD or action.verb is Verb.BACKWARD:
                back = action.verb is Verb.BACKWARD
                self.left[rows] += back
                if action.verb is Verb.FORWARD and action.block is not None:
                    self.blocks[self.series(action)][action.block] = action
                for key in ((back, rows), (back, rows, "from", action.first), (back, rows, "to", action.last)):
                    self.cells[key].setdefault(_cell(action), action)

    def note(self, action: Action) -> None:
        """Take note that an action is done."""
        self.done.add(action)
        if action.verb in FORWARD or action.verb is Verb.BACKWARD:
            self.ran.add(_cell(action))
            self.turned = action.verb is Verb.BACKWARD
            self.order.setdefault(_rows(action), len(self.order))
            self.left[_rows(action)] -= action.verb is Verb.BACKWARD
            if action.pass_ is not Pass.AGAIN:
                self.states[action.verb is Verb.BACKWARD, action.first, action.chunk] += 1

    def flaw(self, action: Action) -> str | None:
        """Say what is wrong if an action is done now."""
        if action.verb in FORWARD:
            early = [*self.makers(action), *self.earlier(action)]
            if action.pass_ is not Pass.AGAIN or not self.turned:
                early += self.arrivals(action, action.first, back=False)
            if not early and self.lacks_input(action):
                return f"{action} ran without its input, since nothing computes half {(action.first or 0) - 1}"
        elif action.verb is Verb.BACKWARD:
            if (action.block or 0) < self.last_block and not self.is_again(action):
                return f"{action} ran before it was computed again, and of block {action.block} nothing was kept"
            after = None if action.last is None else action.last + 1
            early = [*self.later(action), *self.readers(action), *self.arrivals(action, after, back=True)]
        elif action.verb is Verb.POST:
            if _hands_on(action):
                self.states[action.back, action.first, action.chunk] -= 1
                if self.states[action.back, action.first, action.chunk] < 0:
                    return f"{action} ran before the cell whose state it hands on"
            early = list(self.senders(action))
        else:
            return None
        return f"{action} ran before {early[0]}" if early else None

    # What must come before an action, and has not

    def makers(self, action: Action) -> Iterator[Action]:
        """Give the cells whose rows a cell reads going forward."""
        if action.first is not None:
            yield from self.missing(False, _rows(action), "to", action.first - 1)

    def series(self, action: Action) -> object:
        """Give what a cell has in common with the same cell of other blocks."""
        return self.start if action.first is None else action.first, action.chunk, action.side, action.pass_

    def earlier(self, action: Action) -> Iterator[Action]:
        """Give the same cell of the block before: states go on from block to block, and a rank holds one at a time."""
        if action.verb is Verb.FORWARD and action.block is not None and action.pass_ is not Pass.AGAIN:
            series = self.blocks[self.series(action)]
            before = series[max((block for block in series if block < action.block), default=action.block)]
            if before is not action and before not in self.done:
                yield before

    def readers(self, action: Action) -> Iterator[Action]:
        """Give the cells that read a cell's rows: their gradients come first."""
        if action.last is not None:
            yield from self.missing(True, _rows(action), "from", action.last + 1)

    def later(self, action: Action) -> Iterator[Action]:
        """Give the cells of chunks, or blocks, that went forward later: they read these rows, or the state after them,
        and go backward first.
        """
        here = self.order.get(_rows(action), 0)
        for rows, turn in self.order.items():
            if turn > here and self.left[rows]:
                yield from self.missing(True, rows)

    def senders(self, action: Action) -> Iterator[Action]:
        """Give the cells that make what a transfer sends; interior rows are not among those that leave."""
        rows, back = _rows(action), action.back
        if action.first is None:
            # what leaves a stage is made by all of its cells
            yield from self.missing(back, rows)
        elif action.peer is None:
            ends = ("from", action.first) if back else ("to", action.first - 1)
            yield from (cell for cell in self.missing(back, rows, *ends) if cell.side is not Side.INTERIOR)

    def arrivals(self, action: Action, half: int | None, *, back: bool) -> Iterator[Action]:
        """Give the waits for what a cell reads: before one of its halves, at the stage's entry, or of its state."""
        rows = _rows(action)
        waits = [*self.waits[back, rows, None, action.pass_], *self.waits[back, rows, action.first, action.pass_]]
        if half is not None and half != action.first:
            waits += self.waits[back, rows, half, action.pass_]
        for wait in waits:
            state = _hands_on(wait)
            if state:
                reads = wait.first == action.first and wait.chunk == action.chunk
            else:
                # the frames of a window go back to where they were made, each in its own time
                reads = wait.first in (None, half) and not (back and wait.first is not None and wait.peer is not None)
            if reads and wait not in self.done:
                yield wait

    def missing(self, *key: object) -> Iterator[Action]:
        """Give the cells under a key that have not run."""
        yield from (action for cell, action in self.cells.get(key, {}).items() if cell not in self.ran)

    def lacks_input(self, action: Action) -> bool:
        """Say whether a cell in the middle of a stage has neither cells before it nor rows from other runs."""
        if action.first is None or action.first == self.start:
            return False
        rows = _rows(action)
        if self.cells.get((False, rows, "to", action.first - 1)) or (self.idles and action.block not in self.busy):
            return False
        return not any(_axis(wait) == "time" for wait in self.waits[False, rows, action.first, action.pass_])

    def is_again(self, action: Action) -> bool:
        """Say whether the cell that goes backward was computed again."""
        return replace(action, verb=Verb.AGAIN, pass_=Pass.AGAIN) in self.done


def _rows(action: Action) -> _Rows:
    """Give the chunk and block; on a timeline chunks are those of states, and cells have all rows of a part."""
    return (action.chunk, None) if action.block is None else (None, action.block)


def _cell(action: Action) -> _Cell:
    back = action.verb is Verb.BACKWARD
    return back, _rows(action), action.chunk, action.first, action.last, action.side


def _axis(action: Action) -> str:
    return "" if action.exchange is None else EXCHANGES[action.exchange].axis


def _hands_on(action: Action) -> bool:
    """Say whether a transfer carries the state that a half makes, not the rows that it reads."""
    return action.exchange is not None and EXCHANGES[action.exchange].hands_on
