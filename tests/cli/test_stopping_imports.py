"""Ctrl-C while a command still imports: one line and exit code 130, whichever module it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import trisect

# Sends SIGINT when a module is looked for: the one of a name, or the one of a number, counted from the moment when the
# command line has imported what heeds it. A rank sends it to its launcher where it is told so.
HOOK = """
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what runs in the background ignore it
AT, WHOSE, TARGET = os.environ["TEST_AT"], os.environ["TEST_WHOSE"], os.environ.get("TEST_TARGET", "own")
RANK = os.environ.get("RANK", "none") if "TRISECT_LAUNCHER" in os.environ else "none"


class Finder:
    number = 0

    def find_spec(self, name, path, target=None):
        if "trisect.cli.requests" in sys.modules and name != "trisect.cli.requests":
            self.number += 1
        if WHOSE == RANK and AT in (name, str(self.number)):
            sys.meta_path.remove(self)
            open(os.environ["TEST_FIRED"], "w").close()
            os.kill(os.getpid() if TARGET == "own" else int(os.environ["TRISECT_LAUNCHER"]), signal.SIGINT)
        return None


sys.meta_path.insert(0, Finder())
"""
CONFIG = """
data: {generate: community, vertices: 60, classes: 3, features: 8, per_class: 8}
model: {name: gcn, layers: 2, hidden: 4}
task: node-classification
train: {epochs: 2}
"""


def interrupted(
    folder: Path, at: str, *words: str, whose: str = "none", **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a command that gets SIGINT at an import; it is asserted to have come."""
    (folder / "hook").mkdir(exist_ok=True)
    (folder / "hook" / "sitecustomize.py").write_text(HOOK)
    (folder / "tmp").mkdir(exist_ok=True)
    (folder / "c.yaml").write_text(CONFIG)
    paths = os.pathsep.join((str(folder / "hook"), *filter(None, [os.environ.get("PYTHONPATH")])))
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "TMPDIR": str(folder / "tmp"), **more}
    variables |= {"TEST_AT": at, "TEST_WHOSE": whose, "TEST_FIRED": str(folder / "fired")}
    # how a console script begins
    script = "from trisect.cli.main import run; run()"
    program = ["-c", script, *words[1:]] if words[0] == "script" else ["-m", "trisect", *words]
    done = subprocess.run(
        [sys.executable, *program], cwd=folder, env=variables, capture_output=True, text=True, timeout=120
    )
    assert (folder / "fired").exists()
    assert not list((folder / "tmp").glob("*trisect*"))
    return done


@pytest.mark.parametrize(
    ("at", "words"),
    [
        ("1", ("--help",)),
        ("typer", ("--help",)),
        ("1", ("script", "--help")),
        ("20", ("script", "data", "list")),
        ("rich", ("data", "list")),
        ("trisect.cli.train", ("train", "c.yaml", "--out", "run")),
        ("torch", ("train", "c.yaml", "--out", "run")),
        ("torch.nn", ("script", "train", "c.yaml", "--out", "run")),
        ("trisect.train.loop", ("train", "c.yaml", "--out", "run")),
        ("trisect.report", ("report", "run")),
    ],
)
def test_ctrl_c_while_a_command_imports(tmp_path: Path, at: str, words: tuple[str, ...]) -> None:
    done = interrupted(tmp_path, at, *words)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "trisect: Stopped.\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("at", range(2, 1000, 53))
def test_ctrl_c_at_many_imports(tmp_path: Path, at: int) -> None:
    done = interrupted(tmp_path, str(at), "train", "c.yaml", "--out", "run")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "trisect: Stopped.\n")


@pytest.mark.parametrize(("rank", "said"), [("0", "trisect: Stopped.\n"), ("1", "")])
def test_ctrl_c_while_a_rank_of_torchrun_imports(tmp_path: Path, rank: str, said: str) -> None:
    """Torchrun hands SIGINT on to its ranks; the first of them speaks."""
    world = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    done = interrupted(tmp_path, "torch", "train", "c.yaml", "--out", "run", **world)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", said)


def test_ctrl_c_is_for_the_launcher_and_not_for_its_ranks(tmp_path: Path) -> None:
    """Also before a rank has run a line of ours."""
    words = ("train", "c.yaml", "--out", "run", "--layout", "vertex=2")
    done = interrupted(tmp_path, "torch", *words, whose="1")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_ctrl_c_while_ranks_import_ends_them(tmp_path: Path) -> None:
    words = ("train", "c.yaml", "--out", "run", "--layout", "vertex=2")
    done = interrupted(tmp_path, "torch", *words, whose="1", TEST_TARGET="launcher")
    assert (done.returncode, done.stderr) == (130, "trisect: Stopped before training began.\n")
    assert not children_of(tmp_path)


def children_of(folder: Path) -> list[int]:
    """The processes that were started with a hook of this folder and live."""
    alive = []
    for process in psutil.process_iter():
        try:
            mine = process.environ().get("TEST_FIRED") == str(folder / "fired")
        except (psutil.Error, OSError):
            continue
        if mine and process.status() != psutil.STATUS_ZOMBIE:
            alive.append(process.pid)
    return alive


def test_requests_are_heeded_before_anything_large_is_imported() -> None:
    code = "import os, signal, sys, time; first = set(sys.modules); import trisect.cli.main; "
    code += "print(*(name for name in sys.modules if name not in first))"
    paths = {"PYTHONPATH": str(Path(trisect.__file__).parents[1])}  # -S leaves out those of installed packages
    shown = subprocess.run(
        [sys.executable, "-S", "-c", code], env=paths, capture_output=True, text=True, check=True
    ).stdout.split()
    assert {name for name in shown if not name.startswith("trisect")} <= {"__future__"}
    assert "trisect.cli.requests" in shown
