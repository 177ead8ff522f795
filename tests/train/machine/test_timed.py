"""Times on a machine that others use too: repeated until two agree, and the shortest counts."""

from __future__ import annotations

import pytest

from trisect.train.machine.timed import Timed, low, settle, shortest


def test_what_disturbs_counts_little():
    assert low([1.0, 1.1, 9.0, 8.0, 1.05, 7.0]) == 1.1


def test_of_several_runs_the_shortest_counts():
    first = Timed([9.0, 8.0], ({"F": 2.0, "B": 5.0}, {"F": 1.0, "B": 9.0}), 1)
    second = Timed([7.5], ({"F": 3.0, "B": 4.0}, {"F": 2.0, "B": 8.0}), 2)
    least = shortest([first, second])
    assert least.ranks == ({"F": 2.0, "B": 4.0}, {"F": 1.0, "B": 8.0})
    assert least.epoch == 7.5
    assert least.memory == 1


class Machine:
    """Work that takes as long as it is told each time, and notes in which order it was done."""

    def __init__(self, **seconds):
        self.seconds = {name: list(each) for name, each in seconds.items()}
        self.order = []

    def measurements(self):
        return {name: lambda name=name: self.measure(name) for name in self.seconds}

    def measure(self, name):
        self.order.append(name)
        return [Timed([self.seconds[name].pop(0)])]


def test_everything_is_measured_twice_with_all_else_between():
    machine = Machine(a=[1.0, 1.1], b=[2.0, 1.9])
    settled = settle(machine.measurements())
    assert machine.order == ["a", "b", "a", "b"]
    assert {name: timed.epoch for name, timed in settled.items()} == {"a": 1.0, "b": 1.9}
    assert settled.doubtful == []


def test_what_was_disturbed_is_measured_again():
    """Once more until two agree: a disturbed first or second time alike, and no more often than that."""
    machine = Machine(quiet=[1.0, 1.05, 9.0], late=[1.0, 1.6, 1.1], twice=[2.0, 1.2, 1.0])
    settled = settle(machine.measurements())
    assert [len(settled.runs[name]) for name in ("quiet", "late", "twice")] == [2, 3, 3]
    assert [settled[name].epoch for name in ("quiet", "late", "twice")] == [1.0, 1.0, 1.0]
    assert settled.doubtful == []


def test_what_never_agrees_is_named():
    """Two disturbed times that agree say nothing of the shortest."""
    machine = Machine(fine=[1.0, 1.0], wild=[5.0, 4.0, 2.0, 2.0], lone=[1.0, 1.6, 1.65, 1.0])
    settled = settle(machine.measurements())
    assert settled.doubtful == ["wild", "lone"]
    assert settled.doubt == pytest.approx(2 / 3)
    assert settled["wild"].epoch == 2.0
    assert len(settled.runs["wild"]) == 3


def test_all_of_several_ways_must_agree():
    times = iter([(1.0, 3.0), (1.0, 9.0), (2.0, 3.1)])
    settled = settle({"work": lambda: [Timed([seconds]) for seconds in next(times)]})
    assert [run[1].epoch for run in settled.runs["work"]] == [3.0, 9.0, 3.1]
    assert settled.doubtful == []
    assert settled["work"].epoch == 1.0
