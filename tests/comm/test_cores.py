"""Cores are those that the process may use: by its affinity, and by the quota of the control groups around it."""

from __future__ import annotations

import os

import pytest

from trisect.comm import cores
from trisect.comm.cores import shared_cores, usable_cores


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """`groups("0::/a/b", {"a/cpu.max": "150000 100000"})` on a host of 8 cores."""

    def make(line: str, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (tmp_path / "self").write_text(f"{line}\n")
        monkeypatch.setattr(cores, "_GROUPS", tmp_path / "self")
        monkeypatch.setattr(cores, "_ROOT", tmp_path / "cgroup")

    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    return make


@pytest.mark.parametrize(
    ("line", "files", "expected"),
    [
        ("0::/a/b", {}, 8),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "max 100000"}, 8),
        # the strictest group counts, and part of a core is one
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "350000 100000"}, 4),
        ("0::/", {"cpu.max": "50000 100000"}, 1),
        ("4:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "200000", "cpu/a/cpu.cfs_period_us": "100000"}, 2),
        ("4:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, 8),
        ("4:cpuset:/a", {"cpu/a/cpu.cfs_quota_us": "200000", "cpu/a/cpu.cfs_period_us": "100000"}, 8),
    ],
)
def test_a_quota_bounds_the_cores(groups, line, files, expected):
    groups(line, files)
    assert usable_cores() == expected


def test_affinity_bounds_the_cores(groups, monkeypatch):
    groups("0::/", {"cpu.max": "600000 100000"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1, 5, 6})
    assert usable_cores() == 3


def test_ranks_beyond_the_cores_are_said():
    assert shared_cores(2, 2) is None
    assert shared_cores(64, 2).startswith("64 ranks share 2 cores")
    assert shared_cores(2, 1).startswith("2 ranks share 1 core,")
