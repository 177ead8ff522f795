"""What layers ask of a view, written down by running them on a few rows."""

from __future__ import annotations

import re
import resource
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trisect.errors import ConfigError
from trisect.nn import (
    NAMES,
    DynamicModel,
    GATLayer,
    GCNLayer,
    GINLayer,
    HeteroLayer,
    RGCNLayer,
    SAGELayer,
    build,
    options,
)
from trisect.nn.models.source import NamedModel
from trisect.views import trace as tracing
from trisect.views.states import Form
from trisect.views.trace import Call, LayerTrace, trace_of
from trisect.views.view import View

LSTM, GRU, WINDOW = Form("vertex", (4, 4), 1), Form("vertex", (4,), 1), Form("window", (4,), 2)


def aggregate(width: int, *, trained: bool = False) -> Call:
    return Call("aggregate", width, trained)


def kept(width: int) -> Call:
    return Call("aggregate", width, kept=True)


def gather(width: int, *, trained: bool = False) -> Call:
    return Call("gather", width, trained, then=True)


def recur(form: Form, made: int, given: int | None = None, *, trained: bool = True) -> Call:
    """A recurrent module that reads what the layer made, and its input where that is given."""
    widths = (made,) if given is None else (made, given)
    inputs, needs = (False, True)[: len(widths)], (trained, False)[: len(widths)]
    return Call("recur", sum(widths), True, False, widths, inputs, needs, form, 4)


def top(width: int) -> Call:
    return Call("top", width, count=4)


def weight(rows: int) -> Form:
    return Form("weight", (4,), rows)


# of six features, four hidden channels and three classes: the verbs of each layer, of the first one also with the kept
# sum; a layer that narrows multiplies before it sums
MODELS: dict[str, list[tuple[tuple[Call, ...], tuple[Call, ...] | None]]] = {
    "gcn": [((aggregate(4, trained=True),), (kept(6),)), ((aggregate(3, trained=True),), (kept(4),))],
    "sage": [((aggregate(4, trained=True),), (kept(6),)), ((aggregate(3, trained=True),), (kept(4),))],
    "gcnii": [((), None), ((), None), *[((aggregate(4),), (kept(4),))] * 2, ((), None)],
    "resgcn+": [((), None), *[((aggregate(4, trained=True),), None)] * 2, ((), None)],
    "gat": [((gather(4, trained=True),), None), ((gather(3, trained=True),), None)],
    "gatv2": [((gather(4, trained=True),), None), ((gather(3, trained=True),), None)],
    "gin": [((aggregate(4, trained=True),), (kept(6),)), ((aggregate(4, trained=True),), (kept(4),))],
    "gine": [((gather(6),), None), ((gather(4),), None)],
    "rgcn": [((gather(6),), None), ((gather(4),), None)],
    "cd-gcn": [
        ((aggregate(4, trained=True), recur(LSTM, 4, width)), (kept(width), recur(LSTM, 4, width))) for width in (6, 4)
    ],
    "wd-gcn": [((aggregate(4, trained=True), recur(LSTM, 4)), (kept(width), recur(LSTM, 4))) for width in (6, 4)],
    "tm-gcn": [((aggregate(4, trained=True), recur(WINDOW, 4)), (kept(width), recur(WINDOW, 4))) for width in (6, 4)],
    "recurrent": [((aggregate(4, trained=True), recur(GRU, 4)), (kept(width), recur(GRU, 4))) for width in (6, 4)],
    "evolvegcn-o": [
        (
            (recur(weight(width), 0, trained=False), aggregate(4, trained=True)),
            (recur(weight(width), 0, trained=False), kept(width)),
        )
        for width in (6, 4)
    ],
    "evolvegcn-h": [
        (
            (top(width), recur(weight(width), 4), aggregate(4, trained=True)),
            (top(width), recur(weight(width), 4), kept(width)),
        )
        for width in (6, 4)
    ],
}


def model_of(name: str, inputs: int = 6, outputs: int = 3) -> Any:
    chosen: dict[str, Any] = {"heads": 2} if "heads" in options(name) else {}
    chosen |= {"window": 3} if name == "tm-gcn" else {}
    return build(name, inputs, outputs, layers=2, hidden=4, edge_channels=2, **chosen)


def test_all_models_are_here() -> None:
    assert set(MODELS) == set(NAMES)


