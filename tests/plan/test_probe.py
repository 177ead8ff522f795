"""What a layer keeps for backward is a line in rows and entries, which three small runs find."""

from __future__ import annotations

import gc

import pytest
import torch

from trisect.errors import LayoutError
from trisect.nn import build
from trisect.nn.models.source import NamedModel
from trisect.plan import probe

TIMELINES = ("cd-gcn", "tm-gcn", "evolvegcn-o", "evolvegcn-h")


@pytest.mark.parametrize("name", ["gcn", "sage", "gcnii", "resgcn+", "gat", "gin", "cd-gcn", "tm-gcn", "evolvegcn-o"])
def test_the_line_holds_at_another_size(name):
    model = build(name, 5, 3, layers=3, hidden=16)
    timeline = name in TIMELINES
    for layer in model.stack:
        saved = probe.saved_by(layer, timeline)
        rows, degree = 200, 7
        steps = probe._STEPS if timeline else 1
        measured = probe._record(layer, rows, degree, False, torch.float32, steps if timeline else 0)
        predicted = sum(each.bytes(rows * steps, rows * degree * steps) for each in saved.inside)
        # snapshots of a timeline may be summed up in groups whose size depends on the rows
        assert predicted == pytest.approx(sum(measured.sizes), rel=0.02 if steps == 1 else 0.15, abs=64)
        assert (saved.reads, saved.writes) == (measured.reads, measured.writes)


@pytest.mark.parametrize("name", ["gat", "gin", "cd-gcn", "evolvegcn-h"])
def test_nothing_of_a_look_is_left(name):
    model = build(name, 5, 3, layers=2, hidden=16)

    def tensors():
        gc.collect()
        return sum(type(each) in (torch.Tensor, torch.nn.Parameter) for each in gc.get_objects())

    for layer in model.stack:
        probe._record(layer, 64, 4, False, torch.float32, probe._STEPS if name in TIMELINES else 0)
    before = tensors()
    for layer in model.stack:
        probe._record(layer, 64, 4, False, torch.float32, probe._STEPS if name in TIMELINES else 0)
    assert tensors() <= before


def test_a_wider_layer_keeps_more():
    narrow, wide = (build("gcnii", 5, 3, layers=1, hidden=hidden).stack[2] for hidden in (16, 32))
    kept = [sum(each.row for each in probe.saved_by(layer, False).inside) for layer in (narrow, wide)]
    assert kept[1] > 1.9 * kept[0]


def test_a_layer_on_the_meta_device():
    from trisect.nn.models.source import NamedModel

    layer = NamedModel("gcnii", {"layers": 2, "hidden": 16}, 0).outline(5, 3).stack[2]
    assert layer.weight.is_meta if hasattr(layer, "weight") else all(p.is_meta for p in layer.parameters())
    real = build("gcnii", 5, 3, layers=2, hidden=16).stack[2]
    assert probe.look(layer, False, False, torch.float32, 3) == probe.look(real, False, False, torch.float32, 3)
    assert probe.key_of(layer) == probe.key_of(real)


def test_layers_that_are_alike_are_run_once(monkeypatch):
    first, second = (build("gcn", 5, 3, layers=2, hidden=17).stack[0] for _ in range(2))
    saved = probe.saved_by(first, False)
    monkeypatch.setattr(probe, "look", None)
    assert probe.saved_by(second, False) is saved
    with pytest.raises(TypeError):
        probe.saved_by(second, False, degree=9)  # another matrix, another look
    with pytest.raises(TypeError):
        probe.saved_by(second, True)


def test_what_passes_in_a_plain_layer():
    """Nothing of a GCN layer belongs to entries; rows are written a few times over."""
    layer = build("gcn", 16, 16, layers=2, hidden=16).stack[0]
    saved = probe.saved_by(layer, False)
    assert saved.backward.entry == pytest.approx(0.0, abs=1.0)
    # the gradients of output and input, and what lies between them
    assert 2 * 64 <= saved.backward.row <= 4 * 64
    assert 0.0 < saved.forward.bytes(1000, 3000, 1) < saved.forward.bytes(2000, 6000, 1)


def test_a_layer_of_too_large_weights_is_not_tried():
    wide = NamedModel("gcn", {"layers": 3, "hidden": 200_000}, 0).outline(64, 10).stack[1]
    assert wide.weight.is_meta
    with pytest.raises(LayoutError, match="which a plan does not build"):
        probe.saved_by(wide, False)
