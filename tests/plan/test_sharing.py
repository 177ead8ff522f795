"""Ranks that share a host, kinds of layers and losses on pairs, in the cost model and in the memory."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.plan.workloads import cluster, static, timeline

from trisect.errors import ConfigError
from trisect.layout import parse_layout
from trisect.nn.base import Layer
from trisect.nn.conv.convolution import LinearLayer
from trisect.nn.conv.gin import GINLayer
from trisect.plan.build import schedule_of
from trisect.plan.cluster import PAIRS, cluster_of_mapping
from trisect.plan.costs import CostModel, working_ranks
from trisect.plan.memory import MemoryModel
from trisect.plan.probe import saved_by
from trisect.plan.search import search
from trisect.plan.work import kind_of
from trisect.schedule.action import Action, Verb
from trisect.views.trace import trace_of

CPU = {"device": {"host_link": None}, "devices": 2}


def _costs(workload, machine, text, verb=Verb.FORWARD):
    """The seconds of work and those of overhead of the first chunk or block, on rank 0."""
    plan = workload.plan(parse_layout(text))
    costs, [own, *_] = CostModel(workload, plan, machine, plan), schedule_of(plan)
    pieces = [action for action in own if action.verb is verb and action.chunk == 0 and not action.block]
    assert pieces
    assert any(piece.works for piece in pieces)
    return tuple(sum(cost(0, piece) for piece in pieces) for cost in (costs.compute, costs.overhead))


def _compute(workload, machine, text, verb=Verb.FORWARD):
    return _costs(workload, machine, text, verb)[0]


def test_a_stage_that_works_while_others_wait_has_the_host_for_itself():
    workload = static()
    machine = cluster(**CPU, shares={1: 1.0, 2: 0.4}, single=0.6)
    plan = workload.plan(parse_layout("layer=2"))
    assert working_ranks(plan, 2) == 1
    assert working_ranks(workload.plan(parse_layout("layer=2,chunks=4")), 2) == 2
    assert working_ranks(workload.plan(parse_layout("vertex=2,layer=2")), 4) == 2
    slower = replace(machine, single=0.3)
    assert _compute(workload, slower, "layer=2") == pytest.approx(2.0 * _compute(workload, machine, "layer=2"))
    # where chunks follow each other, both stages work
    assert machine.share(2, 2) == 0.4
    assert machine.share(4, 2) == pytest.approx(0.4)
    assert machine.share(4) == pytest.approx(0.2)


def test_waits_take_turns_where_ranks_are_more_than_cores():
    workload, wait = static(), Action(Verb.WAIT, first=3, exchange="h")
    machine = cluster(**{**CPU, "device": {"host_link": None, "turn": 1.0}})

    def overhead(text):
        plan = workload.plan(parse_layout(text))
        return CostModel(workload, plan, machine, plan).overhead(0, wait)

    assert overhead("vertex=2") < 1e-3
    assert overhead("vertex=4") > 1.0


def test_kinds_and_their_ratios():
    def kind(layer, *, along=False):
        return kind_of(layer, trace_of(layer, timeline=along))

    assert kind(GINLayer(4, 4)) == "GINLayer"
    assert kind(LinearLayer(4, 4)) == "_LinearLayer"
    assert kind(timeline().layers[0], along=True) == "GCNLayer+LSTM"
    workload, machine = static(), cluster()
    twice = replace(machine, device=replace(machine.device, layers={"GCNLayer": {32: (2.0, 2.0, 1.0) * 2}}))
    assert 1.7 < _compute(workload, twice, "vertex=1") / _compute(workload, machine, "vertex=1") <= 2.0
    with pytest.raises(ConfigError, match=r"no device\.kept: another version measured it; measure this machine anew"):
        cluster_of_mapping(twice.plain(), "it")
    rated = replace(twice, device=replace(twice.device, kept={"GCNLayer": (0.5, 0.6)}))
    assert cluster_of_mapping(rated.plain(), "it") == rated


def test_pairs_cost_time_and_memory():
    workload = timeline()
    paired = replace(workload, pairs=500.0, pair_channels=64, judged_pairs=(0, 0))
    machine = cluster(device={"layers": {PAIRS: {256: (1.0,) * 6}}})
    channels = workload.plan(parse_layout("vertex=1")).out_channels
    without, with_pairs = (_compute(each, machine, "vertex=1", Verb.BACKWARD) for each in (workload, paired))
    # of each row two products and their gradients, of each pair both rows for each end
    by_row, by_pair = 8 * channels * 64 + 4 * 256, 4 * 256
    assert with_pairs - without == pytest.approx(24 * (1000 * by_row + 500 * by_pair) / 1e9)
    without, with_pairs = (_compute(each, machine, "vertex=1") for each in (workload, paired))
    assert with_pairs - without == pytest.approx(24 * (1000 * by_row / 2 + 500 * (2 * 256 + 40)) / 1e9)
    many = replace(paired, pairs=200_000.0)
    whole, blocks = (
        MemoryModel(many).of(many.plan(parse_layout(layout)), machine.device) for layout in ("blocks=1", "blocks=4")
    )
    assert whole.pairs > 2.0 * blocks.pairs > 0.0
    keeping = replace(many, remembered=lambda times: 8_000_000 // times)
    for layout, more in (("blocks=4", 8e6), ("time=2,blocks=4", 4e6)):
        with_past, without_past = (
            MemoryModel(each).of(each.plan(parse_layout(layout)), machine.device) for each in (keeping, many)
        )
        assert with_past.total - without_past.total == with_past.pairs - without_past.pairs == more
    judged = replace(paired, judged_pairs=(50_000, 1_000_000))
    assert MemoryModel(judged).of(judged.plan(parse_layout("blocks=1")), machine.device).evaluation > 16e6


def test_parts_share_pairs_and_each_draws_all_of_them():
    workload = replace(timeline(), pairs=4000.0, pair_channels=64, fetches=True)

    def beyond(layout, *ratios):
        """The seconds that pairs cost, with these ratios of rows, pairs and draws."""
        machines = (
            cluster(device={"layers": {PAIRS: {256: tuple(max(r, 1e-12) for r in each) * 2}}})
            for each in (ratios, (0, 0, 0))
        )
        with_pairs, without = (_compute(workload, machine, layout) for machine in machines)
        return with_pairs - without

    assert beyond("vertex=2", 0, 1, 0) == pytest.approx(beyond("vertex=1", 0, 1, 0) / 2)
    assert beyond("vertex=2", 0, 0, 1) == pytest.approx(beyond("vertex=1", 0, 0, 1) * 2)  # and deals them
    # each part reads its own rows, and of the others those that some of its pairs end in
    fetched = workload.fetched_rows(parse_layout("vertex=2"))[0]
    assert fetched == round(1000 * (1 - math.exp(-4000 / 2 / 2 / 1000)))
    assert beyond("vertex=2", 1, 0, 0) == pytest.approx(beyond("vertex=1", 1, 0, 0) * (500 + fetched / 2) / 1000)
    assert workload.fetched_rows(parse_layout("vertex=1")) == [0] * 24


def test_a_kind_that_threads_help_less_keeps_more_of_its_speed():
    kept = {"GCNLayer": (0.5, 0.6), "GINLayer": (0.5, 0.6), "EvolvingO": (0.9, 0.6), PAIRS: (0.4, 0.4)}
    machine = cluster(**CPU, shares={1: 1.0, 2: 0.5})
    known = replace(machine, device=replace(machine.device, kept=kept))
    assert known.device.keeps("EvolvingO", back=False) == pytest.approx(1.8)
    assert known.device.keeps("EvolvingO", back=True) == 1.0
    assert known.device.keeps("GCN2Layer", back=False) == 1.0
    evolving, plain = timeline("evolvegcn-o"), static()
    # one of two ranks; alone a kind has all of its speed, and one in the middle keeps what all do
    assert _compute(evolving, known, "time=2") < 0.8 * _compute(evolving, machine, "time=2")
    assert _compute(evolving, known, "time=1") == _compute(evolving, machine, "time=1")
    assert _compute(plain, known, "vertex=2") == _compute(plain, machine, "vertex=2")
    with pytest.raises(ConfigError, match="kept"):
        cluster(device={"kept": {"GCNLayer": (0.5,)}})


def test_chunks_that_read_history_cost_besides():
    workload, machine = static(), cluster()
    slower = replace(machine, device=replace(machine.device, stale=1e-3))

    def overhead(chosen, layout):
        return _costs(workload, chosen, layout)[1]

    assert overhead(slower, "layer=2,chunks=4") - overhead(machine, "layer=2,chunks=4") >= 2e-3
    assert overhead(slower, "vertex=1") == overhead(machine, "vertex=1")


def test_tensors_of_the_heap_are_told_from_those_of_the_pool():
    inside = saved_by(GINLayer(8, 8, mlp_norm="layer", activation="elu"), False).inside
    assert {tensor.pooled for tensor in inside} == {True, False}
    assert saved_by(LinearLayer(8, 8), False).pooled


class _Choosy(Layer):
    """A layer that can be traced, and that more rows of a ring do not suit."""

    in_channels = out_channels = 6

    def forward(self, x, g):
        if x.shape[0] > 100:
            raise ValueError("too many rows")
        return x


def test_a_layer_that_cannot_be_run_is_named():
    workload = static()
    odd = replace(workload, layers=(_Choosy(), *workload.layers))
    assert not any("could not be run" in line for line in search(workload, cluster(), 1).assumptions)
    told = [line for line in search(odd, cluster(), 1).assumptions if "could not be run" in line]
    assert len(told) == 1
    assert "too many rows" in told[0]
    assert torch.get_default_dtype() == torch.float32
