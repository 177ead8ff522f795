from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from trisect.comm.local.mailbox import Inbox, Outbox, Room, Slot
from trisect.comm.local.neighbours import neighbours
from trisect.comm.local.ring import Token
from trisect.ops import memory
from trisect.train.processes.faults import is_lost

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared memory without names is Linux's")

MIB = 1 << 20


def rows(number: int, count: int = 100_000) -> torch.Tensor:
    return torch.arange(count * 4, dtype=torch.float32).view(count, 4) + number


def sent(box: Outbox, x: torch.Tensor) -> Token:
    found = box.write((x.shape[0], x.shape[1]), x.dtype)
    assert found is not None
    place, token = found
    place.copy_(x)
    return token


@pytest.fixture
def boxes() -> tuple[Outbox, Inbox, Room]:
    room = Room(64 * MIB)
    return Outbox(room), Inbox(os.getpid()), room


@pytest.mark.parametrize("count", [1, 1000, 262_144, 262_145])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8])
def test_rows_arrive_as_they_are(count: int, dtype: torch.dtype, boxes: tuple[Outbox, Inbox, Room]) -> None:
    outbox, inbox, _ = boxes
    x = rows(3, count).to(dtype)
    assert inbox.read(sent(outbox, x), (count, 4), dtype).equal(x)


def test_a_slot_is_written_again_when_nobody_reads_it(boxes: tuple[Outbox, Inbox, Room]) -> None:
    outbox, inbox, room = boxes
    for number in range(5):
        found = inbox.read(sent(outbox, rows(number)), (100_000, 4), torch.float32)
        assert found.equal(rows(number))
        del found
    assert room.used == 2 * MIB
    held = [inbox.read(sent(outbox, rows(number)), (100_000, 4), torch.float32) for number in range(3)]
    assert room.used == 6 * MIB
    half = held[1][50_000:]
    del held[1]
    inbox.read(sent(outbox, rows(7)), (100_000, 4), torch.float32)
    assert half.equal(rows(1)[50_000:])  # a view is enough to keep it
    assert room.used == 8 * MIB


def test_a_slot_that_was_read_holds_nan(boxes: tuple[Outbox, Inbox, Room], monkeypatch: pytest.MonkeyPatch) -> None:
    outbox, inbox, _ = boxes
    for poisoned in (False, True):
        monkeypatch.setattr(memory, "POISONED", poisoned)
        token = sent(outbox, rows(0, 1000))
        found = inbox.read(token, (1000, 4), torch.float32)
        assert found.equal(rows(0, 1000))
        kept = outbox._slots[0].rows((1001, 4), torch.float32)
        del found
        assert outbox.unread == 0
        assert bool(kept[:1000].isnan().all()) == poisoned
        assert not kept[1000:].isnan().any()


def test_messages_on_their_way_do_not_meet(boxes: tuple[Outbox, Inbox, Room]) -> None:
    outbox, inbox, _ = boxes
    tokens = [sent(outbox, rows(number)) for number in range(4)]
    for number in (2, 0, 3, 1):
        assert inbox.read(tokens[number], (100_000, 4), torch.float32).equal(rows(number))


def test_a_slot_that_is_too_small_makes_way(boxes: tuple[Outbox, Inbox, Room]) -> None:
    outbox, inbox, room = boxes
    inbox.read(sent(outbox, rows(0, 1000)), (1000, 4), torch.float32)
    assert room.used == MIB
    for number, count in enumerate((300_000, 1000, 500_000)):
        assert inbox.read(sent(outbox, rows(number, count)), (count, 4), torch.float32).equal(rows(number, count))
    assert room.used == 8 * MIB
    assert len(inbox._pages) == 1


def test_a_slot_for_one_message_is_not_kept(boxes: tuple[Outbox, Inbox, Room]) -> None:
    def mapped() -> int:
        return sum("trisect-" in line for line in Path("/proc/self/maps").read_text().splitlines())

    outbox, inbox, room = boxes
    found = inbox.read(sent(outbox, rows(0)), (100_000, 4), torch.float32)
    before, descriptors = mapped(), len(os.listdir("/proc/self/fd"))
    for dtype in (torch.float32, torch.bfloat16):
        x = rows(1, 200_000).to(dtype)
        token = outbox.write_once(x)
        assert token is not None
        outbox.tidy()  # not read yet: it stays
        assert outbox.unread == 2
        assert room.used == 2 * MIB + x.nbytes
        number, descriptor = token[:2]
        assert inbox.read(token, (200_000, 4), dtype).equal(x)
        assert os.fstat(descriptor).st_size < MIB
        assert mapped() == before
        assert number not in inbox._pages
        outbox.tidy()
        assert room.used == 2 * MIB
        assert len(os.listdir("/proc/self/fd")) == descriptors
    assert found.equal(rows(0))
    unread = outbox.write_once(rows(2))
    outbox.close()
    assert room.used == 0
    assert unread is not None
    with pytest.raises(RuntimeError, match="Connection closed"):
        inbox.read(unread, (100_000, 4), torch.float32)


