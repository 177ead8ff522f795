"""Timelines in pieces, known first aggregation, snapshots on demand, halves called apart."""

from __future__ import annotations

import pytest
import torch

from trisect.errors import ConfigError
from trisect.graph.adjacency import Adjacency
from trisect.nn import (
    LSTM,
    Context,
    DynamicModel,
    GCN2Layer,
    GCNLayer,
    LinearLayer,
    SpatialTemporal,
    build,
    first_aggregation,
)
from trisect.noise import Noise

MODELS = {
    "cd-gcn": {},
    "wd-gcn": {},
    "tm-gcn": {"window": 3},
    "tm-gcn long": {"window": 6, "kind": "harmonic"},
    "tm-gcn one": {"window": 1},
    "evolvegcn-o": {},
    "evolvegcn-h": {"activation": "rrelu"},
    "recurrent": {"spatial": "gcn", "temporal": "gru"},
    "recurrent sage": {"spatial": "sage", "temporal": "lstm", "concat": True, "norm": "layer"},
    "recurrent gat": {"spatial": "gat", "temporal": "gru", "heads": 2},
    "recurrent gin": {"spatial": "gin", "temporal": "mean", "window": 4},
}


def built(case, **more):
    return build(case.split()[0], 3, 2, layers=2, hidden=4, dropout=0.3, seed=1, **MODELS[case], **more).double()


def prepared(model, graphs):
    xs = torch.stack([graph.x for graph in graphs])
    return xs, [graph.adjacency(model.normalisation, model.self_loops) for graph in graphs]


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("case", list(MODELS))
def test_pieces_equal_the_whole(case, fixed, timeline, close, gradients):
    model = built(case)
    xs, snapshots = prepared(model, timeline())
    xs = (xs[0] if fixed else xs).requires_grad_()
    noise = Noise(2, epoch=3)
    whole, last = model(xs, snapshots, noise=noise)
    outputs, state = [], None
    for start, stop in ((0, 1), (1, 4), (4, 7)):
        piece = xs if fixed else xs[start:stop]
        output, state = model(piece, snapshots[start:stop], state, noise, start)
        outputs.append(output)
    close(torch.cat(outputs), whole, 1e-12)
    for ours, theirs in zip(state, last, strict=True):
        for got, want in zip(ours, theirs, strict=True):
            close(got, want, 1e-12)
    inputs = [xs, *model.parameters()]
    for got, want in zip(gradients(torch.cat(outputs), inputs), gradients(whole, inputs), strict=True):
        close(got, want)


@pytest.mark.parametrize("case", ["cd-gcn", "tm-gcn", "evolvegcn-o", "evolvegcn-h", "recurrent"])
def test_comparison_of_pieces_fails_with_a_lost_state(case, timeline, close):
    model = built(case)
    xs, snapshots = prepared(model, timeline())
    whole, _ = model(xs, snapshots)
    fresh = model.initial_state(13, dtype=torch.float64, device=torch.device("cpu"))
    output, _ = model(xs[4:], snapshots[4:], fresh, None, 4)
    with pytest.raises(AssertionError, match="differs"):
        close(output, whole[4:])


@pytest.mark.parametrize("case", ["tm-gcn", "cd-gcn"])
def test_first_step_matters_where_it_should(case, timeline):
    """The mean over the window knows how many steps came before; an LSTM does not, but its dropout does."""
    model = built(case)
    xs, snapshots = prepared(model, timeline(2))
    state = model.initial_state(13, dtype=torch.float64, device=torch.device("cpu"))
    early, _ = model(xs, snapshots, state, None, 0)
    late, _ = model(xs, snapshots, state, None, 9)
    assert torch.equal(early, late) == (case == "cd-gcn")
    noise = Noise(0)
    assert not torch.equal(model(xs, snapshots, state, noise, 0)[0], model(xs, snapshots, state, noise, 9)[0])


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("case", [case for case in MODELS if case != "recurrent gat"])
def test_known_first_aggregation_gives_the_same(case, fixed, timeline, close, gradients):
    model = built(case)
    xs, snapshots = prepared(model, timeline())
    xs = xs[0] if fixed else xs
    noise = Noise(2)
    aggregated = model.first_aggregation(xs, snapshots)
    assert aggregated.shape == (7, 13, 3)
    expected, _ = model(xs, snapshots, noise=noise)
    actual, _ = model(xs, snapshots, noise=noise, aggregated=aggregated)
    close(actual, expected)
    parameters = list(model.parameters())
    for got, want in zip(gradients(actual, parameters), gradients(expected, parameters), strict=True):
        close(got, want)
    with pytest.raises(AssertionError, match="differs"):
        close(model(xs, snapshots, noise=noise, aggregated=aggregated.flip(0))[0], expected)