@pytest.mark.parametrize("name", MODELS)
def test_what_the_layers_of_a_model_ask(name: str) -> None:
    model = model_of(name)
    timeline = isinstance(model, DynamicModel)
    traces = [trace_of(layer, timeline=timeline) for layer in model.stack]
    assert [(trace.calls, trace.first) for trace in traces] == MODELS[name]
    for layer, trace in zip(model.stack, traces, strict=True):
        assert (trace.in_channels, trace.out_channels) == (layer.in_channels, layer.out_channels)
        assert trace.parameters == sum(parameter.numel() for parameter in layer.parameters())
        assert (trace.reads, trace.writes) == (getattr(layer, "reads", ()), getattr(layer, "writes", None))
        assert (trace.across, trace.along) == ("none", "none")
        if not timeline:
            # a static layer asks the same in each step of a timeline
            assert trace_of(layer, timeline=True) == trace


@pytest.mark.parametrize("name", MODELS)
def test_wider_layers_ask_for_wider_rows(name: str) -> None:
    """A layer that does not narrow sums before it multiplies, and attention multiplies first in any case."""
    first, wide = (
        trace_of(next(layer for layer in model.stack if trace_of(layer, timeline=dynamic).spatial), timeline=dynamic)
        for model, dynamic in ((model, isinstance(model, DynamicModel)) for model in map(model_of, (name,) * 2, (6, 2)))
    )
    expected = {"gat": 4, "gatv2": 4, "gine": 2, "gcnii": 4, "resgcn+": 4}.get(name, 2)
    assert wide.message_channels == expected
    trained = name in ("gat", "gatv2", "resgcn+")
    assert [call.trained for call in wide.calls if call.verb in ("aggregate", "gather")] == [trained]
    assert first.collects == wide.collects == (name not in ("gat", "gatv2", "gine", "rgcn"))
    assert wide.preaggregates == (MODELS[name][-1 if name != "gcnii" else 2][1] is not None)


def test_relations_are_read_by_one_exchange() -> None:
    """What crosses is x, or the products with the matrices of all relations or bases where these are narrower."""
    for layer, width in (
        (RGCNLayer(20, 3, 4), 12),
        (RGCNLayer(20, 8, 4), 20),
        (RGCNLayer(20, 8, 4, bases=2), 16),
        (HeteroLayer({"a": GCNLayer(20, 8), "b": GATLayer(20, 4, heads=2), "c": GINLayer(20, 8)}), 20),
        (HeteroLayer({"a": GCNLayer(20, 8), "b": SAGELayer(20, 8)}, normalisation={"a": "symmetric"}), 21),
    ):
        trace = trace_of(layer, timeline=False)
        assert [(call.verb, call.width) for call in trace.calls] == [("gather", width)], layer
        assert trace.related == (tuple(range(4)) if isinstance(layer, RGCNLayer) else layer.relations)
    assert trace_of(GCNLayer(20, 8), timeline=False).related == ()


def test_what_is_known_of_a_state() -> None:
    def first(name: str) -> LayerTrace:
        return trace_of(model_of(name).stack[0], timeline=True)

    known = {name: first(name) for name in ("cd-gcn", "wd-gcn", "tm-gcn", "evolvegcn-o", "evolvegcn-h", "gcn")}
    assert {name: trace.state for name, trace in known.items()} == {
        **dict.fromkeys(("cd-gcn", "wd-gcn"), "vertex"),
        **dict.fromkeys(("evolvegcn-o", "evolvegcn-h"), "weight"),
        "tm-gcn": "window",
        "gcn": None,
    }
    assert {name: trace.window for name, trace in known.items() if trace.window > 1} == {"tm-gcn": 3}
    assert [name for name, trace in known.items() if trace.summarises] == ["evolvegcn-h"]
    # the input that the recurrent part reads besides is not made inside
    assert (known["cd-gcn"].inside_channels, known["wd-gcn"].inside_channels) == (4, 4)
    assert known["evolvegcn-h"].inside_channels == known["gcn"].inside_channels == 4


# Modules of the user's own


class Several(nn.Module):
    """A layer that asks for each verb, some of them twice, behind what it trains and before."""

    def __init__(self, channels: int = 5, k: int = 2) -> None:
        super().__init__()
        self.in_channels, self.k = channels, k
        self.first, self.second = nn.Linear(channels, 3), nn.Linear(3, 2)
        self.memory = nn.GRU(2, 7)

    def forward(self, x: Tensor, g: View) -> Tensor:
        y = self.first(g.aggregate(x))
        y = y + g.sum(y) + g.aggregate(y)
        near = g.gather(x, then=lambda near, own, neighbours: own.new_zeros(own.shape[0], 6))
        best = g.top(x, x[..., 0], self.k).mean(-2, keepdim=True)
        z = g.gather(self.second(y), then=lambda near, own, neighbours: own)
        z = z + near[..., :2] + best[..., :2]
        return z if g.along is None else g.recur(self.memory, z)


