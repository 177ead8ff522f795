"""A run is shown as it goes on, on this machine alone, and its values are never taken for HTML."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from trisect.cli.main import run_command
from trisect.report.watch.follow import Follower
from trisect.report.watch.serve import Server

CONFIG = {
    "data": {"generate": "community", "vertices": 60, "per_class": 3},
    "model": {"name": "gcn", "hidden": 4},
    "task": "node-classification",
    "train": {"epochs": 3, "monitor": "val.accuracy"},
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    return tmp_path


def write(run: Path, text: str) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write(text)


def line(epoch: int) -> str:
    return json.dumps({"epoch": epoch, "loss": 1.0 / epoch, "seconds": 0.1, "val": {"accuracy": 0.5}}) + "\n"


def test_lines_are_read_as_they_come(run: Path) -> None:
    follower = Follower(run)
    assert follower.look() == []
    write(run, line(1) + line(2)[:10])
    assert [record["epoch"] for record in follower.look()] == [1]
    write(run, line(2)[10:] + "no json\n")
    assert [record["epoch"] for record in follower.look()] == [2]
    assert not follower.ended
    (run / "metrics.jsonl").write_text(line(1))  # it went on from an earlier checkpoint
    follower.look()
    assert [record["epoch"] for record in follower.records] == [1]
    write(run, line(2) + line(3))
    (run / "summary.json").write_text('{"epochs": 3}')
    follower.look()
    assert follower.ended


@pytest.fixture
def server(run: Path) -> Iterator[Server]:
    write(run, line(1) + line(2))
    with Server(Follower(run), 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield server
        server.shutdown()


def test_the_page_and_its_records(server: Server) -> None:
    with urllib.request.urlopen(server.address) as answer:
        text = answer.read().decode()
        assert "innerHTML" not in text
        assert "http-equiv" not in text
        assert "Content-Security-Policy" in answer.headers
    with urllib.request.urlopen(server.address + "records?since=1") as answer:
        told = json.loads(answer.read())
    assert [record["epoch"] for record in told["records"]] == [2]
    assert (told["epochs"], told["count"], told["ended"]) == (3, 2, False)


def strict(text: bytes | str) -> Any:
    """Parse JSON as a browser does."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_a_measure_without_a_value_is_null(server: Server, run: Path) -> None:
    write(run, '{"epoch": 3, "loss": NaN, "val": {"auc": NaN, "map": Infinity}}\n')
    with urllib.request.urlopen(server.address + "records?since=2") as answer:
        told = strict(answer.read())
    assert told["records"] == [{"epoch": 3, "loss": None, "val": {"auc": None, "map": None}}]


@pytest.mark.parametrize("since", ["9" * 5000, "-1", "x", "1.5", "%C2%B2"])
def test_a_count_that_is_none(server: Server, since: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="400") as caught:
        urllib.request.urlopen(f"{server.address}records?since={since}")
    assert "give the number of records that are known" in caught.value.read().decode()
    with urllib.request.urlopen(server.address + "records") as answer:
        assert len(strict(answer.read())["records"]) == 2


def test_a_foreign_name_and_a_foreign_path_are_refused(server: Server) -> None:
    request = urllib.request.Request(server.address, headers={"Host": "evil.example"})
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(request)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(server.address + "../config.yaml")
    assert server.server_address[0] == "127.0.0.1"


def test_the_terminal_ends_with_the_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(run, line(1) + line(2) + line(3))
    (run / "summary.json").write_text('{"epochs": 3}')
    assert run_command(["watch", str(run), "--terminal"]) == 0
    shown = capsys.readouterr().out
    assert "epoch 3/3" in shown
    assert "The run has ended." in shown


def test_what_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["watch", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err
    assert run_command(["watch", str(tmp_path), "--port", "99999"]) == 2
