"""The blocks of docs/formats.md, and those of the guide about data, do what they say."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from trisect.cli.main import run_command
from trisect.data import Encoding, encode

pytest.importorskip("pyarrow")
DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.S)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the tables that the pages speak of."""
    rng = np.random.default_rng(0)
    monkeypatch.chdir(tmp_path)
    names = [f"a{k}" for k in range(20)]
    lines = ["payer,payee,when,amount,channel"]
    for k in range(120):
        a, b = rng.choice(20, 2, replace=False)
        amount = f"{rng.lognormal():.2f}" if k % 40 else ""
        lines.append(f"a{a},a{b},2024-01-{1 + k // 12:02d}T{k % 24:02d}:00:00,{amount},{['web', 'card'][k % 2]}")
    Path("payments.csv").write_text("\n".join(lines))
    rows = [
        f"{n},{20 + k},{['DE', 'FR', 'IT'][k % 3]},2020-01-{1 + k:02d},{k * 10},{k % 2}" for k, n in enumerate(names)
    ]
    Path("accounts.csv").write_text("account,age,country,opened,balance,fraud\n" + "\n".join(rows))
    history = [f"{n},2024-01-{d:02d},{k + d}" for k, n in enumerate(names) for d in (1, 6)]
    Path("history.csv").write_text("account,since,score\n" + "\n".join(history))
    return tmp_path


def run_bash(block: str, *more: str) -> None:
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            assert words[0] == "trisect"
            assert run_command([*words[1:], *more]) == 0, line


def test_formats(folder: Path) -> None:
    with pytest.raises(AssertionError, match="plain"):
        run_bash(blocks("formats.md", "bash")[0].splitlines()[0])  # three amounts are missing
    lines = Path("payments.csv").read_text().replace(",,", ",1.0,")
    Path("payments.csv").write_text(lines)
    for block in blocks("formats.md", "bash"):
        run_bash(block)
    assert Encoding.read("attributed").features[0] == "age"


def test_formats_in_python(folder: Path) -> None:
    for name in ("networkx", "pandas", "scipy"):
        pytest.importorskip(name)
    names: dict[str, object] = {}
    for block in blocks("formats.md", "python"):
        exec(compile(block, "formats.md", "exec"), names)
    assert names["timeline"].steps == 4  # type: ignore[attr-defined]


def test_the_guide(folder: Path) -> None:
    block = next(block for block in blocks("guide.md", "bash") if "data ingest payments.csv" in block)
    run_bash(block, "--on-missing", "zero")
    table = {"age": [30], "balance": [None], "country": ["XX"], "opened": ["2021-01-01"]}
    encoded = encode(table, Encoding.read("payments"))
    assert encoded.shape == (1, len(Encoding.read("payments").features))
