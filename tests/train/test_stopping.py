"""SIGTERM is a request: the run stops after the epoch, and a long epoch's state before it is offered at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from trisect.config import TrainOptions
from trisect.errors import StoppedError
from trisect.graph.graph import Graph
from trisect.layout.history import History
from trisect.train.fit import model_maker
from trisect.train.loop import Trainer
from trisect.train.processes.stopping import StopRequest, heeding_requests
from trisect.train.recorders import NoRecorder
from trisect.train.setup import Setup

State = tuple[dict[str, Tensor], dict[str, Any]]


def test_a_request_is_heeded_and_no_end() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with heeding_requests(60.0) as request:
        assert not request.asked
        os.kill(os.getpid(), signal.SIGTERM)
        assert request.asked
        os.kill(os.getpid(), signal.SIGTERM)  # nor is a second one
    assert signal.getsignal(signal.SIGTERM) == before


class Kept(NoRecorder):
    def __init__(self) -> None:
        self.states: dict[int, State] = {}

    def checkpoint(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *, best: bool) -> None:
        self.states[meta["epoch"]] = (dict(tensors), dict(meta))


def stopped(graph: Graph, grace: float, history: History | None = None) -> tuple[Kept, Kept]:
    """Ask for an end while epoch 3 is computed; give what was checkpointed and what was offered."""
    options = TrainOptions(epochs=9, checkpoint_every=None, grace=grace)
    maker = model_maker("gcn", {"hidden": 8, "layers": 2}, 0)
    setup = Setup.of(maker, graph, "node-classification", options)
    kept, offered, request = Kept(), Kept(), StopRequest()
    offer = lambda tensors, meta, *, best: offered.checkpoint(  # noqa: E731
        {name: value.clone() for name, value in tensors.items()}, meta, best=best
    )
    trainer = Trainer(setup, options, kept, stop=request, offer=offer)
    honest = setup.program.begin

    def begin(epoch: int, batch: Any = None) -> None:
        if epoch == 3:
            kept.states[2] = (trainer.state_tensors(), trainer.state_meta())
            request.asked = True
        honest(epoch, batch)
        setup.program.history = history

    setup.program.begin = begin  # type: ignore[method-assign]
    with pytest.raises(StoppedError, match="after epoch 3"):
        trainer.run()
    return kept, offered


def test_the_state_before_a_long_epoch_is_offered_within_it(community: Graph) -> None:
    kept, offered = stopped(community, grace=1e-6)
    assert list(kept.states) == [2, 3]
    assert list(offered.states) == [2]
    (tensors, meta), (wanted, said) = offered.states[2], kept.states[2]
    assert meta == said
    assert tensors.keys() == wanted.keys()
    assert all(tensors[name].equal(wanted[name]) for name in wanted)
    later = kept.states[3][0]
    assert not all(tensors[name].equal(later[name]) for name in wanted)  # the comparison can fail


@pytest.mark.parametrize("back", [False, True])
def test_every_verb_of_one_process_asks(community: Graph, back: bool) -> None:
    """A request that comes within the one cell of an epoch is heeded by the next verb, forward or backward."""
    options = TrainOptions(epochs=9, checkpoint_every=None, grace=1e-6)
    setup = Setup.of(model_maker("gcn", {"hidden": 8, "layers": 2}, 0), community, "node-classification", options)
    offered, request, seen = Kept(), StopRequest(), list[int]()
    trainer = Trainer(setup, options, NoRecorder(), stop=request, offer=offered.checkpoint)
    layer = setup.modules["model"].layers[1]
    honest = layer.forward

    def forward(x: Tensor, g: Any) -> Tensor:
        if trainer.done == 2 and torch.is_grad_enabled():
            if back:
                x.register_hook(lambda gradient: seen.append(len(offered.states)))

                def ask(gradient: Tensor) -> None:
                    request.asked = True

                out = honest(x, g)
                out.register_hook(ask)
                return out
            request.asked = True
            out = honest(x, g)
            seen.append(len(offered.states))
            return out
        return honest(x, g)

    layer.forward = forward  # type: ignore[method-assign]
    with pytest.raises(StoppedError, match="after epoch 3"):
        trainer.run()
    assert seen == [1]
    assert list(offered.states) == [2]
    assert setup.program.engine.door.heed is None


def test_nothing_is_offered_where_the_epoch_ends_in_time_or_history_has_changed(community: Graph) -> None:
    assert stopped(community, grace=600.0)[1].states == {}
    assert stopped(community, grace=1e-6, history=History())[1].states == {}