def test_attention_has_no_first_aggregation(timeline):
    model = built("recurrent gat")
    xs, snapshots = prepared(model, timeline(2))
    with pytest.raises(ConfigError, match="aggregated"):
        model.first_aggregation(xs, snapshots)


class OnDemand:
    """Makes each snapshot when asked, and notes who asked for what."""

    def __init__(self, snapshots: list[Adjacency]) -> None:
        self.snapshots = snapshots
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self.snapshots)

    def __getitem__(self, step: int) -> Adjacency:
        self.asked.append(step)
        return self.snapshots[step]


@pytest.mark.parametrize("case", list(MODELS))
def test_each_snapshot_is_asked_for_once_a_layer(case, timeline):
    model = built(case)
    xs, snapshots = prepared(model, timeline(4))
    watched = OnDemand(snapshots)
    model(xs, watched)
    assert watched.asked == [0, 1, 2, 3, 0, 1, 2, 3]
    if case != "recurrent gat":
        aggregated = first_aggregation(xs, snapshots)
        watched = OnDemand(snapshots)
        model(xs, watched, aggregated=aggregated)
        assert watched.asked == [0, 1, 2, 3]


@pytest.mark.parametrize("case", list(MODELS))
def test_two_backward_passes_and_nothing_kept(case, timeline):
    """A second forward and backward works, gives the same, and leaves the module's attributes as they were."""
    model = built(case)
    xs, snapshots = prepared(model, timeline(3))
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    found = []
    for _ in range(2):
        model.zero_grad()
        model(xs, snapshots)[0].square().sum().backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert before == {name: set(vars(module)) for name, module in model.named_modules()}


def test_halves_of_a_layer_called_apart_by_vertex_chunks(timeline, close):
    """What a redistribution does: convolve whole snapshots, recur chunks of vertices over all steps."""
    model = built("cd-gcn")
    layer = model.layers[0]
    xs, snapshots = prepared(model, timeline())
    whole, _ = layer(xs, snapshots, layer.initial_state(13, dtype=torch.float64, device=torch.device("cpu")))
    frames = torch.stack([layer.convolve(x, a, Context()) for x, a in zip(xs, snapshots, strict=True)])
    pieces = []
    for rows in (slice(0, 4), slice(4, 13)):
        state = layer.initial_state(rows.stop - rows.start, dtype=torch.float64, device=torch.device("cpu"))
        pieces.append(layer.recur((frames[:, rows], xs[:, rows]), state, 0)[0])
    close(torch.cat(pieces, 1), whole, 1e-12)


@pytest.mark.parametrize("case", ["evolvegcn-o", "evolvegcn-h"])
def test_halves_of_an_evolving_layer_called_apart(case, timeline, close):
    model = built(case)
    layer = model.layers[0]
    xs, snapshots = prepared(model, timeline())
    state = layer.initial_state(13, dtype=torch.float64, device=torch.device("cpu"))
    whole, _ = layer(xs, snapshots, state)
    weights, _ = layer.recur([torch.stack([layer.summarise(x) for x in xs])], state, 0)
    block = snapshots[5].rows_between(3, 9)
    close(layer.convolve(xs[5], block, Context(), weights[5]), whole[5, 3:9], 1e-12)


def test_head_is_optional(timeline):
    model = build("wd-gcn", 3, 5, hidden=4, head=False)
    assert model.head is None
    assert model.out_channels == 5
    xs, snapshots = prepared(model, timeline(2))
    assert model(xs.float(), snapshots)[0].shape == (2, 13, 5)


def test_what_does_not_fit_is_refused(timeline):
    layer = SpatialTemporal(GCNLayer(3, 4), LSTM(4, 4))
    with pytest.raises(ConfigError, match="reads 3 channels, but layer 0 gives 4"):
        DynamicModel([layer, SpatialTemporal(GCNLayer(3, 4), LSTM(4, 4))])
    with pytest.raises(ConfigError, match="gives 7"):
        SpatialTemporal(GCNLayer(3, 4), LSTM(4, 4), concat=True)
    with pytest.raises(ConfigError, match="shared"):
        SpatialTemporal(GCN2Layer(3), LSTM(3, 3))
    with pytest.raises(ConfigError, match="neighbours"):
        DynamicModel([layer], GCNLayer(4, 2))
    with pytest.raises(ConfigError, match="dropout"):
        DynamicModel([layer], LinearLayer(4, 2, dropout=0.5))
    with pytest.raises(ConfigError, match="empty"):
        DynamicModel([])
    model = DynamicModel([layer]).double()
    xs, snapshots = prepared(model, timeline(2))
    with pytest.raises(ConfigError, match="first_step is 3"):
        model(xs, snapshots, first_step=3)
