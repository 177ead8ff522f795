"""Dynamic models against slow, literal transcriptions of their formulas: outputs and all gradients, float64, 1e-10."""

from __future__ import annotations

import pytest
import torch

from trisect.nn import GRU, LSTM, MProduct, build
from trisect.views.view import View


def frames_of(timeline):
    """x [steps, vertices, features], the snapshots, and the same as dense matrices."""
    snapshots = [graph.adjacency() for graph in timeline]
    return torch.stack([graph.x for graph in timeline]), snapshots, [a.dense() for a in snapshots]


def leaky(y):
    """RReLU in evaluation: the mean of 1/8 and 1/3 below zero."""
    return torch.where(y >= 0, y, y * (1 / 8 + 1 / 3) / 2)


def spatial(layer, a, x):
    """relu(Â_t X_t W)."""
    return torch.relu(a @ (x @ layer.spatial.weight.t()) + layer.spatial.bias)


def literal_lstm(layer, inputs):
    """One vertex and step after the other."""
    w, u, b = layer.temporal.weight_ih, layer.temporal.weight_hh, layer.temporal.bias
    hidden = u.shape[1]
    rows = []
    for vertex in range(inputs[0].shape[0]):
        h = c = torch.zeros(hidden, dtype=w.dtype)
        steps = []
        for x in inputs:
            i, f, g, o = (w @ x[vertex] + u @ h + b).split(hidden)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            steps.append(h)
        rows.append(torch.stack(steps))
    return torch.stack(rows, 1)


def literal_cd_gcn(model, xs, dense):
    for layer in model.layers:
        xs = literal_lstm(layer, [torch.cat([spatial(layer, a, x), x], 1) for a, x in zip(dense, xs, strict=True)])
    return xs


def literal_wd_gcn(model, xs, dense):
    for layer in model.layers:
        xs = literal_lstm(layer, [spatial(layer, a, x) for a, x in zip(dense, xs, strict=True)])
    return xs


def literal_tm_gcn(model, xs, dense, entry):
    for layer in model.layers:
        y = [spatial(layer, a, x) for a, x in zip(dense, xs, strict=True)]
        w = layer.temporal.window
        z = []
        for t in range(1, len(y) + 1):
            z.append(sum(entry(t, k, w) * y[k - 1] for k in range(max(1, t - w + 1), t + 1)))
        xs = torch.stack(z)
    return xs


def literal_matrix_gru(gru, x, q):
    (wz, wr, wh), (uz, ur, uh), (bz, br, bh) = gru.weight_x, gru.weight_q, gru.bias
    z = torch.sigmoid(wz @ x + uz @ q + bz)
    r = torch.sigmoid(wr @ x + ur @ q + br)
    h = torch.tanh(wh @ x + uh @ (r * q) + bh)
    return (1 - z) * q + z * h


def literal_summary(p, x, k):
    score = (x @ p) / p.norm()
    best = sorted(range(x.shape[0]), key=lambda i: -float(score[i].detach()))[:k]
    return torch.stack([x[i] * torch.tanh(score[i]) for i in best], 1)


def literal_evolvegcn(model, xs, dense):
    for layer in model.layers:
        weight = layer.weight
        out = []
        for a, x in zip(dense, xs, strict=True):
            given = weight if layer.variant == "O" else literal_summary(layer.summary.scorer, x, weight.shape[1])
            weight = literal_matrix_gru(layer.gru, given, weight)
            out.append(leaky(a @ x @ weight))
        xs = torch.stack(out)
    return xs


CASES = {
    "cd-gcn": ({}, literal_cd_gcn),
    "wd-gcn": ({}, literal_wd_gcn),
    "tm-gcn": ({"window": 3}, lambda m, x, d: literal_tm_gcn(m, x, d, lambda t, k, w: 1 / min(w, t))),
    "tm-gcn harmonic": (
        {"window": 4, "kind": "harmonic"},
        lambda m, x, d: literal_tm_gcn(m, x, d, lambda t, k, w: 1 / (t - k + 1)),
    ),
    "tm-gcn ones": ({"window": 2, "kind": "ones"}, lambda m, x, d: literal_tm_gcn(m, x, d, lambda t, k, w: 1)),
    "evolvegcn-o": ({}, literal_evolvegcn),
    "evolvegcn-h": ({}, literal_evolvegcn),
}


def built(name, **options):
    """The model with every parameter away from zero, biases included."""
    model = build(name, 3, 2, layers=2, hidden=4, seed=3, **options).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