def test_without_room_there_is_no_slot_and_one_warning() -> None:
    outbox = Outbox(Room(3 * MIB))
    sent(outbox, rows(0))
    with pytest.warns(UserWarning, match="no room for more than 2 MiB of shared memory") as caught:
        found = [outbox.write((100_000, 4), torch.float32) for _ in range(2)]
    assert found == [None, None]
    assert len(caught) == 1


def test_a_system_without_memory_is_no_room(boxes: tuple[Outbox, Inbox, Room], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: int) -> None:
        raise OSError(28, "No space left on device")

    outbox, _, room = boxes
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "posix_fallocate", fail)
    with pytest.warns(UserWarning, match="through the network"):
        assert outbox.write((100_000, 4), torch.float32) is None
    assert room.used == 0
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_sender_that_is_gone_is_lost(boxes: tuple[Outbox, Inbox, Room]) -> None:
    outbox, inbox, _ = boxes
    token = sent(outbox, rows(0))
    outbox.close()
    with pytest.raises(RuntimeError, match="Connection closed") as caught:
        inbox.read(token, (100_000, 4), torch.float32)
    assert is_lost(caught.value)


def test_a_message_of_another_size_is_seen(boxes: tuple[Outbox, Inbox, Room]) -> None:
    outbox, inbox, _ = boxes
    with pytest.raises(RuntimeError, match="was announced"):
        inbox.read(sent(outbox, rows(0)), (1_000_000, 4), torch.float32)


def test_slots_leave_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    slot = Slot.create(0, MIB)
    assert len(os.listdir("/proc/self/fd")) > before
    del slot
    assert len(os.listdir("/proc/self/fd")) == before


def test_neighbours_are_of_the_same_host_and_can_be_read() -> None:
    def world(**other: Any) -> dict[int, int]:
        answers = iter([None, [0]])

        def gather(value: Any) -> list[Any]:
            given = next(answers)
            if given is not None:
                return [value, given]
            host, process, probe, word = value
            return [value, (other.get("host", host), process, other.get("probe", probe), other.get("word", word))]

        return neighbours(0, gather)

    assert world() == {1: os.getpid()}
    assert world(host="another 1") == {}
    assert world(word=b"of another file!") == {}
    assert world(probe=10_000) == {}


def test_both_transports_give_the_same_bits(tmp_path: Path, ranks: ModuleType) -> None:
    options = {"layers": 4, "hidden": 6, "dropout": 0.3}
    cases = [
        {"run": "transports", "module": "trained_cases", "layout": layout, "model": model, "options": options}
        for layout in ({"vertex": 2}, {"layer": 2, "chunks": 3}, {"vertex": 2, "wire": "int8"})
        for model in ("gcn", "gcnii")
    ]
    for case, results in zip(cases, ranks.run_forks(2, cases, tmp_path), strict=True):
        for result in results:
            assert result["same"], case
            assert not result["other"], case
            assert result["bytes"][0] == result["bytes"][1] == result["bytes"][2]
            assert result["boxes"] == [True, False, True]
            assert result["used"][0] > 0 == result["used"][2], case
            assert result["said"] == [0, 0, 1]


def test_messages_between_ranks(tmp_path: Path, ranks: ModuleType) -> None:
    [results] = ranks.run_forks(2, [{"run": "messages", "module": "transport_cases"}], tmp_path)
    for result in results:
        assert result["right"]
        assert result["busy"] == (1 + 2 + 1 + 4 + 4 + 1) * MIB
        assert result["used"] == result["busy"]


def test_a_lost_peer_is_noticed_and_leaves_nothing(tmp_path: Path, ranks: ModuleType) -> None:
    [results] = ranks.run_forks(2, [{"run": "lost", "module": "transport_cases"}], tmp_path)
    assert results[0] == {"boxes": True, "lost": True, "left": []}
    assert results[1]["boxes"]
