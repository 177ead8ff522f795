"""The command itself: help, version, how errors and interruptions end."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trisect import __version__
from trisect.cli.app import end
from trisect.cli.main import wait_briefly
from trisect.errors import RunError


def test_help_lists_the_commands(trisect):
    for arguments in ([], ["--help"]):
        shown = trisect(*arguments)
        assert (shown.code, shown.err) == (0, "")
        for command in ("train", "check", "predict", "report", "data", "bench"):
            assert command in shown.out


def test_a_group_alone_shows_its_help(trisect):
    shown = trisect("data")
    assert (shown.code, shown.err) == (0, "")
    assert "list" in shown.out


def test_version(trisect):
    assert trisect("--version").out.strip() == f"trisect {__version__}"


@pytest.mark.parametrize("arguments", [["trian"], ["train", "--epochs", "3"], ["check"], ["train", "a", "b"]])
def test_usage_errors_are_one_line(trisect, arguments):
    shown = trisect(*arguments)
    assert shown.code == 2
    assert shown.err.startswith("trisect: ")
    assert shown.err.count("\n") == 1


def test_python_m_trisect_starts_without_torch():
    code = """
import runpy, sys
sys.argv = ["trisect", "--version"]
try:
    runpy.run_module("trisect", run_name="__main__")
except SystemExit as end:
    print(end.code)
print("torch" in sys.modules)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["trisect", __version__, "0", "False"]


def raising(error: BaseException):
    def write_report(*_: object) -> None:
        raise error

    return write_report


def test_how_failures_end(trisect, small, monkeypatch):
    assert trisect("train", small, "--out", "run").code == 0
    monkeypatch.setattr("trisect.report.write_report", raising(RunError("Rank 1 died.")))
    shown = trisect("report", "run")
    assert (shown.code, shown.err) == (1, "trisect: Rank 1 died.\n")
    monkeypatch.setattr("trisect.report.write_report", raising(KeyboardInterrupt()))
    shown = trisect("report", "run")
    assert (shown.code, shown.err) == (130, "trisect: Stopped.\n")
    monkeypatch.setattr("trisect.report.write_report", raising(PermissionError(errno.EACCES, "Permission denied", "x")))
    shown = trisect("report", "run")
    assert shown.code == 1
    assert shown.err.startswith("trisect: Permission denied (x); make it readable and writable for this user")
    monkeypatch.setattr("trisect.report.write_report", raising(ZeroDivisionError("ours")))
    with pytest.raises(ZeroDivisionError):
        trisect("report", "run")


def test_a_second_request_does_not_interrupt_what_the_first_began():
    code = """
import os, signal, time
from trisect.cli.requests import end_on_request, stop_code
end_on_request()
try:
    os.kill(os.getpid(), signal.SIGTERM)
except KeyboardInterrupt:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
        time.sleep(0.01)
    print(stop_code())
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stdout) == (0, "143\n"), shown.stderr


def test_waiting_threads_sleep_soon_unless_the_user_says_otherwise(monkeypatch):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    wait_briefly()
    assert os.environ["GOMP_SPINCOUNT"] == "10000"
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    wait_briefly()
    assert os.environ["GOMP_SPINCOUNT"] == "7"
    monkeypatch.delenv("GOMP_SPINCOUNT")
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    wait_briefly()
    assert "GOMP_SPINCOUNT" not in os.environ


def test_a_sentence_is_printed_once_a_host_whichever_rank_is_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(2):
        tmp_path.joinpath(str(rank)).mkdir()
    for rank in (1, 0):  # the first rank of the host comes last
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / str(rank) / "error.json"))
        assert end("The layout needs 3 ranks.", 2) == 2
        told = json.loads((tmp_path / str(rank) / "error.json").read_text())  # which torchrun prints last
        assert told["message"]["message"] == "The layout needs 3 ranks."
    end("Another sentence.", 2)
    assert capsys.readouterr().err == "trisect: The layout needs 3 ranks.\ntrisect: Another sentence.\n"
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE")  # without torchrun there is nobody to agree with
    end("Another sentence.", 2)
    assert capsys.readouterr().err == "trisect: Another sentence.\n"
