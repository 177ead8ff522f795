"""`trisect predict RUN --data NEW`: what one process gives for all rows together, under every cut; and what it says."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from trisect.cli.main import run_command
from trisect.config import load_config
from trisect.data import read_table
from trisect.data.ingest.ingest import Table
from trisect.tasks import make_task
from trisect.tasks.outputs_only import OutputsOnly
from trisect.train.from_config import data_of, resolve
from trisect.train.job import named_model
from trisect.train.outputs.predict import embed, load_parameters, predict, trained_parameters
from trisect.train.run.run_directory import RunDirectory
from trisect.train.setup import Setup

ACCOUNTS, NEW_ACCOUNTS, DAYS, NEW_DAYS = 24, 4, 8, 3
COUNTRIES = ("DE", "FR", "US")
CONFIGS = {
    "fraud": ({"name": "cd-gcn", "layers": 2, "hidden": 4}, {"name": "node-classification", "at": "every"}),
    "window": ({"name": "tm-gcn", "layers": 2, "hidden": 4, "window": 3}, {"name": "node-classification"}),
    "steps": ({"name": "gcn", "layers": 2, "hidden": 4, "dropout": 0.0}, {"name": "node-classification"}),
    "links": ({"name": "cd-gcn", "layers": 2, "hidden": 4}, {"name": "link-prediction", "eval_negatives": 5}),
}


def _accounts(path: Path, numbers: range, countries: tuple[str, ...]) -> None:
    rows = [f"a{k},{20 + k},{countries[k % len(countries)]},{'yes' if k % 3 else 'no'}" for k in numbers]
    path.write_text("account,age,country,fraud\n" + "\n".join(rows) + "\n")


def _payments(path: Path, days: range, accounts: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [
        f"a{src},a{dst},2024-05-{day + 1:02d}T{hour:02d}:00:00,{rng.random():.3f}"
        for day in days
        for hour in range(24)
        for src, dst in rng.integers(0, accounts, (1, 2))
    ]
    path.write_text("from,to,when,amount\n" + "\n".join(rows) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of two periods, a graph directory of the first, and runs on it."""
    path = tmp_path_factory.mktemp("new")
    _accounts(path / "accounts.csv", range(ACCOUNTS), COUNTRIES)
    _accounts(path / "new-accounts.csv", range(ACCOUNTS, ACCOUNTS + NEW_ACCOUNTS - 1), (*COUNTRIES, "XX", "YY"))
    _payments(path / "may.csv", range(DAYS), ACCOUNTS, 1)
    _payments(path / "june.csv", range(DAYS, DAYS + NEW_DAYS), ACCOUNTS + NEW_ACCOUNTS, 2)
    for name, files in (("payments", ("may", "june")), ("all-accounts", ("accounts", "new-accounts"))):
        first, second = ((path / f"{file}.csv").read_text().splitlines(keepends=True) for file in files)
        (path / f"{name}.csv").write_text("".join([*first, *second[1:]]))
    ingest = ["--src", "from", "--dst", "to", "--weight", "amount", "--vertices", str(path / "accounts.csv")]
    ingest += ["--id", "account", "--label-column", "fraud"]
    timed = ["--time", "when", "--period", "1d"]
    assert run_command(["data", "ingest", str(path / "may.csv"), *ingest, *timed, "-o", str(path / "graph")]) == 0
    assert run_command(["data", "ingest", str(path / "may.csv"), *ingest, "-o", str(path / "static")]) == 0
    train = {"epochs": 2, "lr": 0.02, "precision": "float64"}
    for name, (model, task) in CONFIGS.items():
        _train(path, name, {"data": {"path": str(path / "graph")}, "model": model, "task": task, "train": train})
    static = {"data": {"path": str(path / "static")}, "model": {"name": "sage", "layers": 2, "hidden": 4}}
    _train(path, "static-run", {**static, "task": "node-classification", "train": train})
    return path


def _train(path: Path, name: str, settings: dict[str, object]) -> None:
    (path / f"{name}.yaml").write_text(yaml.safe_dump(settings))
    assert run_command(["train", str(path / f"{name}.yaml"), "--out", str(path / name)]) == 0


