from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from trisect.train.processes.faults import remove_folders
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