SEVERAL = (
    aggregate(5),
    Call("sum", 3, trained=True),
    aggregate(3, trained=True),
    gather(5),
    Call("top", 5, count=2),
    gather(2, trained=True),
)


def test_several_verbs() -> None:
    trace = trace_of(Several(), timeline=False)
    assert (trace.calls, trace.out_channels) == (SEVERAL, 2)
    # it begins with the sum of its input, which may be kept: all else stays
    assert trace.first == (kept(5), *SEVERAL[1:])
    assert trace.message_channels == 5
    assert not trace.collects
    timed = trace_of(Several(), timeline=True)
    state = Form("vertex", (7,), 1)
    assert timed.calls == (*SEVERAL, Call("recur", 2, True, False, (2,), (False,), (True,), state, 7))
    assert (timed.out_channels, timed.recurrence) == (7, timed.calls[-1])


def test_what_is_frozen_is_not_trained() -> None:
    free, frozen = Several(), Several().requires_grad_(False)
    trace = trace_of(frozen, timeline=False)
    assert trace.parameters == 0 < trace_of(free, timeline=False).parameters
    # what the user's function makes of neighbours may be trained, whoever made them
    assert [call.trained for call in trace.calls[:5]] == [False] * 5
    partly = Several()
    partly.second.requires_grad_(False)
    assert trace_of(partly, timeline=False).parameters == 5 * 3 + 3 + 3 * 7 * 2 + 3 * 7 * 7 + 6 * 7


def test_layers_that_are_alike_are_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[nn.Module] = []
    honest = tracing._trace

    def noted(layer: nn.Module, **how: Any) -> LayerTrace:
        ran.append(layer)
        return honest(layer, **how)

    monkeypatch.setattr(tracing, "_traced", {})
    monkeypatch.setattr(tracing, "_trace", noted)
    first, second = Several(), Several()
    assert trace_of(first, timeline=False) is trace_of(second, timeline=False)
    assert ran == [first]
    # others are run for themselves: with steps, other channels, another setting that no text tells, other shared inputs
    trace_of(second, timeline=True)
    wider, more, frozen, reading = Several(6), Several(k=3), Several().requires_grad_(False), Several()
    reading.reads = ("other",)  # type: ignore[assignment]
    assert repr(more) == repr(first)
    traces = [trace_of(layer, timeline=False) for layer in (wider, more, frozen, reading)]
    assert ran == [first, second, wider, more, frozen, reading]
    assert traces[0].in_channels == 6
    assert traces[1].calls[4].count == 3
    assert traces[3].reads == ("other",)


class Plain(nn.Module):
    """A layer without parameters, whose text does not say how wide it is."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.in_channels = channels

    def forward(self, x: Tensor, g: View) -> Tensor:
        return g.aggregate(x)


def test_a_width_without_parameters() -> None:
    assert [trace_of(Plain(width), timeline=False).message_channels for width in (3, 4)] == [3, 4]


def test_few_traces_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_traced", {})
    monkeypatch.setattr(tracing, "_MOST", 4)
    for width in range(1, 10):
        trace_of(Plain(width), timeline=False)
        assert len(tracing._traced) <= 4


# What a trace leaves as it was


class Normed(nn.Module):
    """A layer with running statistics, which drops elements by torch's generator."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.in_channels, self.fails = 3, fails
        self.norm, self.drop = nn.BatchNorm1d(3), nn.Dropout(0.5)

    def forward(self, x: Tensor, g: View) -> Tensor:
        y = self.drop(self.norm((x + 1.0).flatten(0, -2))).view(x.shape)
        if self.fails:
            raise ValueError("not like this")
        return g.aggregate(y)


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_changed(fails: bool) -> None:
    layer = Normed(fails=fails).train()
    before, drawn = {name: value.clone() for name, value in layer.state_dict().items()}, torch.get_rng_state()
    tracing._traced.clear()
    for timeline in (False, True):
        if fails:
            with pytest.raises(ConfigError, match="not like this"):
                trace_of(layer, timeline=timeline)
        else:
            assert trace_of(layer, timeline=timeline).calls == (aggregate(3, trained=True),)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn)
    assert layer.training
    assert all(parameter.grad is None for parameter in layer.parameters())
    # and a run of the layer itself would have changed both
    layer.fails = False
    layer(torch.zeros(8, 3), View.whole(tracing.ring(8, 3, torch.float32)))
    assert not torch.equal(layer.norm.running_mean, before["norm.running_mean"])  # type: ignore[arg-type]
    assert not torch.equal(torch.get_rng_state(), drawn)


