from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trisect.data import load
from trisect.data.describe import sparkline

Trisect = Callable[..., Any]


def test_list(trisect: Trisect, tmp_path: Path) -> None:
    np.savez(tmp_path / "cora.npz", edges=np.array([[0, 1]]))
    np.savez(tmp_path / "mine.npz", edges=np.array([[0, 1]]))
    done = trisect("data", "list", "--data-dir", tmp_path)
    assert done.code == 0
    lines = {line.split()[0]: line for line in done.out.splitlines() if line.strip()}
    assert "yes" in lines["cora"]
    assert "no" in lines["citeseer"].split()
    assert "yes" in lines["mine"]
    assert "laundering" in lines
    assert trisect("data", "list").code == 0


def test_ingest_info_and_verify(trisect: Trisect, tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("a,b,ts,w\nx,y,2024-01-01,1\ny,z,2024-01-03,2\nx,z,2024-01-03,2\n")
    (tmp_path / "l.csv").write_text("id,label\nx,good\ny,bad\n")
    arguments = ["e.csv", "--src", "a", "--dst", "b", "--time", "ts", "--period", "1d", "--weight", "w"]
    done = trisect("data", "ingest", *arguments, "--labels", "l.csv", "--undirected", "-o", "g")
    assert done.code == 0, done.err
    record = load({"path": tmp_path / "g"})
    assert (record.vertices, len(record.src), record.undirected) == (3, 3, True)
    done = trisect("data", "info", "g", "--verify")
    assert done.code == 0
    for words in ("timeline, undirected", "3, period 1d", "good: 1", "none: 1", "▄▁█", "x .. z"):
        assert words in done.out, words
    done = trisect("data", "info", "g", "--set", "period=1w")
    assert "1, period 1w" in done.out


def test_ingest_with_a_table_of_vertices(trisect: Trisect, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("from,to,ts,amount\nx,y,2024-01-01,1\ny,z,2024-01-03,2\nx,z,2024-01-03,\n")
    (tmp_path / "a.csv").write_text("account,age,country,fraud\nx,20,DE,yes\ny,,FR,no\nz,40,DE,no\n")
    arguments = ["p.csv", "--time", "ts", "--period", "1d", "--edge-features", "amount", "-o", "g"]
    done = trisect("data", "ingest", *arguments, "--labels", "a.csv")
    assert done.code == 2
    assert "3 columns that may be the label (age, country, fraud)" in " ".join(done.err.split())
    done = trisect("data", "ingest", *arguments, "--vertices", "a.csv", "--label-column", "fraud")
    assert done.code == 0, done.err
    shown = " ".join(done.out.split())
    for words in ("2 (no: 2, yes: 1)", "country=DE", "amount is missing", "statistics of training vertices"):
        assert words in shown, (words, shown)
    record = load({"path": tmp_path / "g"})
    assert record.x is not None
    assert record.edge_x is not None
    done = trisect("data", "ingest", *arguments[:-1], "h", "--weight", "amount")
    assert done.code == 2
    assert "1 bad row of 3: weight 'amount' is missing in 1 (line 4)" in " ".join(done.err.split())
    done = trisect("data", "ingest", *arguments[:-1], "h", "--weight", "amount", "--on-missing", "drop")
    assert done.code == 0, done.err
    assert "1 of 3 rows" in done.out
    done = trisect("data", "ingest", *arguments[:-1], "i", "--weight", "amount", "--on-missing", "zero")
    assert "1 missing numbers" in done.out


def test_check_and_train_say_what_the_data_are(trisect: Trisect, tmp_path: Path) -> None:
    rows = "".join(f"{k % 7},{(k * 3 + 1) % 7},{k if k < 30 else k + 9},{k}\n" for k in range(40))
    (tmp_path / "p.csv").write_text("a,b,t,w\n" + rows)
    done = trisect("data", "ingest", "p.csv", "--time", "t", "--period", "1", "--edge-features", "w", "-o", "g")
    assert done.code == 0, done.err
    (tmp_path / "c.yaml").write_text(
        "data: {path: g}\nmodel: {name: cd-gcn, hidden: 4}\ntask: link-prediction\ntrain: {epochs: 1}\n"
    )
    (tmp_path / "e.yaml").write_text(
        "data: {path: g, edge_merge: last}\nmodel: {name: recurrent, spatial: gatv2, hidden: 4}\n"
        "task: link-prediction\ntrain: {epochs: 1}\n"
    )
    for command, edges in (
        (["check", "c.yaml"], "edge features: 1 an edge, which cd-gcn does not read; use gatv2"),
        (["train", "c.yaml", "--out", "run"], "edge features: 1 an edge, which cd-gcn does not read; use gatv2"),
        (["check", "e.yaml"], "recurrent reads 1 an edge; of edges between the same vertices the last one's"),
        (["train", "e.yaml", "--layout", "time=2", "--out", "two"], "edge features: recurrent reads 1 an edge"),
    ):
        with pytest.warns(UserWarning, match="9 of 48 steps have no event to predict"):
            done = trisect(*command)
        assert done.code == 0, done.err
        shown = " ".join(done.out.split())
        for words in (
            "The data have no features; log(1 + in-degree)",
            edges,
        ):
            assert words in shown, (words, shown)
    done = trisect("train", "deep", "--set", "train.epochs=1", "--set", "data.vertices=200", "--out", "other")
    assert "classes: " in done.out
    assert "no features" not in done.out


def test_synthesize(trisect: Trisect, tmp_path: Path) -> None:
    done = trisect("data", "synthesize", "community", "--set", "vertices=200", "--set", "classes=4", "-o", "g")
    assert done.code == 0, done.err
    record = load({"path": tmp_path / "g"})
    assert record.vertices == 200
    assert record.y is not None
    assert record.y.max() == 3


def test_bad_input_is_one_sentence(trisect: Trisect, tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("a,b\n1,2\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("keep")
    cases: list[tuple[list[str], str]] = [
        (["ingest", "none.csv", "-o", "g"], "does not exist"),
        (["ingest", "e.csv", "--src", "A1", "-o", "g"], "src is 'A1'"),
        (["ingest", "e.csv", "-o", "full"], "not empty"),
        (["ingest", "e.csv", "--time", "b", "--period", "-1d", "-o", "g"], "greater than 0"),
        (["synthesize", "comunity", "-o", "g"], "did you mean 'community'"),
        (["synthesize", "community", "--set", "vertex=3", "-o", "g"], "did you mean 'vertices'"),
        (["synthesize", "community", "--set", "vertices", "-o", "g"], "key=value"),
        (["synthesize", "community", "-o", "full"], "not empty"),
        (["info", "nothing"], "no data directory"),
        (["info", "e.csv", "--verify"], "needs a graph directory"),
    ]
    for arguments, words in cases:
        done = trisect("data", *arguments)
        assert done.code == 2, arguments
        message = " ".join(done.err.split())
        assert words in message, (arguments, done.err)
        assert "Traceback" not in done.err
    assert (tmp_path / "full" / "mine").read_text() == "keep"
    assert sorted(item.name for item in tmp_path.iterdir()) == ["e.csv", "full"]


def test_sparkline() -> None:
    assert sparkline(np.array([0, 1, 2, 7])) == "▁▂▃█"
    assert sparkline(np.zeros(3)) == "▁▁▁"
    assert len(sparkline(np.arange(1000), width=40)) == 40


def test_import_is_light() -> None:
    code = "import sys, trisect.data; print([m for m in ('pyarrow', 'torch_geometric', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
