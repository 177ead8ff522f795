"""Window: a temporal part that reads the last w frames needs only the w-1 frames before its run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from trisect.comm.incoming import Incoming
from trisect.exchanges.base import Exchange
from trisect.exchanges.facts import Facts, LayerFacts
from trisect.exchanges.port import Port
from trisect.schedule.action import Action


class Window(Exchange[Incoming]):
    """One message from each run to each later one that reads its frames, and the gradients of the frames back."""

    letter: ClassVar[str] = "w"

    @classmethod
    def refusal(cls, layer: LayerFacts) -> str | None:
        """Only a window of frames has an end."""
        return None if layer.state == "window" else "it remembers all steps before, not a window of them"

    def volume(self, facts: Facts, posts: Sequence[tuple[int, Action]], fetched: Sequence[int]) -> dict[str, int]:
        """The frames of the part's rows that the reader asks for."""
        total = 0
        for rank, action in posts:
            layer = facts.layers[facts.halves[action.half].layer]
            rows = len(_steps(facts, rank, action)) * facts.rows[rank % facts.parts]
            total += facts.wire_bytes(rows, layer.state_widths[0])
        return {"halo": total}

    def expect(self, action: Action, port: Port) -> Incoming:
        """Make room for frames."""
        layer = port.facts.layers[port.facts.layer_of(action.half)]
        rows = len(_steps(port.facts, port.mesh.rank, action)) * port.facts.rows[port.mesh.part_index]
        return port.transport.receive(rows, layer.state_widths[0], port.dtype, action.other, port.tag(action))

    def post(self, action: Action, port: Port) -> None:
        """Send own frames, or the gradients of frames that were read."""
        window, steps = port.window_of(action), _steps(port.facts, port.mesh.rank, action)
        message = torch.cat(window.window_gradients(steps) if action.back else window.frames_for(steps))
        port.transport.send(message, action.other, port.tag(action), "time", "halo", port.key(action), mark=port.turn)

    def wait(self, action: Action, port: Port, posted: Incoming) -> None:
        """Begin a run with the frames that came, or note the gradients of own frames."""
        window, steps = port.window_of(action), _steps(port.facts, port.mesh.rank, action)
        add = window.add_frame_gradient if action.back else window.add_frame
        for step, frame in zip(steps, posted.wait().chunk(len(steps)), strict=True):
            add(step, frame)


def _steps(facts: Facts, rank: int, action: Action) -> tuple[int, ...]:
    """Which steps a message has the frames (or their gradients) of."""
    ranks = facts.parts * facts.layout.layer
    own, peer = rank // ranks, (action.peer or 0) // ranks
    reads = action.incoming != action.back
    reader, owner = (own, peer) if reads else (peer, own)
    window = facts.layers[facts.halves[action.half].layer].window
    return facts.read_before(action.block or 0, reader, owner, window)
