"""Actions in words, by the layers of the model: forward of layers 3–5, chunk 2, block 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trisect.pipeline.events import NAMES
from trisect.report.values import Values
from trisect.schedule.action import Action, Verb

_COMPUTED = {Verb.FORWARD: "forward", Verb.AGAIN: "forward again", Verb.BACKWARD: "backward"}
_CROSSING = {
    "boundary": "activations",
    "halo": "halo rows",
    "carry": "the state",
    "window": "earlier frames",
    "redistribute rows": "rows that change hands",
    "redistribute steps": "rows that change hands",
    "summary": "the summary",
    "fetch": "output rows",
    "total": "sums over all rows",
}


@dataclass(frozen=True)
class Phrase:
    """What an action is, apart from its chunk, block and peer.

    Attributes:
        text: in words; the peer, chunk and block follow it.
        kind: forward, again, backward, step, reduce, post, expect, wait or other.
        layer: the first model layer that is computed; None of all else.
    """

    text: str
    kind: str
    layer: int | None = None


class Words:
    """The language of one run.

    Args:
        plan: plan.json, whose `stages` are [first layer, last layer]; a head is the layer after the last.
    """

    def __init__(self, plan: Values) -> None:
        bounds = [stage.counts() for stage in plan.at("stages")]
        self.stages = [(pair[0], pair[1]) for pair in bounds if len(pair) == 2]
        self.layers = sum(1 for _ in plan.at("layers"))

    def phrase(self, action: Action | None, name: str = "") -> Phrase:
        """Say what an action is."""
        if action is None:
            return Phrase(name[:80], "other")
        if action.verb is Verb.STEP:
            return Phrase("step of the optimiser", "step")
        if action.verb is Verb.REDUCE:
            return Phrase("gradients of the parameters are added up over ranks", "reduce")
        if action.exchange is None:
            first, last = self._range(action)
            verb = _COMPUTED[action.verb]
            return Phrase(f"{verb} of {self._layers(first, last)}", verb.replace("forward again", "again"), first)
        exchange = NAMES[action.exchange]
        rows = _CROSSING.get(exchange, f"{exchange} rows")
        reader = "" if action.first is None else f" for {self._layers(action.first, action.first)}"
        what = f"{'gradients of ' if action.back else ''}{rows}{reader}"
        if action.verb is Verb.WAIT:
            return Phrase(f"waiting for {what}", "wait")
        if action.verb is Verb.EXPECT:
            return Phrase(f"making room for {what}", "expect")
        return Phrase(f"sending {what}", "post")

    def describe(self, action: Action | None, name: str = "") -> str:
        """Say the whole action, peer, chunk and block included."""
        if action is None:
            return self.phrase(action, name).text
        text = self.phrase(action, name).text
        if action.peer is not None:
            text += f" {'from' if action.incoming else 'to'} rank {action.peer}"
        if action.verb not in (Verb.REDUCE, Verb.STEP):
            text += f", chunk {action.chunk}" + ("" if action.block is None else f", block {action.block}")
        return text

    def _range(self, action: Action) -> tuple[int | None, int | None]:
        """Return the first and last layer that an action computes."""
        if action.first is not None:
            return action.first, action.first if action.last is None else action.last
        return self.stages[action.stage] if action.stage < len(self.stages) else (None, None)

    def _layers(self, first: int | None, last: int | None) -> str:
        """Name the layers from the first to the last."""
        if first is None or last is None:
            return "all layers of the stage"
        if self.layers and first >= self.layers:
            return "the head"
        head = bool(self.layers) and last >= self.layers
        named = layer_name(range(first, (self.layers if head else last + 1)))
        return f"{named} and the head" if head else named


def layer_name(layers: Sequence[int]) -> str:
    """Name some consecutive layers."""
    return f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]}–{layers[-1]}"
