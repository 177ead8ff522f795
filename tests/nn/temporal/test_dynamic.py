"""Timelines in pieces, kept sums of features, snapshots on demand."""

from __future__ import annotations

import pytest
import torch

from trisect.errors import ConfigError
from trisect.graph.adjacency import Adjacency
from trisect.graph.timeline.timeline import Timeline
from trisect.nn import (
    LSTM,
    DynamicModel,
    GCN2Layer,
    GCNLayer,
    LinearLayer,
    SpatialTemporal,
    build,
)
from trisect.noise import Noise
from trisect.train.fit import fit
from trisect.views.view import View

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
    x = (xs[0] if fixed else xs).requires_grad_()
    frames = x.expand(len(snapshots), *xs.shape[1:])
    noise = Noise(2, epoch=3)
    view = View.whole(snapshots, noise)
    whole, last = model(frames, view), view.along.after
    outputs, states = [], None
    for start, stop in ((0, 1), (1, 4), (4, 7)):
        view = View.whole(snapshots[start:stop], noise, states=states, first_step=start)
        outputs.append(model(frames[start:stop], view))
        states = view.along.after
    close(torch.cat(outputs), whole, 1e-12)
    assert states.keys() == last.keys()
    assert len(last) == 2
    for call, ours in states.items():
        for got, want in zip(ours, last[call], strict=True):
            close(got, want, 1e-12)
    inputs = [x, *model.parameters()]
    for got, want in zip(gradients(torch.cat(outputs), inputs), gradients(whole, inputs), strict=True):
        close(got, want)


@pytest.mark.parametrize("case", ["cd-gcn", "tm-gcn", "evolvegcn-o", "evolvegcn-h", "recurrent"])
def test_comparison_of_pieces_fails_with_a_lost_state(case, timeline, close):
    model = built(case)
    xs, snapshots = prepared(model, timeline())
    whole = model(xs, View.whole(snapshots))
    output = model(xs[4:], View.whole(snapshots[4:], first_step=4))
    with pytest.raises(AssertionError, match="differs"):
        close(output, whole[4:])


@pytest.mark.parametrize("case", ["tm-gcn", "cd-gcn"])
def test_first_step_matters_where_it_should(case, timeline):
    """The mean over the window knows how many steps came before; an LSTM does not, but its dropout does."""
    model = built(case)
    xs, snapshots = prepared(model, timeline(2))
    early, late = (model(xs, View.whole(snapshots, first_step=step)) for step in (0, 9))
    assert torch.equal(early, late) == (case == "cd-gcn")
    early, late = (model(xs, View.whole(snapshots, Noise(0), first_step=step)) for step in (0, 9))
    assert not torch.equal(early, late)


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("case", list(MODELS))
def test_kept_sums_give_the_same(case, fixed, timeline, close, gradients):
    model = built(case)
    xs, snapshots = prepared(model, timeline())
    xs = xs[:1].expand(xs.shape) if fixed else xs
    noise = Noise(2)
    sums = View.whole(snapshots).aggregate(xs)
    assert sums.shape == (7, 13, 3)
    expected = model(xs, View.whole(snapshots, noise))
    actual = model(xs, View.whole(snapshots, noise, features=(xs, sums)))
    close(actual, expected)
    parameters = list(model.parameters())
    for got, want in zip(gradients(actual, parameters), gradients(expected, parameters), strict=True):
        close(got, want)
    other = model(xs, View.whole(snapshots, noise, features=(xs, sums.flip(0))))
    if case == "recurrent gat":  # attention reads rows, and no sums
        assert torch.equal(other, actual)
        return
    with pytest.raises(AssertionError, match="differs"):
        close(other, expected)


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
    view = View.whole(watched)
    watched.asked.clear()
    model(xs, view)
    assert watched.asked == [0, 1, 2, 3, 0, 1, 2, 3]
    if case != "recurrent gat":
        view = View.whole(watched, features=(xs, View.whole(snapshots).aggregate(xs)))
        watched.asked.clear()
        model(xs, view)
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
        model(xs, View.whole(snapshots)).square().sum().backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert before == {name: set(vars(module)) for name, module in model.named_modules()}


def test_head_is_optional(timeline):
    model = build("wd-gcn", 3, 5, hidden=4, head=False)
    assert model.head is None
    assert model.out_channels == 5
    xs, snapshots = prepared(model, timeline(2))
    assert model(xs.float(), View.whole(snapshots)).shape == (2, 13, 5)


def test_what_does_not_fit_is_refused():
    layer = SpatialTemporal(GCNLayer(3, 4), LSTM(4, 4))
    with pytest.raises(ConfigError, match="reads 3 channels, but layer 0 gives 4"):
        DynamicModel([layer, SpatialTemporal(GCNLayer(3, 4), LSTM(4, 4))])
    with pytest.raises(ConfigError, match="gives 7"):
        SpatialTemporal(GCNLayer(3, 4), LSTM(4, 4), concat=True)
    with pytest.raises(ConfigError, match="shared"):
        SpatialTemporal(GCN2Layer(3), LSTM(3, 3))
    with pytest.raises(ConfigError, match="dropout"):
        DynamicModel([layer], LinearLayer(4, 2, dropout=0.5))
    with pytest.raises(ConfigError, match="empty"):
        DynamicModel([])


def test_a_head_that_reads_neighbours_is_refused_before_ranks_start(record):
    layer, data = SpatialTemporal(GCNLayer(5, 4), LSTM(4, 4)), Timeline.from_record(record)
    wrong = DynamicModel([layer], GCNLayer(4, 3))
    for layout in ("", "vertex=2", "time=2"):
        with pytest.raises(ConfigError, match=r"head GCNLayer\(4, 3.*\) reads neighbours; use one that reads none"):
            fit(wrong, data, "node-classification", layout=layout, epochs=1)
    run = fit(DynamicModel([layer], LinearLayer(4, 3)), data, "node-classification", epochs=1)
    assert run.model.head.out_channels == 3
