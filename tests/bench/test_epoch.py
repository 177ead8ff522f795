"""The epoch benchmark on a tiny graph: it runs, and its candidates train the same model."""

from __future__ import annotations

import json

import pytest
import torch

from trisect_bench import _pyg_objects, epoch
from trisect_bench._pyg_objects import KINDS
from trisect_bench._static_graph import problem
from trisect_bench._static_peers import plain, pyg, pyg_edges

TINY = {"vertices": 300, "edges": 2000, "features": 12, "hidden": 9, "layers": 3, "classes": 4}


def test_graph_has_the_asked_edges():
    data = problem("gcn", **TINY)
    assert data.graph.adjacency.entries == 2000
    indptr, indices, values = data.csr()
    assert indptr.numel() == 301
    assert values.numel() == indices.numel() == int(indptr[-1])


@pytest.mark.parametrize("model", [model for model in epoch.MODELS if model != "gatv2"])
def test_every_candidate_lowers_the_loss(model):
    pytest.importorskip("torch_geometric")
    candidates = {
        "trisect": epoch.trisect(model, dropout=0.0, **TINY),
        "torch": plain(model, dropout=0.0, **TINY),
        "csr": pyg(model, "csr", dropout=0.0, **TINY),
        "edge_index": pyg(model, "edge_index", dropout=0.0, **TINY),
    }
    for name, step in candidates.items():
        losses = [step() for _ in range(25)]
        assert losses[-1] < losses[0], name


def test_features_of_edges_are_read_by_both():
    pytest.importorskip("torch_geometric")
    sizes = {**TINY, "hidden": 8, "heads": 2, "edge_features": 3, "dropout": 0.0}
    for make in (epoch.trisect, pyg_edges):
        step = make(model="gatv2", **sizes)
        losses = [step() for _ in range(25)]
        assert losses[-1] < losses[0]
    names = [candidate.name for candidate in epoch._candidates("gatv2", None, {})]
    assert names == ["trisect", "pyg edge_index", "pyg edge_index, huge pages"]


def test_pyg_forms_agree():
    pytest.importorskip("torch_geometric")
    losses = {}
    for form in ("csr", "csr-sum", "edge_index"):
        step = pyg("sage", form, dropout=0.0, **TINY)
        losses[form] = torch.tensor([step() for _ in range(3)])
    torch.testing.assert_close(losses["csr"], losses["edge_index"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(losses["csr"], losses["csr-sum"], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(losses["csr"] * 1.01, losses["csr"], rtol=1e-4, atol=1e-5)


def test_result_and_table(capsys):
    result = epoch.run(models=["gcn"], rounds=1, threads=1, forms=[], **TINY)
    json.dumps(result)
    epoch.show(result)
    assert "trisect" in capsys.readouterr().out
    timings = result["models"]["gcn"]
    assert result["speedup_plain"] == pytest.approx(timings["torch"]["best"] / timings["trisect"]["best"])
    assert result["speedup"] is None


@pytest.mark.parametrize("model", list(KINDS))
def test_pygs_own_objects_train_alike(model):
    """The loss of each step is plain PyG's; of a sparse tensor, PyG's GCN reads the graph's few loops otherwise."""
    pytest.importorskip("torch_geometric")
    ours = _pyg_objects.trisect(model, dropout=0.0, **TINY)
    theirs = {form: _pyg_objects.plain(model, form, dropout=0.0, **TINY) for form in ("edge_index", "csr")}
    for _ in range(5):
        loss = ours()
        assert abs(theirs["edge_index"]() - loss) < 1e-5
        assert abs(theirs["csr"]() - loss) < 1e-3
