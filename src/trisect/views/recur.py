"""`Recurrences`: what one rank keeps of its recurrent modules, whose uses are nodes of autograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trisect.views.along import Along
from trisect.views.carry import Carry
from trisect.views.door import Door
from trisect.views.redistribute_steps import RedistributeSteps
from trisect.views.rows import required
from trisect.views.states import Form
from trisect.views.stay import Everywhere, Stay
from trisect.views.timecut import TimeCut
from trisect.views.token import cross
from trisect.views.turn import State, Turn
from trisect.views.verbs import Asked
from trisect.views.window import Window

# Messages of so many blocks may be on their way; their buffers are held.
_BLOCKS = 3

EXCHANGES: dict[str, type[Stay]] = {"carry": Carry, "redistribute": RedistributeSteps, "halo": Window}


class Recurrences(Along):
    """The recurrent modules of one rank over the blocks and runs of a timeline.

    A pass goes forward over the blocks in order: without gradients, or with them in the last one. Backward goes over
    them in the reverse order; a block whose turn was without gradients is gone through `again` before.

    Args:
        choose: choose(call) → how the state of a module crosses runs: `none`, `carry`, `redistribute` or `halo`.

    Attributes:
        fixed: the data's features where they are the same in all steps, [rows, channels]: every rank has them, so that
            they do not cross; None where they are not.
        turn: counts the blocks that were entered.
    """

    def __init__(self, door: Door, choose: Callable[[Asked], str]) -> None:
        self._door, self._choose = door, choose
        self._exchanges: dict[Asked, Stay] = {}
        self._cut: TimeCut | None = None
        self._block, self._again = 0, False
        self.fixed: Tensor | None = None
        self.turn = 0
        self._resumed: Mapping[int, State] = {}
        self._watched: int | None = None
        self._keeps = self._truncated = False

    def begin(self, cut: TimeCut, *, keeps: bool, truncated: bool = False) -> None:
        """Begin a pass.

        Args:
            keeps: whether a backward will follow.
            truncated: whether each block goes back before the next one goes forward, and no gradient crosses them.
        """
        self._clear(keeps=keeps)
        self._truncated = truncated
        self._cut, self.turn = cut, 0
        self._resumed, self._watched = {}, None

    def enter(self, block: int, *, again: bool = False) -> None:
        """Begin a block, or one group of its layers; `again`: it was gone through before."""
        self._block, self._again, self._door.block = block, again, block
        self.turn += 1
        if required(self._cut).times > 1:
            self._door.transport.flush(self.turn - _BLOCKS)

    def end(self) -> None:
        """End the pass and let go of everything."""
        self._clear(keeps=False)
        self._cut, self._resumed = None, {}

    def _clear(self, *, keeps: bool) -> None:
        self._keeps = keeps
        for exchange in self._exchanges.values():
            exchange.clear(keeps=keeps)

    def recur(
        self, call: Asked, token: Tensor, module: Any, frames: Sequence[Tensor], *, ends: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return what a recurrent module makes of frames [own steps, rows, channels], and the next token."""
        cut, trained = required(self._cut), torch.is_grad_enabled()
        steps = cut.runs[self._block][cut.run]
        if len(frames[0]) != len(steps):
            raise RuntimeError(f"internal error: {len(frames[0])} frames for the steps {steps} of block {self._block}")
        if trained and cut.times == 1 and cut.blocks == 1:
            # nothing comes before and nothing after: the module's own graph is all
            like = frames[0]
            state = module.initial_state(like.shape[1], dtype=like.dtype, device=like.device)
            return module(list(frames), state, steps.start)[0], token
        turn = Turn(
            cut,
            self._block,
            call,
            module,
            [frame.detach() for frame in frames],
            fixed=[self.fixed if self._is_fixed(frame) else None for frame in frames],
            trained=trained,
            again=self._again,
            mark=self.turn,
            resumed=self._resumed.get(call[0]),
            watched=self._block == self._watched,
            ends=ends,
            truncated=self._truncated,
        )
        exchange = self._exchange(call, module, turn)
        exchange.meet(turn, back=False)
        if not trained:
            return exchange.forward(turn), token
        turn.needs = [frame.requires_grad for frame in frames]

        def forward(*_: Tensor) -> list[Tensor]:
            out = exchange.forward(turn)
            turn.frames = ()
            return [out]

        def backward(gradients: Sequence[Tensor]) -> Sequence[Tensor | None]:
            exchange.meet(turn, back=True)
            return exchange.backward(turn, gradients[0])

        # the module runs inside, on leaves of its own; gradients of its parameters go straight to them
        (out,), token = cross(forward, backward, token, *frames, always=True)
        return out, token

    def _exchange(self, call: Asked, module: Any, turn: Turn) -> Stay:
        """Return how the state of a module crosses runs, made when it is first asked for."""
        exchange = self._exchanges.get(call)
        if exchange is None:
            form, word = Form.of(module, turn.dtype, turn.device), self._choose(call)
            if word != "none":
                kind = EXCHANGES[word]
            elif turn.cut.times == 1:
                kind = Stay
            elif form.kind == "weight":
                kind = Everywhere
            else:
                raise RuntimeError(f"internal error: the state of {module} crosses ranks, and by no exchange")
            exchange = self._exchanges[call] = kind(self._door, form)
            exchange.clear(keeps=self._keeps)
        return exchange

    def _is_fixed(self, frame: Tensor) -> bool:
        """Whether a frame is the features that are the same in all steps; all ranks find the same of it."""
        fixed = self.fixed
        return (
            fixed is not None
            and frame.shape[1:] == fixed.shape
            and frame.storage_offset() == fixed.storage_offset()
            and frame.untyped_storage().data_ptr() == fixed.untyped_storage().data_ptr()
        )

    # Passes forward that begin behind step 0

    def resume(self, states: Mapping[int, State], first: int, keep: int | None) -> None:
        """Let the pass that was begun start with states, and keep those before a step.

        It is for ranks that have all steps.

        Args:
            states: by layer, the state of all own rows before the step `first`; empty where it is step 0.
            keep: a step that a block begins with; None: none are kept.
        """
        cut = required(self._cut)
        starts = [block[0].start for block in cut.runs]
        if cut.times > 1 or starts[0] != first:
            raise RuntimeError(f"internal error: a pass from step {starts[0]} cannot begin with states of {first}")
        self._resumed = states
        self._watched = starts.index(keep) if keep in starts else None

    def kept_states(self) -> dict[int, State]:
        """Return the states that the pass was asked to keep, by layer, as far as it came by them."""
        seen = {call: exchange.states.seen for call, exchange in self._exchanges.items()}
        return {call[0]: state for call, state in seen.items() if state is not None}