@pytest.mark.parametrize("case", list(CASES))
def test_model_is_its_formula(case, timeline, close, gradients):
    options, literal = CASES[case]
    model = built(case.split()[0], **options)
    xs, snapshots, dense = frames_of(timeline())
    expected = torch.nn.functional.linear(literal(model, xs, dense), model.head.weight, model.head.bias)
    actual = model(xs, View.whole(snapshots))
    close(actual, expected)
    parameters = list(model.parameters())
    wanted = gradients(expected, parameters)
    for got, want in zip(gradients(actual, parameters), wanted, strict=True):
        close(got, want)
    assert all(float(want.abs().max()) > 0 for want in wanted)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("tm-gcn", lambda m, x, d: literal_tm_gcn(m, x, d, lambda t, k, w: 1 / w)),
        ("evolvegcn-o", lambda m, x, d: literal_evolvegcn(m, x.flip(0), d)),
        ("cd-gcn", lambda m, x, d: literal_cd_gcn(m, x, d[1:] + d[:1])),
    ],
)
def test_comparison_fails_on_a_wrong_formula(name, wrong, timeline, close):
    model = built(name, **({"window": 3} if name == "tm-gcn" else {}))
    xs, snapshots, dense = frames_of(timeline())
    wanted = torch.nn.functional.linear(wrong(model, xs, dense), model.head.weight, model.head.bias)
    with pytest.raises(AssertionError, match="differs"):
        close(model(xs, View.whole(snapshots)), wanted)


def test_evolvegcn_evolves_before_the_first_use(timeline, close):
    """Using W_0 itself at the first step, as some libraries do, gives another result."""
    model = built("evolvegcn-o")
    xs, snapshots, dense = frames_of(timeline(1))
    layer = model.layers[0]
    early = leaky(dense[0] @ xs[0] @ layer.weight)
    output = layer(xs, View.whole(snapshots))
    with pytest.raises(AssertionError, match="differs"):
        close(output[0], early)


def test_lstm_and_gru_agree_with_torch(close, gradients):
    torch.manual_seed(0)
    x, y = torch.randn(5, 7, 2, dtype=torch.float64), torch.randn(5, 7, 3, dtype=torch.float64)
    for ours, theirs in ((LSTM(5, 4), torch.nn.LSTM(5, 4)), (GRU(5, 4), torch.nn.GRU(5, 4))):
        ours, theirs = ours.double(), theirs.double()
        with torch.no_grad():
            theirs.weight_ih_l0.copy_(ours.weight_ih)
            theirs.weight_hh_l0.copy_(ours.weight_hh)
            theirs.bias_ih_l0.copy_(ours.bias if isinstance(ours, LSTM) else ours.bias_ih)
            theirs.bias_hh_l0.copy_(torch.zeros(16) if isinstance(ours, LSTM) else ours.bias_hh)
        state = ours.initial_state(7, dtype=torch.float64, device=torch.device("cpu"))
        actual, after = ours((x, y), state, 0)
        expected, last = theirs(torch.cat([x, y], 2))
        close(actual, expected)
        for got, want in zip(after, last if isinstance(last, tuple) else (last,), strict=True):
            close(got, want[0])
        (got,), (want,) = gradients(actual, [ours.weight_ih]), gradients(expected, [theirs.weight_ih_l0])
        close(got, want)


@pytest.mark.parametrize("kind", ["mean", "harmonic", "ones"])
@pytest.mark.parametrize("window", [1, 3, 80])
def test_mproduct_over_more_steps_than_one_product_covers(kind, window, close):
    product = MProduct(2, window=window, kind=kind)
    y = torch.randn(150, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    entry = {"mean": lambda t, k: 1 / min(window, t), "harmonic": lambda t, k: 1 / (t - k + 1), "ones": lambda t, k: 1}
    literal = [sum(entry[kind](t, k) * y[k - 1] for k in range(max(1, t - window + 1), t + 1)) for t in range(1, 151)]
    state = product.initial_state(3, dtype=torch.float64, device=torch.device("cpu"))
    actual, (last,) = product([y], state, 0)
    close(actual, torch.stack(literal))
    assert torch.equal(last, y[150 - window + 1 :])


def test_summary_repeats_the_last_row_where_rows_are_few(close):
    model = build("evolvegcn-h", 3, 2, layers=1, hidden=4, seed=0).double()
    summary = model.layers[0].summary
    x = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    result = summary(x)
    close(result[:, :2], literal_summary(summary.scorer, x, 2))
    assert torch.equal(result[:, 2], result[:, 1])
    assert torch.equal(result[:, 3], result[:, 1])


def test_summary_of_parts_is_the_summary_of_the_whole(close):
    model = build("evolvegcn-h", 3, 2, layers=1, hidden=4, seed=0).double()
    summary = model.layers[0].summary
    x = torch.randn(30, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[5] = x[20] = x[11]
    parts = torch.cat([summary.candidates(part) for part in (x[:3], x[3:17], x[17:])])
    assert torch.equal(summary(parts), summary(x))
    close(summary(x), literal_summary(summary.scorer, x, 4))
