from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from torch.distributed import HashStore

from trisect.comm.world import World
from trisect.errors import RunError
from trisect.train.processes import faults
from trisect.train.processes.faults import LostRankError, naming_lost_ranks, remove_folders
from trisect.train.processes.launch import launch


def test_a_folder_with_a_colon_is_removed_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ours = tmp_path / "exp:2" / ".p.parquet.rows"
    # what the path would name if it were taken apart at the colon
    others = [tmp_path / "exp" / "mine", tmp_path / "2" / ".p.parquet.rows"]
    for folder in (ours, *others):
        folder.mkdir(parents=True)
        (folder / "file").touch()
    told = tmp_path / "told"
    code = f"import os, pathlib; pathlib.Path({str(told)!r}).write_text(os.environ['TRISECT_FOLDERS'])"
    launch([sys.executable, "-c", code], 1, folders=[os.path.relpath(ours)])
    assert str(ours) in json.loads(told.read_text())
    remove_folders(told.read_text())
    assert not ours.exists()
    assert ours.parent.exists()
    assert all((folder / "file").exists() for folder in others)


def test_only_absolute_folders_with_names_of_ours_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["trisect-shards-x", ".p.npz.rows", "results", "my-trisect-x", "p.rows", "trisect-relative"]
    for name in names:
        Path(name).mkdir()
    remove_folders(json.dumps([*(str(tmp_path / name) for name in names[:5]), names[5], "", str(tmp_path)]))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[2:])


def test_a_folder_that_is_still_written_to_is_removed(tmp_path: Path) -> None:
    """A rank tells of epochs until it leaves; each line may come while another rank empties the folder."""
    written, stop = [0], threading.Event()

    def write(folder: Path) -> None:
        while not stop.is_set():
            with suppress(OSError), (folder / f"told-{written[0]}").open("a") as file:
                file.write("epoch\n")
                written[0] += 1

    for number in range(20):
        folder = tmp_path / f"trisect-job-{number}"
        folder.mkdir()
        stop.clear()
        writer = threading.Thread(target=write, args=(folder,))
        writer.start()
        try:
            while not any(folder.iterdir()):
                pass
            remove_folders(json.dumps([str(folder)]))
        finally:
            stop.set()
            writer.join()
    assert not list(tmp_path.iterdir())
    assert written[0] > 20


def said_by(rank: int, store: HashStore, late: float, error: Exception) -> str:
    """Give what a rank of three says that meets an error after so many seconds."""
    time.sleep(late)
    with pytest.raises((LostRankError, RunError)) as caught, naming_lost_ranks(store, World(rank, 3, rank, 3)):
        raise error
    return str(caught.value)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRISECT_FAILURES", raising=False)
    monkeypatch.setattr(faults, "_SETTLE", 0.05)


def three_ranks(errors: dict[int, tuple[float, Exception]]) -> dict[int, str]:
    store, said = HashStore(), dict[int, str]()
    threads = [
        threading.Thread(target=lambda rank=rank: said.update({rank: said_by(rank, store, *errors[rank])}))
        for rank in errors
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return said


def test_a_rank_that_notices_late_is_not_named_as_silent(quick: None) -> None:
    lost = RuntimeError("Timed out waiting 5000ms for recv operation")
    said = three_ranks({0: (0.0, lost), 2: (1.0, lost)})
    assert said == dict.fromkeys((0, 2), "rank 1 is gone or silent; the run is stopped.")


def test_two_silent_ranks_are_both_named(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "_LATEST", 0.2)
    said = three_ranks({2: (0.0, RuntimeError("Connection closed by peer"))})
    assert said == {2: "rank 0, 1 is gone or silent; the run is stopped."}


def test_the_reason_of_a_rank_that_failed_is_what_the_others_say(quick: None) -> None:
    failed, lost = RunError("the disk is full"), RuntimeError("Connection reset by peer")
    said = three_ranks({0: (0.0, lost), 1: (0.0, failed), 2: (0.3, lost)})
    assert said == {0: "rank 1: the disk is full", 1: "the disk is full", 2: "rank 1: the disk is full"}
