"""The Python of README.md and of every page of docs/ runs as it stands, with fewer epochs; so do their commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import trisect
from trisect.cli.main import run_command
from trisect.nn import GCNLayer, LinearLayer, Model

FOLDER = Path(__file__).parents[2]
PAGES = ("README.md", "docs/guide.md")
OTHERS = sorted(
    str(page.relative_to(FOLDER))
    for page in (FOLDER / "docs").glob("*.md")
    if page.name not in ("guide.md", "formats.md") and "```python" in page.read_text(encoding="utf-8")
)


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (FOLDER / page).read_text(), re.DOTALL)


def commands(page: str, start: str) -> list[list[str]]:
    """The commands of a page's bash blocks that begin like this; lines that end in a backslash go on."""
    lines = "\n".join(blocks(page, "bash")).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith(start)]


def tables() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    accounts = pd.DataFrame(
        {
            "account": np.arange(60),
            "fraud": np.where(np.arange(60) % 4, "no", "yes"),
            "age": rng.integers(18, 80, 60),
            "balance": rng.normal(100, 20, 60).round(2),
            "country": rng.choice(["CH", "DE", "FR"], 60),
            "opened": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, 60), unit="D"),
        }
    )
    ends = rng.integers(0, 60, (2, 600))
    when = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.sort(rng.integers(0, 20 * 86400, 600)), unit="s")
    payments = pd.DataFrame(
        {
            "sender": ends[0],
            "receiver": (ends[0] + 1 + ends[1] % 59) % 60,
            "when": when,
            "amount": rng.exponential(50, 600).round(2),
            "channel": rng.choice(["app", "web"], 600),
        }
    )
    return {"accounts": accounts, "payments": payments}


def names() -> dict[str, Any]:
    """What the blocks take as the reader's own."""
    data = pytest.importorskip("torch_geometric.data")
    import torch

    kept = tables()
    payments = kept["payments"].rename(columns={"sender": "from", "receiver": "to"})
    generator = torch.Generator().manual_seed(0)
    src, dst = torch.from_numpy(payments["from"].to_numpy()), torch.from_numpy(payments["to"].to_numpy())
    mask = torch.arange(60) % 3
    own = data.Data(
        x=torch.randn(60, 4, generator=generator),
        edge_index=torch.stack([src, dst]),
        y=torch.arange(60) % 2,
        train_mask=mask == 0,
        val_mask=mask == 1,
        test_mask=mask == 2,
    )
    graph = trisect.Graph.from_table(payments[["from", "to"]], vertices=kept["accounts"], label_column="fraud")
    assert graph.x is not None
    model = Model([GCNLayer(graph.x.shape[1], 8, activation="relu"), LinearLayer(8, 2)])
    return {
        "data": own,
        "edges": payments[["from", "to"]],
        "accounts": kept["accounts"],
        "payments": payments,
        "src": src,
        "dst": dst,
        "time": payments["when"].to_numpy(),
        "model": model,
    }


@pytest.mark.parametrize("page", PAGES)
def test_python(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace = names()
    # what reads a run directory is run in tests/cli/test_predict_new.py, which has one
    code = [block for block in blocks(page, "python") if "trisect.load" not in block]
    assert len(code) >= 2
    for block in code:
        shorter = re.sub(r"epochs=(\d+)", lambda epochs: f"epochs={max(1, int(epochs[1]) // 20)}", block)
        exec(compile(shorter, page, "exec"), namespace)
        assert isinstance(namespace["run"], trisect.Run)


def shorter(block: str) -> str:
    """The same with fewer epochs, in one process: tests of the layouts start ranks."""
    block = re.sub(r"epochs=(\d+)", lambda epochs: f"epochs={max(1, int(epochs[1]) // 20)}", block)
    return re.sub(r', layout="[a-z]+=\d"', "", block)


@pytest.mark.parametrize("page", OTHERS)
def test_python_of_other_pages(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch_geometric")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"trisect": trisect, "graph": trisect.Graph.generate("community", vertices=200)}
    for block in blocks(page, "python"):
        exec(compile(shorter(block), page, "exec"), namespace)


@pytest.mark.slow
def test_the_first_block_of_the_readme_shows_that_depth_pays() -> None:
    namespace: dict[str, Any] = {}
    exec(blocks("README.md", "python")[0], namespace)
    deep = namespace["run"].metrics["test"]["accuracy"]
    options: dict[str, Any] = {"hidden": 64, "epochs": 60, "weight_decay": 0.01, "eval_every": 5, "progress": False}
    shallow = trisect.fit("gcn", namespace["graph"], layers=2, **options).metrics["test"]["accuracy"]
    assert deep > 0.8 > 0.7 > shallow


def training() -> list[list[str]]:
    own = [command for command in commands("README.md", "trisect train ") if "--data-dir" not in command]
    return [command for command in own if not {"my.yaml", "links.yaml"} & set(command)]


def test_commands_that_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(training()) >= 6
    for number, command in enumerate(training()):
        name = [] if len(command) > 1 and not command[1].startswith("-") else ["deep"]
        if "--layout" in command:  # ranks are started by the slow test
            assert run_command(["check", *name, *command[1:]]) == 0
        elif number < 3:
            assert run_command([*command, "--set", "train.epochs=1", "--out", f"run-{number}"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("command", training(), ids=" ".join)
def test_each_command_that_trains(command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command([*command, "--set", "train.epochs=1", "--out", "run"]) == 0


@pytest.mark.parametrize("page", PAGES)
def test_ingest(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, frame in tables().items():
        frame.to_csv(f"{name}.csv", index=False)
    (ingest,) = [command for command in commands(page, "trisect data ingest") if "payments.csv" in command]
    assert run_command(ingest) == 0
    Path("my.yaml").write_text(
        "{data: {path: payments}, model: {name: cd-gcn, hidden: 4}, task: link-prediction, train: {epochs: 1}}"
    )
    for command in commands(page, "trisect check  my.yaml") + commands(page, "trisect train  my.yaml"):
        assert run_command([*command, *(["--out", "run"] if command[0] == "train" else [])]) == 0


def test_a_table_of_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    columns = {"sender": "from", "receiver": "to", "when": "time"}
    tables()["payments"][[*columns]].rename(columns=columns).to_csv("messages.csv", index=False)
    (ingest,) = [command for command in commands("README.md", "trisect data ingest") if "messages.csv" in command]
    assert run_command(ingest) == 0
    (links,) = [block for block in blocks("README.md", "yaml") if "# links.yaml" in block]
    Path("links.yaml").write_text(links)
    (train,) = [command for command in commands("README.md", "trisect train") if "links.yaml" in command]
    assert run_command([*train, "--set", "train.epochs=5", "--out", "run"]) == 0
    shown = capsys.readouterr().out
    assert "task.memory 20, the default: a pair's own last 20 steps are read" in shown
    assert "Simple rules, val map: " in shown
    assert "memory: 20" in Path("run/config.yaml").read_text()


def test_the_first_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("first.yaml").write_text(blocks("docs/guide.md", "yaml")[0])
    assert run_command(["check", "first.yaml"]) == 0
