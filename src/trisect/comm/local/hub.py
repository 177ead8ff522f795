"""`Hub`: what a rank shares with the other ranks of its host from the start, one mapped file for each rank.

The first page of a rank's file has the words of its boards (`local.board`); then come the buffers of boards for
small vectors, the log of its exchanges (`comm.calls`), and the first ring to each other rank (`local.ring`). The files
are opened by all while the ranks connect, and closed at once.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from typing import Any

from trisect.comm.calls import ALARM_BYTES, LOG_BYTES
from trisect.comm.local.peer import Peer
from trisect.comm.local.ring import FIRST, RingReader, RingWriter
from trisect.comm.local.shared import SharedFile

BUFFER = 1 << 14  # bytes of a board's buffer
_BOARDS = 2
_PAGE = mmap.PAGESIZE
_CALLS = _PAGE + _BOARDS * 2 * BUFFER
_RINGS = _CALLS + LOG_BYTES + ALARM_BYTES


class Hub:
    """The files of the ranks of this host, as one of them sees them.

    Attributes:
        peers: the other ranks.
        own, files: this rank's file, and those of the peers.
    """

    def __init__(self, rank: int, peers: Mapping[int, Peer], own: SharedFile, files: Mapping[int, SharedFile]) -> None:
        self.rank, self.peers, self.own, self.files = rank, peers, own, files
        self._writers: dict[int, RingWriter] = {}
        self._readers: dict[int, RingReader] = {}

    @classmethod
    def connect(
        cls, rank: int, world: int, processes: Mapping[int, int], timeout: float, gather: Callable[[Any], list[Any]]
    ) -> Hub | None:
        """Open the files of the ranks of this host; all ranks of the world call it at once. None for a rank alone.

        Args:
            processes: of the other ranks of this host.
            timeout: seconds that a rank may be silent.
        """
        own = SharedFile.create("trisect-hub", _RINGS + world * FIRST, reserve=False) if processes else None
        descriptors = gather(-1 if own is None else own.descriptor)
        files = {other: SharedFile.of_process(process, descriptors[other]) for other, process in processes.items()}
        gather(None)  # all have opened ours
        if own is None:
            return None
        own.close()
        here = len(processes) + 1
        peers = {other: Peer.of(other, process, timeout, here) for other, process in processes.items()}
        return cls(rank, peers, own, files)

    def writer(self, peer: int) -> RingWriter:
        """Give the ring to a rank."""
        ring = self._writers.get(peer)
        if ring is None:
            ring = self._writers[peer] = RingWriter(self.own, _RINGS + peer * FIRST)
        return ring

    def reader(self, peer: int) -> RingReader:
        """Give the ring from a rank."""
        ring = self._readers.get(peer)
        if ring is None:
            ring = self._readers[peer] = RingReader(self.peers[peer], self.files[peer], _RINGS + self.rank * FIRST)
        return ring

    def calls_of(self, rank: int) -> memoryview:
        """Return the memory for the log and the alarm of a rank of this host."""
        view = self.own.view if rank == self.rank else self.files[rank].view
        return view[_CALLS:_RINGS]

    def close(self) -> None:
        """Close the descriptors of all rings that this rank writes to."""
        for ring in self._writers.values():
            ring.close()


def buffer_offset(board: int, turn: int) -> int:
    """Give the offset, in each file, of the buffer of a board for every other round."""
    return _PAGE + (2 * board + turn) * BUFFER
