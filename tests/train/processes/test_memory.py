"""RSS and PSS of processes that share pages, and of one that does not."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from trisect.train.processes import memory
from trisect.train.processes.memory import peak_rss_bytes, watched_memory

SIZE = 64 << 20
needs_pss = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="the system has no smaps_rollup")

# each waits until all have touched their pages, and stays until all have measured
RANK = """
import json, mmap, sys
from trisect.train.processes.memory import peak_rss_bytes, watched_memory
with watched_memory() as watch:
    if sys.argv[1] == "shared":
        with open(sys.argv[2], "rb") as file:
            held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        touched = sum(held[place] for place in range(0, len(held), 4096))
    else:
        held = bytearray(b"1") * int(sys.argv[2])
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps([peak_rss_bytes(), watch.peak()]), flush=True)
    sys.stdin.readline()
"""


def measured(kind: str, what: str) -> list[list[int]]:
    """(RSS, PSS) of two processes that hold `SIZE` bytes each at the same time."""
    command = [sys.executable, "-c", RANK, kind, what]
    ranks = [subprocess.Popen(command, stdin=-1, stdout=-1, text=True) for _ in range(2)]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "ready\n"
        found = []
        for rank in ranks:
            assert rank.stdin is not None
            assert rank.stdout is not None
            rank.stdin.write("\n")
            rank.stdin.flush()
            found.append(json.loads(rank.stdout.readline()))
        return found
    finally:
        for rank in ranks:
            rank.communicate("\n")


@needs_pss
def test_pages_of_two_processes_count_once(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    path.write_bytes(b"1" * SIZE)
    rss, pss = (sum(peaks) for peaks in zip(*measured("shared", str(path)), strict=True))
    assert rss > 2 * SIZE
    # the second process looked when the first had its pages too; the first may have looked before
    assert pss < rss - 0.4 * SIZE


@needs_pss
def test_own_pages_count_in_both() -> None:
    """What the comparison above would find if PSS divided pages that are not shared."""
    shared = measured("own", "1")
    for (small_rss, small_pss), (rss, pss) in zip(shared, measured("own", str(SIZE)), strict=True):
        assert rss - small_rss > 0.9 * SIZE
        assert pss - small_pss > 0.9 * SIZE
        assert pss <= rss


@needs_pss
def test_a_peak_between_two_looks_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_EVERY", 60.0)
    with watched_memory() as watch:
        # above whatever this process has had before, so that the peak of RSS is this one
        before = peak_rss_bytes()
        held = mmap.mmap(-1, before + SIZE)
        held.write(b"1" * len(held))
        held.close()
        found = watch.peak()
    assert found is not None
    assert found > 0.9 * (before + SIZE)


# in a process of its own: that of the tests may have held much more than it does now
GROWING = """
import mmap, threading
from trisect.train.processes import memory
from trisect.train.processes.memory import PssWatch, peak_rss_bytes, watched_memory
memory._EVERY = 0.001
looks, looked, own = [], threading.Event(), PssWatch._look
def look(watch):
    looks.append(1)
    if len(looks) > 1:
        looked.set()
    return own(watch)
PssWatch._look = look
with watched_memory():
    assert not looked.wait(0.1)
    held = mmap.mmap(-1, peak_rss_bytes() + (64 << 20))
    held.write(b"1" * len(held))
    assert looked.wait(10.0)
"""


@needs_pss
def test_the_thread_looks_when_rss_has_grown() -> None:
    subprocess.run([sys.executable, "-c", GROWING], check=True, timeout=60)


def test_inner_watches_are_the_outer_one_and_none_stays() -> None:
    threads = threading.active_count()
    with watched_memory() as outer, watched_memory() as inner:
        assert inner is outer
        assert threading.active_count() <= threads + 1
    assert threading.active_count() == threads
    with watched_memory() as later:
        assert later is not outer
    with pytest.raises(KeyError), watched_memory():
        raise KeyError
    assert threading.active_count() == threads


def test_a_system_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_ROLLUP", Path("/nowhere"))
    threads = threading.active_count()
    with watched_memory() as watch:
        assert threading.active_count() == threads
        assert watch.peak() is None
    assert peak_rss_bytes() > 1_000_000
    monkeypatch.setattr(memory, "_STATUS", Path("/nowhere"))
    assert peak_rss_bytes() > 1_000_000
