"""The timeline measurement runs, and its CD-GCN peer is the same model."""

from __future__ import annotations

import pytest
import torch

from trisect.nn import build
from trisect.views.view import View
from trisect_bench import timeline
from trisect_bench._timeline_data import CLASSES, make

SIZES = {"steps": 4, "vertices": 60, "edges": 150, "life": 2}


def peer_and_ours(hidden: int = 6) -> tuple[torch.Tensor, torch.Tensor, object]:
    """Outputs of both with the same parameters, and the peer."""
    pytest.importorskip("torch_geometric")
    from trisect_bench._timeline_peers import _CDGCN

    data = make(**SIZES)
    ours = build("cd-gcn", data.x.shape[2], CLASSES, layers=2, hidden=hidden)
    peer = _CDGCN(data, hidden, 2)
    with torch.no_grad():
        for number, layer in enumerate(ours.layers):
            spatial, temporal = layer.spatial, layer.temporal
            peer.convs[number].lin.weight.copy_(spatial.weight)
            spatial.bias.uniform_(-0.5, 0.5)
            peer.convs[number].bias.copy_(spatial.bias)
            peer.lstms[number].weight_ih_l0.copy_(temporal.weight_ih)
            peer.lstms[number].weight_hh_l0.copy_(temporal.weight_hh)
            peer.lstms[number].bias_ih_l0.copy_(temporal.bias)
            peer.lstms[number].bias_hh_l0.zero_()
        peer.head.weight.copy_(ours.head.weight)
        peer.head.bias.copy_(ours.head.bias)
        sums = View.whole(data.snapshots).aggregate(data.x)
        return peer(), ours(data.x, View.whole(data.snapshots, features=(data.x, sums))), peer


def test_the_cd_gcn_peer_computes_the_same() -> None:
    theirs, ours, peer = peer_and_ours()
    torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-5)
    peer.matrices.reverse()
    with torch.no_grad():
        assert not torch.allclose(peer(), ours, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", ["cd-gcn", "evolvegcn-o"])
def test_an_epoch_lowers_the_loss(model: str) -> None:
    epoch = timeline.trisect(model, 6, **SIZES)
    losses = [epoch() for _ in range(30)]
    assert losses[-1] < losses[0]


def test_run_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    result = timeline.run(models=["cd-gcn"], hidden=[6], rounds=1, threads=1, **SIZES)
    found = result["models"]["cd-gcn, hidden 6"]
    assert found["trisect"]["best"] == min(found["trisect"]["seconds"])
    assert len(found["trisect"]["seconds"]) == 1
    timeline.show(result)
    assert "trisect" in capsys.readouterr().out
