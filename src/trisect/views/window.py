"""`Window`: a module that reads the last w frames needs only the w-1 frames before its run.

One message from each run to each later one that reads its frames, and the gradients of the frames back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from trisect.comm.rows import Shape
from trisect.schedule.action import Action, Verb
from trisect.views.door import Door, Posted
from trisect.views.exchange import Crossing, Place, Work
from trisect.views.rows import required
from trisect.views.states import Form
from trisect.views.stay import Stay
from trisect.views.trace import Call, LayerTrace
from trisect.views.turn import Turn

BlockOfRun = tuple[int, int]


class Window(Stay):
    """Frames that are read by later runs, of other ranks or of later blocks of this one.

    They leave as soon as they are there: to earlier ranks, which read them in the next block, behind the own block.
    """

    name = "window"
    letter = "w"
    option = "halo"
    paired = True

    @classmethod
    def refusal(cls, layer: LayerTrace) -> str | None:
        """Only a window of frames has an end."""
        return None if layer.state == "window" else "it remembers all steps before, not a window of them"

    @classmethod
    def expand(cls, at: Place, call: Call, *, back: bool) -> Iterator[Crossing | Work]:
        """Yield one message to each later run that reads own frames, and from each run whose frames are read."""
        cut, size, work = at.plan.cut(at.run), required(call.form).frames + 1, Work(at.layer, "recur")
        if at.again and not back:
            yield work
            return
        verb, other = (Verb.WAIT, Verb.POST) if back else (Verb.POST, Verb.WAIT)

        def readers(block: int, runs: range) -> list[Crossing]:
            read = [run for run in runs if block < cut.blocks and cut.read_before(block, run, at.run, size)]
            return [Crossing(verb, 0, at.rank_of_run(run), 0, block) for run in read]

        later, next_block = readers(at.block, range(at.run + 1, cut.times)), readers(at.block + 1, range(at.run))
        owners = [run for run in range(cut.times) if run != at.run and cut.read_before(at.block, at.run, run, size)]
        reads = [Crossing(other, 0, at.rank_of_run(run)) for run in owners]
        items: list[list[Crossing | Work]] = [[*later], [*reads], [work], [*next_block]]
        for index in (2, 1, 3, 0) if back else range(4):
            yield from items[index]

    @classmethod
    def bytes_of(cls, at: Place, action: Action, fetched: Sequence[int]) -> tuple[str, float]:
        """The frames of the part's rows that the reader asks for, or their gradients."""
        form, ranks = required(required(action.call).form), at.plan.parts * at.plan.layout.layer
        peer = action.other // ranks
        reader, owner = (at.run, peer) if action.back else (peer, at.run)
        frames = len(at.plan.cut().read_before(action.block or 0, reader, owner, form.frames + 1))
        return "halo", at.plan.wire_bytes(frames * at.plan.rows[at.part], form.widths[0])

    def __init__(self, door: Door, form: Form) -> None:
        super().__init__(door, form)
        self._past: dict[int, Tensor] = {}
        self._gradients: dict[int, Tensor] = {}

    def clear(self, *, keeps: bool) -> None:
        """Forget everything, since another pass begins or one has ended."""
        super().clear(keeps=keeps)
        self._past.clear()
        self._gradients.clear()

    @property
    def _size(self) -> int:
        """How many frames a step reads, its own included."""
        return self._form.frames + 1

    # Forward

    def forward(self, turn: Turn) -> Tensor:
        """Begin with the frames before the run; frames that other runs read leave, and what later blocks read stays."""
        joined = turn.frames[0] if len(turn.frames) == 1 else torch.cat(list(turn.frames), 2)
        if not turn.again:
            coming = [
                (self._expect(turn, steps, run, (turn.block, turn.run), back=False), steps)
                for run, steps in self._read(turn)
            ]
            # of the frames by steps, those that later blocks read stay
            own = {**self._past, **dict(zip(turn.steps, joined, strict=True))}
            self._give(turn, own, ((turn.block, run) for run in range(turn.run + 1, turn.cut.times)))
            self._begin(turn, coming)
        out = self._nothing(turn)
        if turn.steps:
            out = self.states.forward(turn, [joined], turn.steps.start, hands_on=False, needs=[any(turn.needs)])
        if not turn.again and not turn.is_last:
            oldest = turn.cut.steps(turn.block).stop - self._form.frames
            self._past = {s: frame.clone() if s in turn.steps else frame for s, frame in own.items() if s >= oldest}
            self._give(turn, own, ((turn.block + 1, run) for run in range(turn.run)))
        return out

    def _read(self, turn: Turn) -> list[tuple[int, tuple[int, ...]]]:
        """Return the other runs whose frames this one reads, with the steps of these."""
        cut, size = turn.cut, self._size
        read = [(run, cut.read_before(turn.block, turn.run, run, size)) for run in range(cut.times)]
        return [(run, steps) for run, steps in read if steps and run != turn.run]

    def _readers(self, turn: Turn, places: Iterable[BlockOfRun]) -> list[tuple[BlockOfRun, tuple[int, ...]]]:
        """Return those of some runs that read own frames, with the steps of these."""
        read = [(place, turn.cut.read_before(*place, turn.run, self._size)) for place in places]
        return [(place, steps) for place, steps in read if steps]

    def _give(self, turn: Turn, own: Mapping[int, Tensor], places: Iterable[BlockOfRun]) -> None:
        """Send own frames to the runs that read them."""
        for place, steps in self._readers(turn, places):
            self._send(turn, [own[step] for step in steps], place[1], place, back=False)

    def _begin(self, turn: Turn, coming: Sequence[tuple[Posted, tuple[int, ...]]]) -> None:
        """Make the state that the own run begins with; with no frames before it, that is the initial one."""
        first = turn.steps.start - self._form.frames
        frames: dict[int, Tensor] = {}
        for posted, steps in coming:
            frames.update(zip(steps, posted.wait().chunk(len(steps)), strict=True))
        for step in turn.cut.read_before(turn.block, turn.run, turn.run, self._size):
            frames[step] = self._past[step]
        if frames:
            state = turn.zeros(self._form.frames, turn.rows, self._form.widths[0])
            for step, frame in frames.items():
                state[step - first] = frame
            self.states.before[turn.block, 0] = (state,)

    # Backward

    def backward(self, turn: Turn, d_out: Tensor) -> Sequence[Tensor | None]:
        """Send the gradients of the frames that were read, and add what others found of own ones."""
        cut, later = turn.cut, [(turn.block + 1, run) for run in range(turn.run)]
        later = [] if turn.is_last or turn.truncated else later
        readers = self._readers(turn, [*later, *((turn.block, run) for run in range(turn.run + 1, cut.times))])
        readers = [(place, self._trained(turn, steps)) for place, steps in readers if self._trained(turn, steps)]
        coming = [(self._expect(turn, steps, place[1], place, back=True), steps) for place, steps in readers]
        gradient = self.states.backward(turn, d_out)[0] if turn.pieces else None
        wanted = self.states.wanted.pop(0, None)
        if wanted is not None:
            first = turn.steps.start - self._form.frames
            for run, read in self._read(turn):
                steps = self._trained(turn, read)
                if steps:
                    self._send(turn, [wanted[0][s - first] for s in steps], run, (turn.block, turn.run), back=True)
            for step in self._trained(turn, cut.read_before(turn.block, turn.run, turn.run, self._size)):
                self._add(step, wanted[0][step - first])
        for posted, steps in coming:
            for step, frame in zip(steps, posted.wait().chunk(len(steps)), strict=True):
                self._add(step, frame)
        if not turn.steps or not any(turn.needs):
            return [None] * len(turn.widths)
        if gradient is None:
            gradient = turn.zeros(len(turn.steps), turn.rows, sum(turn.widths))
        found = [step for step in turn.steps if step in self._gradients]
        if found and (not gradient.is_contiguous() or _shares(gradient, d_out)):
            gradient = gradient.clone()  # which may be another's too
        for step in found:
            gradient[step - turn.steps.start] += self._gradients.pop(step)
        parts = zip(torch.split(gradient, turn.widths, 2), turn.needs, strict=True)
        return [part.contiguous() if need else None for part, need in parts]

    def _trained(self, turn: Turn, steps: tuple[int, ...]) -> tuple[int, ...]:
        """Return those of some steps that get a gradient of this block."""
        first = turn.cut.steps(turn.block).start
        return tuple(step for step in steps if step >= first) if turn.truncated else steps

    def _add(self, step: int, gradient: Tensor) -> None:
        """Note the gradient of an own frame that a later run read."""
        total = self._gradients.get(step)
        self._gradients[step] = gradient.clone() if total is None else total.add_(gradient)

    # Moving. A message is named by the run that reads the frames

    def _expect(self, turn: Turn, steps: Sequence[int], run: int, reader: BlockOfRun, *, back: bool) -> Posted:
        shape, peer = Shape(len(steps) * turn.rows, self._form.widths[0], turn.dtype), self._rank_of(run)
        return self._door.receive(self, turn.call, shape, peer, back=back, block=reader[0])

    def _send(self, turn: Turn, frames: Sequence[Tensor], run: int, reader: BlockOfRun, *, back: bool) -> None:
        message, peer = torch.cat(list(frames)), self._rank_of(run)
        self._door.send(self, turn.call, message, peer, "halo", back=back, block=reader[0], mark=turn.mark)


def _shares(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
