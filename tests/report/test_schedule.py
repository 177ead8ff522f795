"""The picture of an epoch: which events are read, what they are in words, where time went, and what is drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trisect.layout import Layout
from trisect.report.events import EPOCHS, Event, length_of, parse_action, recent_epochs, spent
from trisect.report.run_view import RunView
from trisect.report.schedule import Panel, schedule_data, simulated
from trisect.report.values import Values
from trisect.report.words import Words

PLAN = Values(
    {
        "stages": [[0, 1], [2, 3]],
        "layers": [{}, {}, {}],
    }
)
TWO_RUNS = Layout(time=2)


def done(start: float, *pairs: tuple[str, float]) -> list[Event]:
    """Events one after the other."""
    events = []
    for name, seconds in pairs:
        events.append(Event(parse_action(name), name, start, seconds))
        start += seconds
    return events


def two_ranks(start: float = 100.0) -> list[list[Event]]:
    """Rank 1 waits for the state of each chunk, and rank 0 at the end, when half a second of adding up is left."""
    first = done(start, ("0F0.1-1@0", 1.0), ("0PcF0.1@0>1", 0.0), ("0F1.1-1@0", 1.0), ("0PcF1.1@0>1", 0.0))
    first += done(start + 2.0, ("0G0", 1.5), ("0U0", 0.5))
    second = done(start, ("0WcF0.1@0<0", 1.25), ("0F0.1-1@0", 1.0), ("0WcF1.1@0<0", 0.0), ("0F1.1-1@0", 0.75))
    second += done(start + 3.0, ("0G0", 0.5), ("0U0", 0.5))
    return [first, second]


def test_where_time_went():
    first, second = spent(two_ranks(), TWO_RUNS)
    assert (first.forward, first.step, first.waiting, first.exchanging, first.other) == (2.0, 0.5, 1.0, 0.5, 0.0)
    # the state left after a second, and took a quarter
    assert (second.forward, second.waiting, second.exchanging) == (1.75, 1.0, 0.75)
    assert sum((second.computing, second.waiting, second.exchanging, second.other)) == length_of(two_ranks()) == 4.0


def test_where_time_went_without_a_layout_that_fits():
    first, _ = spent(two_ranks(), Layout(vertex=3))
    assert (first.waiting, first.exchanging) == (0.0, 1.5)


def test_the_schedule_without_delays():
    planned = simulated({1: two_ranks(), 2: two_ranks(200.0)}, TWO_RUNS)
    assert planned is not None
    assert [event.name for event in planned[1]] == [event.name for event in two_ranks()[1]]
    assert length_of(planned) == 3.25  # rank 1: waits 1, computes 1 and 0.75, steps 0.5
    broken = two_ranks()
    del broken[0][1]
    assert simulated({1: broken}, TWO_RUNS) is None


def test_pieces_of_a_cell_take_their_own_time():
    events = done(0.0, ("0F0", 1.0), ("0PcF0.1@0>1", 0.0), ("0F0", 3.0), ("0U0", 0.5))
    other = done(0.0, ("0WcF0.1@0<0", 1.0), ("0F0", 2.0), ("0U0", 0.5))
    planned = simulated({1: [events, other]}, TWO_RUNS)
    assert planned is not None
    assert [event.seconds for event in planned[0]] == [1.0, 0.0, 3.0, 0.5]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0F2.1-2@1", "forward of layers 1–2, chunk 2, block 1"),
        ("0B3.1-1@2", "backward of layer 1, chunk 3, block 2"),
        ("0A0.1-1@4", "forward again of layer 1, chunk 0, block 4"),
        ("0F0.2-3@0", "forward of layer 2 and the head, chunk 0, block 0"),
        ("0B0.3-3", "backward of the head, chunk 0"),
        ("0F0", "forward of layers 0–1, chunk 0"),
        ("1F0", "forward of layer 2 and the head, chunk 0"),
        ("0PcB3.1@2>1", "sending gradients of the state for layer 1 to rank 1, chunk 3, block 2"),
        ("0WhF0.2", "waiting for halo rows for layer 2, chunk 0"),
        ("0PfF0.3", "sending output rows for the head, chunk 0"),
        ("1EbF3<0", "making room for activations from rank 0, chunk 3"),
        ("0PtF0.1@1", "sending rows that change hands for layer 1, chunk 0, block 1"),
        ("0WrB0.2", "waiting for gradients of rows that change hands for layer 2, chunk 0"),
        ("0PsF0.2", "sending sums over all rows for layer 2, chunk 0"),
        ("0G0", "gradients of the parameters are added up over ranks"),
        ("0U0", "step of the optimiser"),
    ],
)
def test_words(text: str, told: str):
    assert Words(PLAN).describe(parse_action(text), text) == told


def test_words_of_what_is_no_action():
    assert parse_action("guard") is None
    assert parse_action("0F0.1-2b") is None
    assert Words(Values({})).describe(None, "guard") == "guard"
    assert Words(Values({"layers": 3, "stages": [5, [1], "x"]})).describe(parse_action("0F0")) == (
        "forward of all layers of the stage, chunk 0"
    )
    # of a plan that does not say how many layers there are, none is the head
    assert Words(Values({})).describe(parse_action("0F0.17-19")) == "forward of layers 17–19, chunk 0"


def unpacked(numbers: list[int]) -> list[tuple[int, int, int]]:
    at, spans = 0, []
    for k in range(0, len(numbers), 6):
        at += numbers[k]
        spans.append((at, at + numbers[k + 1], numbers[k + 2]))
        at += numbers[k + 1]
    return spans


def test_data_to_draw():
    data = schedule_data([Panel("Measured", "", two_ranks())], Words(PLAN))
    phrases = [text for text, _, _ in data["phrases"]]
    spans = unpacked(data["panels"][0]["ranks"][1])
    assert [(a, b) for a, b, _ in spans][:2] == [(0, 1_250_000), (1_250_000, 2_250_000)]
    assert phrases[spans[0][2]] == "waiting for the state for layer 1"
    assert data["length"] == 4_000_000
    peer, chunk = data["panels"][0]["ranks"][1][5], data["panels"][0]["ranks"][1][3]
    assert (peer, chunk) == (0, 0)


def test_very_many_actions_are_drawn_as_fewer(monkeypatch):
    events = done(0.0, *((f"0F{k % 3}.0-1", 1e-5) for k in range(5000)), ("0U0", 1.0))
    whole = schedule_data([Panel("Measured", "", [events])], Words(PLAN))
    monkeypatch.setattr("trisect.report.schedule._MOST", 100)
    fewer = schedule_data([Panel("Measured", "", [events])], Words(PLAN))
    both = [unpacked(data["panels"][0]["ranks"][0]) for data in (whole, fewer)]
    assert len(both[0]) == 5001
    assert len(both[1]) < 200
    assert both[0][-1] == both[1][-1]
    assert both[1][-2][1] == both[0][-2][1]


def write_events(path: Path, epochs: list[int], each: int, **more: Any) -> None:
    with path.open("a") as file:
        for epoch in epochs:
            for k in range(each):
                start = 1e9 + 10 * epoch + 0.001 * k
                event = {"name": f"0F{k}", "start": start, "seconds": 0.001, "epoch": epoch, **more}
                file.write(json.dumps(event) + "\n")


def test_the_last_epochs_are_read_from_the_end(tmp_path: Path, monkeypatch):
    path = tmp_path / "rank-0.jsonl"
    write_events(path, list(range(1, 41)), 50)
    whole, _ = recent_epochs(path)
    assert list(whole) == list(range(41 - EPOCHS, 41))
    monkeypatch.setattr("trisect.report.events._READ", 1000)
    assert recent_epochs(path) == (whole, 0)
    monkeypatch.setattr("trisect.report.events._MOST", 1000)
    few, _ = recent_epochs(path)
    assert few == {epoch: whole[epoch] for epoch in few}


def test_an_epoch_that_was_trained_again_counts_as_it_was_last(tmp_path: Path):
    path = tmp_path / "rank-0.jsonl"
    write_events(path, [1, 2, 3], 5)
    write_events(path, [2], 2)
    write_events(path, [2], 7, evaluation=True)
    path.write_text(
        path.read_text() + 'no event\n{"name": 5}\n[]\n{"name": "0F0", "start": NaN, "seconds": 1, "epoch": 2}\n'
    )
    epochs, damaged = recent_epochs(path)
    assert {epoch: len(events) for epoch, events in epochs.items()} == {1: 5, 2: 2, 3: 5}
    assert damaged == 3  # and a last line that may have been cut off
    assert recent_epochs(tmp_path / "none.jsonl") == ({}, 0)


def test_only_epochs_that_all_ranks_ended_are_shown(make_run):
    directory = make_run(vertex=2, epochs=3)
    write_events(directory.path / "events" / "rank-0.jsonl", [4], 3)
    assert list(RunView.of(directory).epochs) == [1, 2, 3]
    (directory.path / "events" / "rank-1.jsonl").unlink()
    assert RunView.of(directory).epochs == {}
