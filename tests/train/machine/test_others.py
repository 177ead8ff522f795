"""How much of the cores others take."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

import pytest

from trisect.train.machine import others
from trisect.train.machine.others import Others


@pytest.fixture
def clock(monkeypatch, tmp_path):
    """A machine of which the test says what it did: cores' ticks, seconds that went by, seconds of this process."""

    class Clock:
        path = tmp_path / "stat"
        now = own = 0.0
        columns: ClassVar[list[int]] = [100, 0, 0, 900, 5, 0, 0, 0, 0, 0]

        def tick(self, *, seconds, busy, own=0.0, idle=0, stolen=0):
            self.now, self.own = self.now + seconds, self.own + own
            more = [busy, 0, 0, idle, 0, 0, 0, stolen, 50, 0]
            self.columns = [before + ticks for before, ticks in zip(self.columns, more, strict=True)]
            own = " ".join(map(str, self.columns))
            self.path.write_text(f"cpu  9 9 9\ncpu0 {own}\ncpu1 {self.now:.0f} 0 0 0 0 0 0 0 0 0\nintr 4\n")

    clock = Clock()
    clock.tick(seconds=0.0, busy=0)
    monkeypatch.setattr(others, "_STAT", clock.path)
    monkeypatch.setattr(others.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(others, "_own", lambda: clock.own)
    monkeypatch.setattr(others.os, "sysconf", lambda name: 100)
    # cores that this process may not use do not count, whatever they do
    monkeypatch.setattr(others.os, "sched_getaffinity", lambda process: {0}, raising=False)
    return clock


def test_own_work_and_idle_cores_are_not_others(clock):
    watch = Others()
    clock.tick(seconds=10.0, busy=500, own=5.0, idle=1500)
    assert watch.cores() == pytest.approx(0.0)


def test_work_of_others_and_time_that_a_host_takes_count(clock):
    watch = Others()
    clock.tick(seconds=10.0, busy=1200, own=5.0, idle=500, stolen=300)
    assert watch.cores() == pytest.approx(1.0)


def test_a_system_that_does_not_tell(clock):
    watch = Others()
    clock.path.write_text("no columns here\n")
    clock.now += 1.0
    assert watch.cores() is None
    clock.path.unlink()
    assert watch.cores() is None
    assert Others().cores() is None


def test_children_that_have_ended_are_ones_own():
    before = others._own()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    assert others._own() >= before + 0.25  # clocks tick in hundredths


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="the system has no /proc/stat")
def test_a_busy_process_is_seen():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            watch = Others()
            time.sleep(0.6)
            taken = watch.cores()
        finally:
            busy.kill()
    assert taken is not None
    assert taken > 0.3
