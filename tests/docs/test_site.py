"""The site builds without a warning, its page of options is complete, and its FAQ quotes messages that exist."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2]
PAGES = sorted(page.name for page in (FOLDER / "docs").glob("*.md"))


def test_the_page_of_options_is_what_the_code_says() -> None:
    written: dict[str, Any] = runpy.run_path(str(FOLDER / "docs" / "reference.py"))
    text = written["page"]()
    assert not written["MISSING"], "options without a meaning"
    assert (FOLDER / "docs" / "reference.md").read_text(encoding="utf-8") == text, "run python docs/reference.py"
    for option in ("memory", "hidden", "candidates", "sampling", "order", "startup_timeout", "--interface"):
        assert f"`{option}`" in text


def test_the_page_of_pygs_convolutions_is_what_the_tests_go_through() -> None:
    pytest.importorskip("torch_geometric")
    written: dict[str, Any] = runpy.run_path(str(FOLDER / "docs" / "pyg.py"))
    assert (FOLDER / "docs" / "pyg.md").read_text(encoding="utf-8") == written["page"](), "run python docs/pyg.py"


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install 'trisect[docs]'")
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed: pip install 'trisect[docs]'")
    # as `make docs`: with --quiet, warnings are not counted, and a build with them passes
    assert re.search(
        r"^docs:.*\n(?:\t.*\n)*\t\$\(BIN\)/mkdocs build --strict\n", (FOLDER / "Makefile").read_text(), re.M
    )
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=FOLDER, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    for page in PAGES:
        name = "index.html" if page == "index.md" else f"{page.removesuffix('.md')}/index.html"
        assert (tmp_path / "site" / name).is_file(), f"{page} is not in the site"


def test_every_page_is_in_the_navigation() -> None:
    navigation = (FOLDER / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    assert [page for page in PAGES if page not in navigation] == []


def test_the_messages_of_the_faq_exist() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (FOLDER / "src").rglob("*.py"))
    plain = re.sub(r'"\s*\n\s*f?"', "", source)  # texts that go on in the next line
    table = (FOLDER / "docs" / "faq.md").read_text(encoding="utf-8").partition("## Messages")[2]
    quoted = [part for row in table.splitlines()[4:] for part in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert len(quoted) > 12
    assert [text for text in quoted if text not in plain] == []
