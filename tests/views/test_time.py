"""Recurrent modules along time, cut into blocks and runs, against one process that goes over all steps at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ranks import on_ranks
from trisect.comm.ledger import Ledger
from trisect.comm.mesh import Mesh
from trisect.comm.transport import Transport
from trisect.comm.wire import encoded_bytes
from trisect.layout import Wire, parse_layout
from trisect.nn.temporal.evolving import MatrixGRU
from trisect.nn.temporal.mproduct import MProduct
from trisect.nn.temporal.recurrent import GRU, LSTM
from trisect.noise import Noise
from trisect.views import recur as recur_module
from trisect.views.door import Door
from trisect.views.local import Local
from trisect.views.recur import Recurrences
from trisect.views.redistribute_steps import RedistributeSteps
from trisect.views.states import Form
from trisect.views.timecut import TimeCut, equal_shares
from trisect.views.view import View

ROWS, WIDE, STEPS = 11, 6, 7


# Models: rows of single steps, and two recurrent modules


class Evolution(nn.Module):
    """A weight [in, out] that evolves, from summaries [steps, in, out] or [steps, in, 0]."""

    state_kind = "weight"

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs))
        self.gru = MatrixGRU(inputs, outputs)

    def initial_state(self, rows: int, *, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
        return (self.weight,)

    def forward(self, frames: Sequence[Tensor], state: tuple[Tensor, ...], first_step: int) -> Any:
        weight, weights = state[0], []
        for summary in frames[0].unbind():
            weight = self.gru(summary if summary.numel() else weight, weight)
            weights.append(weight)
        return torch.stack(weights), (weight,)


class Learned(GRU):
    """A GRU that begins with a state of its own, made anew for each number of rows."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.start = nn.Parameter(torch.randn(outputs))

    def initial_state(self, rows: int, *, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
        return (self.start.tanh().expand(rows, -1),)


MODULES = {
    "lstm": LSTM,
    "gru": GRU,
    "learned": Learned,
    "mproduct": lambda inputs, _: MProduct(inputs, window=4),
}


class Net(nn.Module):
    """Of a kind in `MODULES`, `evolving` or `summarised`; `concat`: the first module reads x beside the rows."""

    def __init__(self, kind: str, concat: bool) -> None:
        super().__init__()
        self.kind, self.concat = kind, concat
        self.first, self.last = nn.Linear(WIDE, 5), nn.Linear(5, 3)
        if kind in ("evolving", "summarised"):
            self.one, self.two = Evolution(5, 5), Evolution(5, 5)
            return
        make: Any = MODULES[kind]
        self.one = make(5 + WIDE * concat, 5)
        self.middle = nn.Linear(self.one.out_channels, 5)
        self.two = make(5, 5)

    def forward(self, x: Tensor, g: Any) -> Tensor:
        y = self.first(x)
        if self.kind in ("evolving", "summarised"):
            for number, module in enumerate((self.one, self.two)):
                g.enter(number)
                summaries = y[:, :5].transpose(1, 2) if self.kind == "summarised" else y.new_empty(len(y), 5, 0)
                y = torch.tanh(y @ g.recur(module, summaries))
            return self.last(y)
        g.enter(0)
        y = g.recur(self.one, y, x) if self.concat else g.recur(self.one, y)
        y = torch.tanh(self.middle(y))
        g.enter(1)
        return self.last(g.recur(self.two, y))


class Whole:
    """The view of one process that has all steps and wants no states."""

    def enter(self, layer: int) -> None:
        pass

    def recur(self, module: Any, *frames: Tensor) -> Tensor:
        state = module.initial_state(frames[0].shape[1], dtype=frames[0].dtype, device=frames[0].device)
        out: Tensor = module(list(frames), state, 0)[0]
        return out


# What the pipeline will do


def one_pass(net: Net, cut: TimeCut, along: Recurrences, case: dict[str, Any], low: int, high: int) -> dict[str, Any]:
    """Forward over blocks with states alone, the last with all; backward over blocks, each again."""
    x, weight = problem(case)
    x, weight = x[:, low:high], weight[:, low:high]
    along.begin(cut, keeps=True)
    along.fixed = x[0] if case["fixed"] else None
    gradient, outputs = torch.zeros(x.shape, dtype=x.dtype), torch.zeros(weight.shape, dtype=x.dtype)

    def cell(block: int, *, again: bool, trained: bool) -> tuple[Tensor, Tensor, View]:
        steps = cut.runs[block][cut.run]
        own = x[0].expand(len(steps), -1, -1) if case["fixed"] else x[steps.start : steps.stop].clone()
        along.enter(block, again=again)
        with torch.set_grad_enabled(trained):
            own = own.requires_grad_() if case["trained_x"] and trained else own
            view = View(Local([], high - low), along, steps=steps)
            return own, net(own, view), view

    last = cut.blocks - 1
    kept: dict[int, tuple[Tensor, Tensor, View]] = {}
    for block in range(cut.blocks):
        made = cell(block, again=False, trained=block == last and not case["groups"])
        if block == last and not case["groups"]:
            kept[block] = made
    for block in reversed(range(cut.blocks)):
        if block not in kept:
            if case["groups"]:
                cell(block, again=True, trained=False)
            kept[block] = cell(block, again=True, trained=True)
        own, out, view = kept.pop(block)
        steps = cut.runs[block][cut.run]
        wanted = weight[steps.start : steps.stop]
        outputs[steps.start : steps.stop] = out.detach()
        token = view.token
        assert token is not None
        roots = [out, token] if wanted.numel() and wanted.abs().max() > 0 else [token]
        roots = [root for root in roots if root.requires_grad]
        torch.autograd.backward(roots, [wanted, torch.zeros(())][-len(roots) :])
        if own.grad is not None:
            gradient[steps.start : steps.stop] = own.grad
    unread = left_of(along, past=False)
    along.end()
    return {"out": outputs, "x": gradient, "unread": unread}


def evaluate(net: Net, cut: TimeCut, along: Recurrences, x: Tensor, states: Any = None, keep: int | None = None) -> Any:
    """Forward alone; the outputs of the own steps, and the states before step `keep`."""
    along.begin(cut, keeps=False)
    if states is not None:
        along.resume(states, cut.runs[0][0].start, keep)
    outputs = torch.zeros(*x.shape[:2], 3, dtype=x.dtype)
    with torch.no_grad():
        for block in range(cut.blocks):
            steps = cut.runs[block][cut.run]
            along.enter(block)
            outputs[steps.start : steps.stop] = net(
                x[steps.start : steps.stop], View(Local([], x.shape[1]), along, steps=steps)
            )
    kept = along.kept_states()
    along.end()
    return outputs, kept


# Cases

RUNS: dict[str, list[list[tuple[int, int]]]] = {
    "1,1": [[(0, 7)]],
    "1,3": [[(0, 3)], [(3, 4)], [(4, 7)]],
    "2,1": [[(0, 4), (4, 7)]],
    "2,3": [[(0, 2), (2, 3)], [(3, 3), (3, 4)], [(4, 6), (6, 7)]],
    "2,few": [[(0, 1), (1, 1)], [(1, 1), (1, 3)], [(3, 7), (7, 7)]],
    "3,1": [[(0, 3), (3, 5), (5, 7)]],
    "3,3": [[(0, 1), (1, 2), (2, 3)], [(3, 3), (3, 4), (4, 4)], [(4, 5), (5, 6), (6, 7)]],
    "3,few": [[(0, 1), (1, 2), (2, 2)], [(2, 3), (3, 3), (3, 3)], [(3, 5), (5, 5), (5, 7)]],
}
KINDS = [
    ("lstm", "carry"),
    ("lstm", "redistribute"),
    ("gru", "carry"),
    ("gru", "redistribute"),
    ("learned", "carry"),
    ("learned", "redistribute"),
    ("mproduct", "carry"),
    ("mproduct", "redistribute"),
    ("mproduct", "halo"),
    ("evolving", "none"),
    ("evolving", "carry"),
    ("summarised", "carry"),
]


def cases_of(name: str, variants: str = "") -> dict[str, dict[str, Any]]:
    """Every exchange on one cut of the steps; `variants`: of all that are named below, separated by spaces."""
    made: dict[str, dict[str, Any]] = {}
    time = name.split(",")[0]
    for kind, exchange in KINDS:
        words = {exchange, "none"} if time == "1" and kind != "summarised" else {exchange}
        for word in sorted(words):
            plain = {
                "kind": kind,
                "exchange": word,
                "runs": RUNS[name],
                "concat": kind not in ("evolving", "summarised"),
                "chunks": 1,
                "trained_x": True,
                "fixed": False,
                "groups": False,
                "loss": "all",
                "wire": "float32",
            }
            more = {
                "plain": {},
                "groups": {"groups": True, "chunks": 3},
                "chunks": {"chunks": 10, "loss": "some"},
                "more-chunks-than-rows": {"chunks": 13, "concat": False},
                "data": {"trained_x": False, "loss": "some"},
                "fixed": {"trained_x": False, "fixed": True, "chunks": 2},
                "no-loss-behind": {"loss": "first", "chunks": 2},
            }
            for text in variants.split() or more:
                made[f"{kind}-{word}-{text}"] = {**plain, **more[text]}
    return made


def problem(case: dict[str, Any]) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(STEPS, ROWS, WIDE, generator=draw, dtype=torch.float64)
    weight = torch.randn(STEPS, ROWS, 3, generator=draw, dtype=torch.float64)
    if case["fixed"]:
        x = x[0].expand(STEPS, -1, -1)
    steps = {"all": range(STEPS), "some": (1, 4), "first": (0,)}[case["loss"]]
    weight[[step for step in range(STEPS) if step not in steps]] = 0.0
    return x, weight


def make_net(case: dict[str, Any]) -> Net:
    torch.manual_seed(1)
    return Net(case["kind"], case["concat"]).double()


def gradients(net: Net) -> dict[str, Tensor]:
    return {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in net.named_parameters()}


def rank(mesh: Mesh, cases: dict[str, dict[str, Any]], spoilt: bool = False) -> dict[str, dict[str, Any]]:
    results = {}
    for name, case in cases.items():
        ledger = Ledger()
        door = Door(Transport(mesh, ledger, case["wire"]), torch.float64)
        door.noise, told = Noise(5, 1), set()
        door.told = lambda at, *_, told=told: told.add((at.verb, at.exchange, at.back))
        runs = [[range(*run) for run in block] for block in case["runs"]]
        cut = TimeCut(runs, mesh.run_index, case["chunks"])
        along = Recurrences(door, lambda _, case=case: case["exchange"])
        net = make_net(case)
        if spoilt and mesh.run_index == 1:
            net.two.weight_hh.data += 1e-6
        low, high = equal_shares(ROWS, mesh.layout.vertex)[mesh.part_index : mesh.part_index + 2]
        result = one_pass(net, cut, along, case, low, high)
        door.transport.flush()
        sent = {entry.kind: entry.bytes for entry in ledger.entries() if entry.axis == "time"}
        found = {n: door.transport.sum_everywhere(g) for n, g in gradients(net).items()}
        outputs, _ = evaluate(net, cut, along, problem(case)[0][:, low:high])
        results[name] = {
            **found,
            **result,
            "evaluated": outputs,
            "sent": sent,
            "told": told,
            "left": result["unread"] + left_of(along),
        }
        door.transport.flush()
    return results


def left_of(along: Recurrences, past: bool = True) -> int:
    """How many states, gradients and, with `past`, frames are kept: none when a pass has ended."""
    kept = [(each.states, each) for each in along._exchanges.values()]
    states = sum(len(one.before) + len(one.after) + len(one.wanted) for one, _ in kept)
    frames = sum(len(getattr(each, "_past", ())) for _, each in kept) if past else 0
    return states + frames + sum(len(getattr(each, "_gradients", ())) for _, each in kept)


@lru_cache(None)
def wanted_of(kind: str, concat: bool, trained_x: bool, fixed: bool, loss: str) -> dict[str, Tensor]:
    case = {"kind": kind, "concat": concat, "trained_x": trained_x, "fixed": fixed, "loss": loss}
    net, (x, weight) = make_net(case), problem(case)
    x = x.clone().requires_grad_(trained_x)
    out = net(x, Whole())
    (out * weight).sum().backward()
    gradient = torch.zeros_like(x) if x.grad is None else x.grad
    return {**gradients(net), "out": out.detach(), "x": gradient, "evaluated": out.detach()}


def difference(case: dict[str, Any], ranks: Sequence[dict[str, Any]], layout: str) -> float:
    want = wanted_of(*(case[key] for key in ("kind", "concat", "trained_x", "fixed", "loss")))
    parts, worst = parse_layout(layout).vertex, 0.0
    for name, value in want.items():
        got = ranks[0][name]
        if name in ("out", "x", "evaluated"):  # each rank has its steps of its rows, and zeros
            sums = [sum(one[name] for one in ranks[part::parts]) for part in range(parts)]
            got = torch.cat([torch.as_tensor(one) for one in sums], 1)
        worst = max(worst, ((got - value).abs().max() / value.abs().max().clamp_min(1e-6)).item())
    return worst


def carry_bytes(cut: TimeCut, rows: Sequence[int], form: Form) -> int:
    """Bytes that leave all ranks in a pass forward, and as many backward: a state at each change of run."""
    places = [(block, run) for block in range(cut.blocks) for run in range(cut.times) if cut.runs[block][run]]
    changes = sum(one[1] != other[1] for one, other in pairwise(places))
    return changes * sum(count * width for count, width in map(form.shape, rows)) * 8


def window_bytes(cut: TimeCut, rows: Sequence[int], form: Form, wire: Wire) -> int:
    """Bytes that leave all ranks in a pass forward, and as many backward: frames of other runs."""
    frames = sum(
        len(cut.read_before(block, run, owner, form.frames + 1))
        for block in range(cut.blocks)
        for run in range(cut.times)
        for owner in range(cut.times)
        if owner != run
    )
    return encoded_bytes(frames * sum(rows), form.widths[0], wire, torch.float64)


def formula(case: dict[str, Any], rows: Sequence[int]) -> dict[str, int]:
    """Bytes along time of a pass of training."""
    runs, f64 = [[range(*run) for run in block] for block in case["runs"]], torch.float64
    net, cut = make_net(case), TimeCut([[range(*run) for run in block] for block in case["runs"]])
    total: dict[str, int] = {}
    for number, module in enumerate((net.one, net.two)):
        form = Form.of(module, f64, torch.device("cpu"))
        if case["exchange"] == "carry":
            total["carry"] = total.get("carry", 0) + 2 * carry_bytes(cut, rows, form)
        if case["exchange"] == "halo":
            total["halo"] = total.get("halo", 0) + 2 * window_bytes(cut, rows, form, case["wire"])
        if case["exchange"] == "redistribute":
            beside = WIDE if case["concat"] and number == 0 else 0
            out = module.out_channels
            for block in range(len(runs)):
                last = block == len(runs) - 1
                times = 3 if case["groups"] else 1 if last else 2
                forward = 5 + (0 if case["fixed"] else beside)
                back = 5 + (beside if case["trained_x"] else 0)
                total.setdefault("redistribute", 0)
                for width, count in ((forward, times), (out, times), (out, 1), (back, 1)):
                    size = RedistributeSteps.bytes(cut, rows, width, f64, case["wire"], block)
                    total["redistribute"] += count * size
    return {kind: size for kind, size in total.items() if size}


LAYOUTS = [
    ("1,1", "time=1", "plain"),
    ("1,3", "time=1", "groups data"),
    ("2,1", "time=2", "plain no-loss-behind"),
    ("2,3", "time=2", ""),
    ("2,few", "time=2", "groups chunks"),
    ("3,1", "time=3", "chunks"),
    ("3,3", "time=3", "groups data"),
    ("3,few", "time=3", "plain groups fixed"),
    ("2,3", "time=2,vertex=2", "chunks"),
    ("3,3", "time=3,transport=network", "more-chunks-than-rows"),
]


@pytest.mark.parametrize(("runs", "layout", "variants"), LAYOUTS)
def test_cuts_by_time_are_exact(runs: str, layout: str, variants: str) -> None:
    """Outputs and every gradient equal those of one process; bytes equal the formulas; nothing is kept."""
    cases, parts = cases_of(runs, variants), parse_layout(layout).vertex
    ranks = on_ranks(__file__, "rank", layout, cases)
    bounds = equal_shares(ROWS, parts)
    rows = [high - low for low, high in itertools.pairwise(bounds)]
    wrong = {}
    for name, case in cases.items():
        own = [one[name] for one in ranks]
        if case["kind"] == "summarised" and parts > 1:
            continue  # its summaries here are of one part's rows
        worst = difference(case, own, layout)
        sent: dict[str, int] = {}
        for one in own:
            for kind, size in one["sent"].items():
                sent[kind] = sent.get(kind, 0) + size
        sent = {kind: size for kind, size in sent.items() if size}
        if worst > 1e-10 or sent != formula(case, rows) or any(one["left"] for one in own):
            wrong[name] = worst, sent, formula(case, rows), [one["left"] for one in own]
    assert not wrong


@pytest.mark.parametrize("wire", ["bfloat16", "int8"])
def test_rows_are_rounded_on_the_wire_and_states_are_not(wire: str) -> None:
    """Bytes equal the formulas in every form, and every post and wait is told."""
    names = {
        "lstm-carry-chunks": "carry",
        "lstm-redistribute-plain": "redistribute steps",
        "mproduct-halo-plain": "window",
    }
    cases = {name: {**cases_of("2,3")[name], "wire": wire} for name in names}
    ranks = on_ranks(__file__, "rank", "time=2", cases)
    for name, exchange in names.items():
        own = [one[name] for one in ranks]
        sent = {kind: sum(one["sent"].get(kind, 0) for one in own) for kind in own[0]["sent"] | own[1]["sent"]}
        assert sent == formula(cases[name], [ROWS])
        assert difference(cases[name], own, "time=2") < (1e-10 if exchange == "carry" else 0.05)
        told = own[0]["told"] | own[1]["told"]
        assert told == {(verb, exchange, back) for verb in ("post", "wait") for back in (False, True)}


def test_a_spoilt_rank_is_seen() -> None:
    """The comparison fails where one rank has another weight."""
    name = "lstm-carry-plain"
    case = cases_of("2,1")[name]
    ranks = on_ranks(__file__, "rank", "time=2", {name: case}, True)
    assert difference(case, [one[name] for one in ranks], "time=2") > 1e-10


def alone(exchange: str = "none") -> Recurrences:
    mesh = Mesh(parse_layout("vertex=1"), 0, torch.device("cpu"))
    return Recurrences(Door(Transport(mesh, Ledger()), torch.float64), lambda _: exchange)


@pytest.mark.parametrize("kind", ["lstm", "mproduct", "evolving"])
def test_passes_forward_begin_and_end_with_states(kind: str) -> None:
    """The states before a step are kept, and a pass from there on has the same outputs."""
    case = {"kind": kind, "concat": False, "fixed": False, "loss": "all"}
    net, (x, _), along = make_net(case), problem(case), alone()
    whole = TimeCut([[range(3)], [range(3, 4)], [range(4, 7)]])
    want, states = evaluate(net, whole, along, x, {}, 4)
    assert set(states) == {0, 1}
    assert (want - net(x, Whole())).abs().max() < 1e-10
    behind, kept = evaluate(net, TimeCut([[range(4, 6)], [range(6, 7)]]), along, x, states)
    assert kept == {}
    assert (behind[4:] - want[4:]).abs().max() < 1e-10
    fresh, _ = evaluate(net, TimeCut([[range(4, 7)]]), along, x)
    assert (fresh[4:] - want[4:]).abs().max() > 1e-10


def test_one_block_of_one_rank_costs_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing comes before and nothing after, the module's own graph is all."""
    monkeypatch.setattr(recur_module, "cross", None)
    case = {"kind": "lstm", "concat": False, "fixed": False, "loss": "all"}
    net, (x, _), along = make_net(case), problem(case), alone()
    along.begin(TimeCut([[range(STEPS)]]), keeps=True)
    along.enter(0)
    out = net(x, View(Local([], ROWS), along, steps=range(STEPS)))
    assert (out - net(x, Whole())).abs().max() < 1e-10


def test_states_without_an_exchange_are_refused() -> None:
    """A state that crosses ranks needs an exchange."""
    case = {"kind": "gru", "concat": False, "fixed": False, "loss": "all"}
    net, (x, _), along = make_net(case), problem(case), alone()
    along.begin(TimeCut([[range(3), range(3, 7)]]), keeps=False)
    along.enter(0)
    with pytest.raises(RuntimeError, match="by no exchange"), torch.no_grad():
        net(x[:3], View(Local([], ROWS), along, steps=range(3)))
