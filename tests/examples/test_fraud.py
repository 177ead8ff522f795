"""The steps of examples/fraud, as its README has them: tables in, probabilities of the next month out."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trisect.cli.main import run_command

pytest.importorskip("pyarrow")
FOLDER = Path(__file__).parents[2] / "examples" / "fraud"


def commands(page: Path) -> list[list[str]]:
    """The commands of all bash blocks of a page, in order."""
    blocks = re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if line.strip() and not line.startswith("#")]


def run_steps(folder: Path, replace: dict[str, str], *more: str) -> str:
    """Do every step in a copy of the example; `more` is added to each training. Returns what judge.py printed."""
    shutil.copytree(FOLDER, folder, dirs_exist_ok=True)
    printed = ""
    for command in commands(FOLDER / "README.md"):
        words = [replace.get(word, word) for word in command]
        if words[0] == "python":
            done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, check=True)
            printed = done.stdout or printed
        else:
            assert words[0] == "trisect"
            assert run_command([*words[1:], *(more if words[1] == "train" else ())]) == 0, words
    return printed


def check_outcome(folder: Path, judged: dict[str, Any], accounts: int, margin: float) -> None:
    import pyarrow.parquet as parquet

    test = {
        name: json.loads((folder / "runs" / name / "summary.json").read_text())["metrics"]["test"]["auc"]
        for name in ("fraud", "bare")
    }
    assert test["fraud"] > test["bare"] + margin, "attributes of accounts help"
    table = parquet.read_table(folder / "probabilities.parquet")
    assert judged["accounts"] == table.num_rows == accounts + accounts // 10, "new accounts are there"
    total = table.column("probability_0").to_numpy() + table.column("probability_1").to_numpy()
    assert abs(total - 1).max() < 1e-5
    assert judged["auc"] > 0.7
    assert judged["new_accounts_auc"] > 0.6, "of accounts that were never seen"
    assert (folder / "runs" / "fraud" / "report.html").stat().st_size > 10_000


def test_all_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = {"4000": "1000", "60000": "10000"}
    judged = json.loads(run_steps(tmp_path, small, "--set", "train.epochs=20"))
    check_outcome(tmp_path, judged, 1000, margin=0.08)


@pytest.mark.slow
def test_all_steps_at_full_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    judged = json.loads(run_steps(tmp_path, {}))
    check_outcome(tmp_path, judged, 4000, margin=0.15)
