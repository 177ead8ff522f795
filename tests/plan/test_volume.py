"""The bytes of a pass by formula: gradients added up in a ring, and chunks that read history."""

from __future__ import annotations

from collections.abc import Callable

from trisect.layout import Layout
from trisect.nn import build
from trisect.plan.build import schedule_of
from trisect.plan.plan import make_plan
from trisect.plan.volume import reduce_bytes, volume
from trisect.schedule import Pass
from trisect.views.plan import Plan

Maker = Callable[..., Plan]


def test_gradients_are_those_of_a_ring_over_each_stage() -> None:
    model = build("gcn", 3, 2, layers=2, hidden=4)
    layout = Layout(vertex=2, layer=2, spatial="halo")
    plan = make_plan(model.stack, None, layout, bounds=(0, 1, 2), rows=(5, 5), extra=7)
    sizes = [4 * sum(p.numel() for p in layer.parameters()) for layer in model.stack]
    sizes[-1] += 4 * 7
    assert plan.stage_bytes == sizes
    # each of the two ranks of a stage sends half of its bucket twice
    assert volume(plan, schedule_of(plan))["weights", "reduce"] == 2 * sum(sizes)
    assert [reduce_bytes(plan, stage) for stage in (0, 1)] == sizes
    # a pass forward adds nothing up
    assert ("weights", "reduce") not in volume(plan, schedule_of(plan.forward_only(), pass_=Pass.EVALUATE))


def test_history_sends_nothing(plan_of: Maker) -> None:
    """Chunks of one part read what others of the same rank wrote; parts exchange as much as without chunks."""
    alone = plan_of("gcnii", Layout(chunks=2), layers=1)
    assert alone.stale
    assert volume(alone, schedule_of(alone)) == {}
    layout = Layout(vertex=2, chunks=2, spatial="halo")
    stale = plan_of("gcnii", layout, layers=1)
    exact = plan_of("gcnii", layout, layers=1, stale=False)
    sent = volume(stale, schedule_of(stale))
    assert sent == volume(exact, schedule_of(exact))
    assert sent["vertex", "halo"] == sent["vertex", "halo-gradients"] == 4 * 4 * 4
    assert (stale.chunks, exact.chunks) == (2, 1)


def test_what_a_loss_reads_of_other_parts(plan_of: Maker) -> None:
    plan = plan_of("gcn", Layout(vertex=2, spatial="halo"), fetches=True)
    schedule = schedule_of(plan)
    # two outputs of each row, forward and their gradients back
    assert volume(plan, schedule, [5])["vertex", "fetch"] == 2 * 5 * 2 * 4
    assert ("vertex", "fetch") not in volume(plan, schedule, [0])
