"""Rings of shared memory: every order, size and tag, with the native words and with Python's."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import torch

from trisect.comm.local import peer as peers
from trisect.comm.local import ring as rings
from trisect.comm.local.peer import Peer
from trisect.comm.local.ring import FIRST, LARGEST, RingReader, RingWriter, Token
from trisect.comm.local.shared import SharedFile
from trisect.comm.local.words import NativeWords, PlainWords
from trisect.train.processes.faults import is_lost

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared memory without names is Linux's")

OFFSET = 4096


@pytest.fixture(params=[NativeWords, PlainWords])
def ends(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[RingWriter, RingReader]:
    words = request.param()
    monkeypatch.setattr(rings, "words", lambda: words)
    monkeypatch.setattr(peers, "words", lambda: words)
    return ring(os.getpid())


def ring(process: int, timeout: float = 0.2) -> tuple[RingWriter, RingReader]:
    file = SharedFile.create("trisect-test", OFFSET + FIRST, reserve=False)
    return RingWriter(file, OFFSET), RingReader(Peer.of(1, process, timeout, 2), file, OFFSET)


def message(number: int, size: int) -> torch.Tensor:
    return (torch.arange(size) * 7 + number).to(torch.uint8)


def put(writer: RingWriter, tag: int, content: torch.Tensor) -> bool:
    return writer.put(tag, content.data_ptr(), content.numel())


def take(reader: RingReader, tag: int, number: int, size: int) -> torch.Tensor | Token:
    return reader.take(tag, number, size, lambda: torch.empty(size, dtype=torch.uint8))


@pytest.mark.parametrize("seed", range(5))
def test_every_order_size_and_tag(seed: int, ends: tuple[RingWriter, RingReader]) -> None:
    writer, reader = ends
    choose = random.Random(seed)
    for _ in range(40):
        sent: list[tuple[int, int, torch.Tensor | Token, int]] = []
        for number in range(choose.randint(1, 12)):
            tag, size = choose.randint(0, 3), choose.choice([0, 1, 63, 64, 65, 1000, 8000, 65_535])
            content: torch.Tensor | Token = message(number, size)
            if choose.random() < 0.3 or not put(writer, tag, content):  # type: ignore[arg-type]
                content = (number, 2, 3, 4, 5)
                writer.put_token(tag, size, content)
            sent.append((tag, reader.expect(tag), content, size))
        choose.shuffle(sent)
        for tag, number, content, size in sent:
            received = take(reader, tag, number, size)
            if isinstance(content, torch.Tensor):
                assert isinstance(received, torch.Tensor)
                assert received.equal(content)
            else:
                assert received == content
    assert not reader._early


def test_rows_are_gathered_into_the_ring(ends: tuple[RingWriter, RingReader]) -> None:
    writer, reader = ends
    matrix = torch.arange(40 * 7, dtype=torch.float64).view(40, 7)
    for turn in range(60):  # often enough to come to the end of the ring
        source = matrix[:, 2:] if turn % 2 else matrix  # rows that are further apart than they are wide
        which = torch.randperm(40, generator=torch.Generator().manual_seed(turn))[: turn % 12]
        assert writer.put_rows(3, source, which)
        wanted = source[which].contiguous()
        received = take(reader, 3, reader.expect(3), wanted.nbytes)
        assert isinstance(received, torch.Tensor)
        assert received.view(torch.float64).view(wanted.shape).equal(wanted)
        assert which.numel() == 0 or not received.view(torch.float64).view(wanted.shape).equal(wanted.flip(1))


def test_a_writer_never_waits_and_a_ring_stays_small(ends: tuple[RingWriter, RingReader]) -> None:
    writer, reader = ends
    count = 0
    while put(writer, 1, message(count, 50_000)):
        count += 1
    assert LARGEST // 50_000 // 2 < count < 2 * LARGEST // 50_000
    for number in range(40_000):  # tokens find room all the same
        writer.put_token(2, 0, (number, 0, 0, 0, 0))
    assert reader.token(2) == (0, 0, 0, 0, 0)
    assert len(reader._early) == count
    for number in range(count):
        received = take(reader, 1, reader.expect(1), 50_000)
        assert isinstance(received, torch.Tensor)
        assert received.equal(message(number, 50_000))
    for number in range(1, 40_000):
        assert reader.token(2)[0] == number


def test_counts_wrap_around(ends: tuple[RingWriter, RingReader], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rings, "WRAP", 128)
    writer, reader = ends
    writer._lines = writer._free = reader._lines = 100
    for number in range(300):
        assert put(writer, 0, message(number, 600))
        received = take(reader, 0, reader.expect(0), 600)
        assert isinstance(received, torch.Tensor)
        assert received.equal(message(number, 600))


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("inline", [False, True])
def test_a_message_of_another_size_is_refused(early: bool, inline: bool, ends: tuple[RingWriter, RingReader]) -> None:
    writer, reader = ends
    for size, right in ((100, True), (101, False), (99, False)):
        if inline:
            put(writer, 0, message(0, size))
        else:
            writer.put_token(0, size, (1, 2, 3, 4, 5))
        number = reader.expect(0)
        if early:
            writer.put_token(1, 0, (0, 0, 0, 0, 0))
            reader.token(1)
        if right:
            take(reader, 0, number, 100)
        else:
            with pytest.raises(
                RuntimeError, match=f"a message of {size} bytes was announced where 100 are due"
            ) as caught:
                take(reader, 0, number, 100)
            assert not is_lost(caught.value)


def test_rings_leave_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    writer, reader = ring(os.getpid())
    for number in range(200):
        put(writer, 0, message(number, 5_000))
    assert len(os.listdir("/proc/self/fd")) > before
    take(reader, 0, 0, 5_000)
    writer.close()
    del writer, reader
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def test_a_killed_peer_is_noticed_at_once(sleeper: subprocess.Popen[bytes]) -> None:
    writer, reader = ring(sleeper.pid, timeout=60.0)
    assert reader.peer.lives
    put(writer, 0, message(1, 10))
    sleeper.send_signal(signal.SIGKILL)  # nobody has waited for it: it stays as a zombie
    begin = time.monotonic()
    assert isinstance(take(reader, 0, reader.expect(0), 10), torch.Tensor)  # what it had sent is still there
    with pytest.raises(RuntimeError, match="Connection closed by rank 1") as caught:
        take(reader, 0, reader.expect(0), 10)
    assert time.monotonic() - begin < 5.0
    assert is_lost(caught.value)
    assert not reader.peer.lives


def test_a_stopped_peer_is_noticed_after_the_timeout(sleeper: subprocess.Popen[bytes]) -> None:
    _, reader = ring(sleeper.pid, timeout=0.6)
    sleeper.send_signal(signal.SIGSTOP)
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match=r"Timed out after .* of waiting for rank 1") as caught:
        take(reader, 0, reader.expect(0), 10)
    assert 0.5 < time.monotonic() - begin < 5.0
    assert is_lost(caught.value)
    assert reader.peer.lives


def test_another_process_with_the_same_number_is_not_the_peer(sleeper: subprocess.Popen[bytes]) -> None:
    peer = Peer.of(1, sleeper.pid, 1.0, 2)
    assert peer.lives
    assert not Peer(1, sleeper.pid, peer.started + 1, 1.0, 0).lives