def _together(folder: Path, run: str, graph: str = "graph") -> tuple[list[str], dict[str, np.ndarray]]:
    """All rows read as one table under the stored encoding, in one process: names, and every output."""
    directory = RunDirectory.reopen(folder / run)
    config = resolve(load_config(folder / run / "config.yaml"))
    timed = {"time": "when", "period": "1d"} if graph == "graph" else {}
    table = Table(
        "from",
        "to",
        weight="amount",
        vertices=folder / "all-accounts.csv",
        id="account",
        encoding=folder / graph,
        **timed,  # type: ignore[arg-type]
    )
    record = read_table(folder / "payments.csv", table)
    task = OutputsOnly(make_task(config.task.model_dump()), 2)
    setup = Setup.of(named_model(config), data_of(config, record), task, replace(config.train, monitor=None))
    load_parameters(setup, trained_parameters(directory), directory)
    outputs = {"embedding": embed(setup), **predict(setup)}
    return list(record.names[:]), {name: value.numpy() for name, value in outputs.items()}  # type: ignore[index]


def _predict(folder: Path, run: str, *arguments: str, out: str = "p.npz") -> dict[str, np.ndarray]:
    assert run_command(["predict", str(folder / run), "--out", str(folder / out), *arguments]) == 0
    with np.load(folder / out, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _new(folder: Path) -> list[str]:
    return ["--data", str(folder / "june.csv"), "--vertices", str(folder / "new-accounts.csv")]


LAYOUTS = ["vertex=1", "vertex=2", "time=2", "layer=2", pytest.param("time=2,vertex=2", marks=pytest.mark.slow)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_later_rows_give_what_all_rows_together_give(folder: Path, layout: str) -> None:
    names, expected = _together(folder, "fraud")
    outputs = _predict(folder, "fraud", *_new(folder), "--steps", "all", "--layout", layout)
    assert outputs["step"].tolist() == list(range(DAYS + NEW_DAYS))
    assert outputs["classes"].tolist() == ["no", "yes"]
    order = [names.index(name) for name in outputs["vertex"]]
    assert sorted(order) == list(range(ACCOUNTS + NEW_ACCOUNTS))
    for column in ("embedding", "probability"):
        np.testing.assert_allclose(outputs[column], expected[column][:, order], rtol=1e-10, atol=1e-12)
    # the comparison can fail: another order of vertices, or outputs without the state of the steps before
    assert not np.allclose(outputs["embedding"], expected["embedding"], rtol=1e-3)
    assert not np.allclose(outputs["embedding"][1:], outputs["embedding"][:-1], rtol=1e-3)


@pytest.mark.parametrize("run", ["fraud", "window", "steps"])
def test_since_a_step(folder: Path, run: str) -> None:
    whole = _predict(folder, run, *_new(folder), "--steps", "all")
    since = _predict(folder, run, *_new(folder), "--since", str(DAYS))
    assert since["step"].tolist() == list(range(DAYS, DAYS + NEW_DAYS))
    np.testing.assert_allclose(since["probability"], whole["probability"][DAYS:], rtol=1e-10, atol=1e-12)
    assert not np.allclose(since["probability"], whole["probability"][DAYS - 1 : -1], rtol=1e-4)
    last = _predict(folder, run, *_new(folder))
    np.testing.assert_allclose(last["probability"], whole["probability"][-1:], rtol=1e-10, atol=1e-12)


def test_a_graph_without_steps(folder: Path) -> None:
    names, expected = _together(folder, "static-run", "static")
    outputs = _predict(folder, "static-run", *_new(folder), "--layout", "vertex=2")
    order = [names.index(name) for name in outputs["vertex"]]
    for column in ("embedding", "probability"):
        np.testing.assert_allclose(outputs[column], expected[column][0][order], rtol=1e-10, atol=1e-12)
        assert not np.allclose(outputs[column], expected[column][0], rtol=1e-4)


def test_a_directory_stands_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(folder / "june.csv"), "--src", "from", "--dst", "to", "--time", "when", "--period", "1d"]
    words += ["--weight", "amount", "--vertices", str(folder / "all-accounts.csv"), "--id", "account"]
    assert (
        run_command(["data", "ingest", *words, "--encoding", str(folder / "graph"), "-o", str(folder / "alone")]) == 0
    )
    outputs = _predict(folder, "fraud", "--data", str(folder / "alone"), "--steps", "all")
    assert outputs["probability"].shape == (NEW_DAYS, ACCOUNTS + NEW_ACCOUNTS, 2)
    assert "stands alone" in capsys.readouterr().out
    # what was carried on from the training is not there
    joined = _predict(folder, "fraud", *_new(folder), out="joined.npz")
    order = [outputs["vertex"].tolist().index(name) for name in joined["vertex"]]
    assert not np.allclose(outputs["embedding"][-1, order], joined["embedding"][0], rtol=1e-3)
    features = ["--features", "age,country"]
    assert run_command(["data", "ingest", *words, *features, "-o", str(folder / "strange")]) == 0
    assert run_command(["predict", str(folder / "fraud"), "--data", str(folder / "strange")]) == 2
    shown = capsys.readouterr().err
    assert "ingest it with" in shown
    assert "--encoding" in shown


def test_what_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    _predict(folder, "fraud", *_new(folder))
    said = capsys.readouterr().out
    for part in (
        "1 of 3 rows of the table",
        "'country' without a feature of its own (1 different, such as 'YY'); they count as country=other",
        f"{NEW_ACCOUNTS} vertices of the table",
        "were never seen in training",
        f"72 events follow the {DAYS} trained steps (steps {DAYS} to {DAYS + NEW_DAYS - 1})",
        f"1 of the {NEW_ACCOUNTS} new vertices have no row",
        f"(28 rows: step {DAYS + NEW_DAYS - 1} of 0 to {DAYS + NEW_DAYS - 1})",
        "Earlier steps are left out",
    ):
        assert part in said, part


def test_late_rows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["predict", str(folder / "fraud"), "--out", str(folder / "late.npz"), "--data", str(folder / "payments.csv")]
    capsys.readouterr()
    assert run_command(run) == 2
    assert f"{DAYS * 24} of {(DAYS + NEW_DAYS) * 24} rows of the table" in capsys.readouterr().err
    assert run_command([*run, "--on-late", "drop"]) == 0
    assert "were dropped (--on-late drop)" in capsys.readouterr().out
    with np.load(folder / "late.npz") as file:
        dropped = file["embedding"]
    clean = _predict(folder, "fraud", "--data", str(folder / "june.csv"))
    assert np.array_equal(dropped, clean["embedding"])


def test_pairs_and_links(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "pairs.csv").write_text("src,dst\na1,a2\na27,a3\n")
    new = ["--data", str(folder / "june.csv")]
    pairs = _predict(folder, "links", *new, "--pairs", str(folder / "pairs.csv"), "--layout", "vertex=2")
    assert pairs["src"].tolist() == ["a1", "a27"]
    assert ((pairs["probability"] > 0) & (pairs["probability"] < 1)).all()
    assert (folder / "links" / "calibration.json").exists()
    said = capsys.readouterr().out
    assert "once for this run" in said
    best = _predict(folder, "links", *new, "--top-k", "3", "--per", "source", "--known")
    assert len(best["src"]) == 3 * (ACCOUNTS + NEW_ACCOUNTS)
    said = capsys.readouterr().out
    assert "once for this run" not in said
    assert "(--known)" in said
    # the score of a pair is the same whichever way it is asked for
    where = {(s, d): score for s, d, score in zip(best["src"], best["dst"], best["score"], strict=True)}
    (folder / "again.csv").write_text("from,to\n" + "\n".join(f"{s},{d}" for s, d in where) + "\n")
    again = _predict(folder, "links", *new, "--pairs", str(folder / "again.csv"))
    np.testing.assert_allclose(again["score"], best["score"], rtol=1e-10, atol=1e-12)
    vertices = _predict(folder, "links", *new)
    assert vertices["embedding"].shape == (1, ACCOUNTS + NEW_ACCOUNTS, 4)
    assert "Scores of pairs are left out" in capsys.readouterr().out


ERRORS = [
    ("fraud", ["--pairs", "pairs.csv"], "--pairs needs a run of link-prediction or edge-classification"),
    ("fraud", ["--top-k", "3"], "--top-k needs a run of link-prediction"),
    ("links", ["--top-k", "0"], "--top-k is 0; it must be at least 1"),
    ("links", ["--top-k", "2", "--per", "target"], "--per is 'target'"),
    ("links", ["--per", "source"], "--per says which of the best pairs"),
    ("links", ["--pairs", "unknown.csv"], "has 1 ids that are no vertices of the run (zz)"),
    ("links", ["--pairs", "one.csv"], "1 column"),
    ("links", ["--pairs", "gone.csv"], "does not exist"),
    ("links", ["--pairs", "pairs.csv", "--top-k", "2"], "one at a time"),
    ("fraud", ["--steps", "x"], "--steps is 'x'"),
    ("fraud", ["--steps", "40"], "--steps is 40, but the timeline has the steps 0 to 7"),
    ("fraud", ["--since", "9"], "names none of the steps 0 to 7"),
    ("fraud", ["--since", "2", "--steps", "all"], "give one of them"),
    ("static-run", ["--steps", "3"], "the data are one graph"),
    ("fraud", ["--data", "gone.csv"], "which does not exist"),
    ("fraud", ["--vertices", "accounts.csv"], "no new rows are given"),
    ("fraud", ["--data", "may.csv"], "are not later than the last trained time, 2024-05-08T23:00:00"),
    ("fraud", ["--data", "wrong.csv"], "from"),
    ("fraud", ["--data", "numbers.csv"], "use one form"),
    ("fraud", ["--data", "."], "a directory without manifest.json"),
    ("fraud", ["--data", "static"], "is a graph, and the run was trained on a timeline"),
    ("fraud", ["--on-late", "keep", "--data", "june.csv"], "unknown value of on_late"),
]


@pytest.mark.parametrize(("run", "arguments", "sentence"), ERRORS, ids=[" ".join(each[1]) for each in ERRORS])
def test_mistakes(
    folder: Path,
    run: str,
    arguments: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    (folder / "pairs.csv").write_text("src,dst\na1,a2\n")
    (folder / "unknown.csv").write_text("src,dst\na1,a2\nzz,a1\n")
    (folder / "one.csv").write_text("src\na1\na2\n")
    (folder / "wrong.csv").write_text("a,b,c,d\nx,y,2024-06-01,1\n")
    (folder / "numbers.csv").write_text("from,to,when,amount\na1,a2,99999999999999999,1\n")
    capsys.readouterr()
    assert run_command(["predict", run, *arguments]) == 2
    shown = capsys.readouterr().err
    assert sentence in shown, shown
    assert shown.count("\n") == 1, shown


def test_features_without_an_encoding(trisect, small, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert trisect("train", small, "--out", "run").code == 0
    (tmp_path / "more.csv").write_text("src,dst\n1,2\n3,4\n")
    shown = trisect("predict", "run", "--data", "more.csv", "--out", "p.npz")
    assert shown.code == 0, shown.err
    (tmp_path / "more.csv").write_text("src,dst\n1,500\n")
    shown = trisect("predict", "run", "--data", "more.csv", "--out", "p.npz")
    assert shown.code == 2
    assert "keeps no encoding of columns" in shown.err
    shown = trisect("predict", "run", "--data", "more.csv", "--vertices", "more.csv", "--out", "p.npz")
    assert shown.code == 2
    assert "encoding.json" in shown.err


def test_steps_of_a_timeline_without_times(trisect, small_timeline, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert trisect("train", small_timeline, "--out", "run").code == 0
    (tmp_path / "more.csv").write_text("src,dst,time\n1,2,8\n3,4,9\n")
    shown = trisect("predict", "run", "--data", "more.csv", "--out", "p.npz", "--since", "7")
    assert shown.code == 0, shown.err
    assert np.load(tmp_path / "p.npz")["step"].tolist() == [7, 8, 9]
    (tmp_path / "more.csv").write_text("src,dst,time\n1,2,7\n3,4,9\n")
    shown = trisect("predict", "run", "--data", "more.csv", "--out", "p.npz")
    assert "not later than the last trained step, 7" in shown.err


def test_the_blocks_of_the_guide(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guide.md").read_text()
    section = guide[guide.index("\n## Prediction") : guide.index("\n## Python")]
    monkeypatch.chdir(folder)
    for name, target in (("RUN", "fraud"), ("new_accounts.csv", "new-accounts.csv")):
        (folder / name).symlink_to(folder / target)
    shell, python = (re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL) for kind in ("bash", "python"))
    lines = [line.partition("#")[0].split() for block in shell for line in block.splitlines()]
    assert len(lines) == 2
    for words in lines:
        assert run_command(words[1:]) == 0
    assert (folder / "june.parquet").exists()
    for block in python:
        exec(block, {})
    assert (folder / "model.safetensors").exists()