@pytest.mark.parametrize("name", ["gcn", "gcnii", "gat", "resgcn+", "cd-gcn", "evolvegcn-h", "tm-gcn"])
def test_layers_without_memory(name: str) -> None:
    """A layer on the meta device asks what the layer itself asks."""
    chosen = {"layers": 2, "hidden": 8}
    timeline = isinstance(model_of(name), DynamicModel)
    outline, real = NamedModel(name, chosen, 0).outline(6, 3), build(name, 6, 3, **chosen)
    for meta, layer in zip(outline.stack, real.stack, strict=True):
        assert all(parameter.is_meta for parameter in meta.parameters())
        tracing._traced.clear()
        trace = trace_of(meta, timeline=timeline)
        tracing._traced.clear()
        assert trace == trace_of(layer, timeline=timeline)
        assert all(parameter.is_meta for parameter in meta.parameters())
        # with it, they are alike
        assert tracing.key_of(meta) == tracing.key_of(layer)


def test_weights_that_take_gigabytes_are_not_touched() -> None:
    """Weights of 160 GB take no memory where they are not there."""
    wide = NamedModel("gcn", {"layers": 3, "hidden": 200_000}, 0).outline(64, 10).stack[1]
    assert sum(parameter.numel() * parameter.itemsize for parameter in wide.parameters()) > 150 * 10**9
    before = memory_of_process()
    trace = trace_of(wide, timeline=False)
    assert trace.calls == (aggregate(200_000, trained=True),)
    assert trace.parameters == 200_000 * 200_001
    assert all(parameter.is_meta for parameter in wide.parameters())
    assert memory_of_process() - before < 256 << 20


def memory_of_process() -> int:
    """Return the most bytes that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# What is said


class Wrong(nn.Module):
    """A layer that gives what its maker is asked for."""

    in_channels = 4

    def __init__(self, gives: Any) -> None:
        super().__init__()
        self.gives = gives

    def forward(self, x: Tensor, g: View) -> Any:
        return self.gives(x, g)


@pytest.mark.parametrize(
    ("gives", "timeline", "told"),
    [
        (lambda x, g: x[:3], False, "Wrong gives [3, 4] for x of shape [8, 4]; return a row for each row."),
        (lambda x, g: x[0], True, "Wrong gives [8, 4] for x of shape [2, 8, 4]; return a row for each row."),
        (lambda x, g: x.sum(), False, "Wrong gives [] for x of shape [8, 4]; return a row for each row."),
        (lambda x, g: (x, x), False, "Wrong gives tuple for x of shape [8, 4]; return a row for each row."),
        (lambda x, g: None, False, "Wrong gives NoneType for x of shape [8, 4]; return a row for each row."),
        (
            lambda x, g: x @ torch.zeros(5, 2),
            False,
            "Wrong failed on 8 rows of 4 channels (RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x4 and"
            " 5x2)); a module is called as module(x, g), g a trisect.View.",
        ),
        (
            lambda x, g: g.recur(nn.LSTM(4, 4), x),
            False,
            "Wrong failed on 8 rows of 4 channels (ConfigError: LSTM(4, 4) works along steps, and the data are a graph"
            " without any; give a timeline.); a module is called as module(x, g), g a trisect.View.",
        ),
        (
            lambda x, g: g.shared["h0"],
            False,
            "Wrong failed on 8 rows of 4 channels (KeyError: 'h0'); a module is called as module(x, g), g a"
            " trisect.View.",
        ),
    ],
)
def test_a_module_that_does_not_fit(gives: Any, timeline: bool, told: str) -> None:
    tracing._traced.clear()
    with pytest.raises(ConfigError, match=f"^{re.escape(told)}$"):
        trace_of(Wrong(gives), timeline=timeline)
    # nothing of a failure is remembered
    assert not tracing._traced
    assert trace_of(Wrong(lambda x, g: x), timeline=timeline).calls == ()
