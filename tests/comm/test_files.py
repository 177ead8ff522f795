"""Files that ranks hand to each other through a store: whole or refused, in bounded room, and waited for in time."""

from __future__ import annotations

import datetime
import hashlib
import io
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from torch.distributed import PrefixStore, TCPStore

from trisect.comm import files as module
from trisect.comm.files import Files
from trisect.errors import FaultError
from trisect.train.processes.faults import is_lost


@pytest.fixture(scope="module")
def connections() -> tuple[TCPStore, TCPStore]:
    """A store as two ranks have it; made once, since torch may take seconds to connect."""
    wait = datetime.timedelta(seconds=20)
    server = TCPStore("127.0.0.1", 0, None, True, timeout=wait)
    return server, TCPStore("127.0.0.1", server.port, None, False, timeout=wait)


class Stores(NamedTuple):
    giver: PrefixStore
    taker: PrefixStore

    def files(self, timeout: float = 20.0) -> tuple[Files, Files]:
        return Files(self.giver, timeout), Files(self.taker, timeout)


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch, connections: tuple[TCPStore, TCPStore]) -> Iterator[Stores]:
    """An empty store, which must be empty afterwards."""
    monkeypatch.setattr(module, "PIECE", 1000)
    before, name = connections[0].num_keys(), uuid.uuid4().hex
    yield Stores(*(PrefixStore(name, one) for one in connections))
    assert connections[0].num_keys() == before


def written(path: Path, size: int) -> bytes:
    content = os.urandom(size)
    path.write_bytes(content)
    return content


def hand(giver: Files, taker: Files, name: str, path: Path, start: int = 0) -> tuple[bytes, Any]:
    taken = io.BytesIO()
    with ThreadPoolExecutor(1) as pool, path.open("rb") as file:
        file.seek(start)
        given = pool.submit(giver.give, name, file)
        result = taker.take(name, taken)
        assert given.result() is True
    return taken.getvalue(), result


@pytest.mark.parametrize("size", [0, 1, 1000, 5001])
def test_a_file_arrives_and_nothing_of_it_stays_in_the_store(tmp_path: Path, stores: Stores, size: int) -> None:
    content = written(tmp_path / "a", size)
    taken, result = hand(*stores.files(), "a", tmp_path / "a")
    assert taken == content
    assert result == (size, hashlib.sha256(content).hexdigest())


def test_a_file_goes_on_from_its_position(tmp_path: Path, stores: Stores) -> None:
    content = written(tmp_path / "a", 2500)
    taken, _ = hand(*stores.files(), "a", tmp_path / "a", start=700)
    assert taken == content[700:]


def test_threads_hand_files_over_at_the_same_time(tmp_path: Path, stores: Stores) -> None:
    giver, taker = stores.files()
    contents = {name: written(tmp_path / name, 3000 + number) for number, name in enumerate("abcd")}
    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(lambda name: hand(giver, taker, name, tmp_path / name)[0], contents))
    assert taken == list(contents.values())


class Watched:
    """A store that counts the messages that lie in it, and changes what is put there."""

    def __init__(self, store: PrefixStore, change: Callable[[str, bytes], bytes] = lambda key, value: value) -> None:
        self._store, self._change = store, change
        self._keys: list[str] = []
        self.most = 0

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, self._change(key, value))
        self._keys.append(key)
        self.most = max(self.most, sum(self._store.check([one]) for one in self._keys))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_the_store_holds_few_pieces_at_a_time(tmp_path: Path, stores: Stores) -> None:
    watched = Watched(stores.giver)
    written(tmp_path / "a", 20_000)
    hand(Files(watched, 20.0), stores.files()[1], "a", tmp_path / "a")  # type: ignore[arg-type]
    assert 1 <= watched.most <= 2


@pytest.mark.parametrize(
    ("change", "flaw"),
    [
        (lambda key, value: b"x" + value[1:] if key.endswith("/2") else value, "its SHA-256 is another one"),
        (lambda key, value: value[:-1] if key.endswith("/3") else value, "bytes, and 1 were missing"),
        (lambda key, value: value + b"x" if key.endswith("/3") else value, "a piece has 501 bytes, and 500 were"),
        (lambda key, value: b"2 500" if key.endswith("/0") else value, "its size is missing"),
    ],
)
def test_what_was_changed_on_the_way_is_refused(
    tmp_path: Path, stores: Stores, change: Callable[[str, bytes], bytes], flaw: str
) -> None:
    written(tmp_path / "a", 2500)
    giver, taker = Files(Watched(stores.giver, change), 0.2), stores.files()[1]  # type: ignore[arg-type]
    with (tmp_path / "a").open("rb") as file:
        thread = threading.Thread(target=_given, args=(giver, file))
        thread.start()
        with pytest.raises(FaultError, match=flaw):
            taker.take("a", io.BytesIO())
        thread.join(20)


def _given(giver: Files, file: Any) -> None:
    with suppress(RuntimeError):  # nobody takes the rest
        giver.give("a", file)


def test_a_peer_that_is_not_there_is_waited_for_no_longer_than_was_said(tmp_path: Path, stores: Stores) -> None:
    written(tmp_path / "a", 5000)
    files = Files(stores.giver, 0.05)
    with pytest.raises(RuntimeError, match=r"^Timed out: nobody handed over a \(piece 0\) within 0.05 s$") as error:
        files.take("a", io.BytesIO())
    assert is_lost(error.value)
    with (
        (tmp_path / "a").open("rb") as file,
        pytest.raises(RuntimeError, match=r"^Timed out: nobody took a \(piece 0\) within 0.05 s$"),
    ):
        files.give("a", file)


def test_both_sides_stop_when_they_are_told_to(tmp_path: Path, stores: Stores) -> None:
    written(tmp_path / "a", 5000)
    files = Files(stores.giver, 20.0)
    asked = iter([True, True, True, False, False])
    with (tmp_path / "a").open("rb") as file:
        assert files.give("a", file, lambda: next(asked)) is False
    assert files.take("a", io.BytesIO(), lambda: False) is None
