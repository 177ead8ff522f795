"""`trisect predict`: every vertex in the user's order with the user's ids, whatever the order inside."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from trisect.train.run.run_directory import RunDirectory


def test_static_npz_and_parquet_agree(trisect, small, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    assert trisect("train", small, "--out", "run").code == 0
    shown = trisect("predict", "run")
    assert shown.code == 0, shown.err
    assert "(120 rows)" in shown.out
    assert trisect("predict", "run", "--out", "p.npz").code == 0
    table = parquet.read_table(tmp_path / "run" / "predictions.parquet").to_pydict()
    arrays = np.load(tmp_path / "p.npz", allow_pickle=False)
    assert table["vertex"] == list(range(120))
    table["probability"] = list(zip(*(table.pop(f"probability_{k}") for k in range(3)), strict=True))
    assert set(table) == {*arrays.files}
    for name in arrays.files:
        assert np.array_equal(np.array(table[name], dtype=arrays[name].dtype).reshape(arrays[name].shape), arrays[name])
    assert arrays["embedding"].shape == (120, 8)


def test_predictions_have_the_accuracy_of_the_summary(trisect, small, tmp_path):
    """Right only if rows are in the user's order and the parameters are those of the best epoch."""
    from trisect.config import load_config
    from trisect.train.from_config import load_record, resolve

    assert trisect("train", small, "--out", "run", "--set", "train.lr=0.05", "--set", "train.epochs=20").code == 0
    assert trisect("predict", "run", "--out", "p.npz").code == 0
    arrays = np.load(tmp_path / "p.npz", allow_pickle=False)
    record = load_record(resolve(load_config(tmp_path / "run" / "config.yaml")))
    mask = record.splits["test"].reshape(120, -1)[:, 0]
    found = float((arrays["class"] == record.y)[mask].mean())
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert found == pytest.approx(summary["metrics"]["test"]["accuracy"], abs=1e-6)
    shuffled = float((np.roll(arrays["class"], 1) == record.y)[mask].mean())
    assert shuffled != pytest.approx(found, abs=1e-6)


def test_the_order_inside_does_not_show(trisect, small, tmp_path):
    for order in ("none", "auto"):
        assert trisect("train", small, "--out", order, "--set", f"train.order={order}").code == 0
        assert trisect("predict", order, "--out", f"{order}.npz").code == 0
    first, second = (np.load(tmp_path / f"{order}.npz", allow_pickle=False) for order in ("none", "auto"))
    assert np.allclose(first["embedding"], second["embedding"], atol=1e-4)


def test_timeline_with_text_ids(trisect, small_timeline, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    rng = np.random.default_rng(0)
    rows = [f"v{a},v{b},{t}" for t in range(8) for a, b in rng.integers(0, 20, (30, 2)) if a != b]
    (tmp_path / "edges.csv").write_text("src,dst,time\n" + "\n".join(rows) + "\n")
    ingest = ["--src", "src", "--dst", "dst", "--time", "time", "--period", "1", "-o", "graph"]
    shown = trisect("data", "ingest", "edges.csv", *ingest)
    assert shown.code == 0, shown.err
    settings = yaml.safe_load(small_timeline.read_text())
    settings["data"] = {"path": "graph"}
    small_timeline.write_text(yaml.safe_dump(settings))
    shown = trisect("train", small_timeline, "--out", "run")
    assert shown.code == 0, shown.err
    shown = trisect("predict", "run", "--out", "p.parquet", "--steps", "all")
    assert shown.code == 0, shown.err
    table = parquet.read_table(tmp_path / "p.parquet").to_pydict()
    assert set(table["vertex"]) == {f"v{k}" for k in range(20)}
    assert sorted(set(table["step"])) == list(range(8))
    assert len(table["embedding"]) == 160
    shown = trisect("predict", "run", "--out", "p.npz")
    assert "(20 rows: step 7 of 0 to 7)" in shown.out
    assert "--steps all" in shown.out
    arrays = np.load(tmp_path / "p.npz", allow_pickle=False)
    assert arrays["embedding"].shape[:2] == (1, 20)
    assert np.array_equal(arrays["embedding"][0], np.array(table["embedding"], np.float32)[140:])


def test_report_of_a_run(trisect, small, tmp_path):
    assert trisect("train", small, "--out", "run").code == 0
    shown = trisect("report", "run", "--out", "page.html")
    assert shown.code == 0
    assert "Where the time went" in (tmp_path / "page.html").read_text()
    assert RunDirectory.reopen(tmp_path / "run").summary() is not None


def test_a_run_without_a_checkpoint(trisect, small):
    assert trisect("train", small, "--out", "run").code == 0
    for path in Path("run/checkpoints").iterdir():
        path.rename(path.with_name(path.name + ".gone"))
    shown = trisect("predict", "run", "--out", "p.npz")
    assert shown.code == 2
    assert "no checkpoint yet" in shown.err
