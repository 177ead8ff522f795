"""Large tensors from a pool of reused buffers.

A fresh large allocation costs a page fault for each 4 KiB, often as much as the work that fills it; and whether the C
library gives a tensor of some hundred KiB back to the system each time depends on what the process did before. Buffers
here are mapped once, from a MiB on ask for huge pages, and go back to the pool when the last tensor on them is gone;
from the second epoch on nothing is mapped. The pool holds little more than was once in use at the same time.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import threading
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field
from itertools import count

import numpy as np
import torch
from torch import Tensor

from trisect.data.room import free_host_bytes
from trisect.errors import ConfigError

LIMIT_VARIABLE = "TRISECT_MEMORY"
# With TRISECT_POISON=1, buffers hold NaN when they are handed out and when they are free, so that a read of memory that
# nothing was written to, or of memory that is free, shows in the numbers.
POISONED = os.environ.get("TRISECT_POISON") == "1"
SMALLEST = 1 << 17
HUGE = 1 << 20  # buffers of so many bytes and more are huge pages; others lie apart from them
_PAGE, _SMALL_PAGES = 1 << 21, 1 << 16
_SLACK = 1.25  # a free buffer may be this much larger than what is asked for
_SPARE, _LEAST_SPARE = 10, 1 << 24  # a tenth more than was once in use at the same time may be held, or so many bytes


@dataclass(frozen=True)
class PoolStats:
    """What the pool holds. `hits` counts tensors that got a free buffer, `misses` those that did not."""

    used_bytes: int
    free_bytes: int
    peak_bytes: int
    hits: int
    misses: int


@dataclass(order=True)
class _Buffer:
    """Bytes `start` .. `start + size` - 1 of a mapping. `number` grows with each use."""

    size: int
    number: int
    mapping: int = field(compare=False)
    start: int = field(compare=False)

    @property
    def end(self) -> int:
        return self.start + self.size


class _Lease(np.ndarray):
    """The storage of a tensor refers to this; when the storage is freed, the buffer is free again."""

    buffer: _Buffer
    home: deque[_Buffer]

    def __del__(self) -> None:
        home = getattr(self, "home", None)
        if home is not None:
            if POISONED:
                _poison(self)
            home.append(self.buffer)


def _poison(buffer: np.ndarray) -> None:
    """Fill a buffer with NaN: a floating-point number whose bits are all set is none, whatever its size."""
    buffer.fill(0xFF)


class Pool:
    """Buffers of host memory, handed out as tensors and taken back when these are gone. Safe to use from threads.

    The sizes that are in use change in the course of a pass, and mapping a large buffer anew in each costs as much as
    the work on it. The pool therefore holds a little more than was in use at the same time; and where it is full, what
    is asked for is cut off from a free buffer of twice the size or more, and joins the rest again when it comes back.

    Args:
        page: buffers are multiples of so many bytes.
    """

    def __init__(self, page: int = _PAGE) -> None:
        self._page = page
        self._lock = threading.Lock()
        self._mappings: dict[int, np.ndarray] = {}
        self._free: list[_Buffer] = []  # by size
        self._free_from: dict[tuple[int, int], _Buffer] = {}  # by mapping and start
        self._free_to: dict[tuple[int, int], _Buffer] = {}  # by mapping and end
        # A tensor may die anywhere, even within a locked section (garbage collection); appending needs no lock.
        self._returned: deque[_Buffer] = deque()
        self._numbers = count()
        self._leased: set[int] = set()  # addresses
        self._used = self._held = self._peak = self._hits = self._misses = 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Make a tensor with arbitrary content on a buffer of the pool."""
        strides, elements = [0] * len(shape), 1
        for dim in range(len(shape) - 1, -1, -1):
            strides[dim] = elements
            elements *= shape[dim]
        wanted = -(-elements * dtype.itemsize // self._page) * self._page
        with self._lock:
            self._take_back()
            buffer = self._find(wanted)
            if buffer is None and self._held + wanted > self._limit(wanted):
                buffer = self._half(wanted)
            buffer = buffer or self._map(wanted)
            self._used += buffer.size
            self._peak = max(self._peak, self._used)
            lease = self._mappings[buffer.mapping][buffer.start : buffer.end].view(_Lease)
            lease.buffer, lease.home = buffer, self._returned
            self._leased.add(lease.ctypes.data)
        if POISONED:
            _poison(lease)
        storage = torch.from_numpy(lease).untyped_storage()
        # `set_` instead of views, so that the result is a tensor of its own for autograd and in-place operations
        return torch.empty(0, dtype=dtype).set_(storage, 0, tuple(shape), strides)

    def stats(self) -> PoolStats:
        """Report the present state of the pool."""
        with self._lock:
            self._take_back()
            return PoolStats(self._used, self._held - self._used, self._peak, self._hits, self._misses)

    def trim(self) -> int:
        """Return mappings that are free back to the system; returns their bytes. What is in use is the new peak."""
        with self._lock:
            self._take_back()
            freed = sum(self._unmap(buffer) for buffer in self._unused())
            self._peak = self._used
            return freed

    def has(self, address: int) -> bool:
        """Whether a tensor on a buffer of the pool begins there."""
        return address in self._leased

    def _limit(self, wanted: int) -> int:
        """What the pool may hold once so many bytes more are in use."""
        most = max(self._peak, self._used + wanted)
        return most + max(most // _SPARE, _LEAST_SPARE)

    def _take_back(self) -> None:
        while self._returned:
            buffer = self._returned.popleft()
            self._used -= buffer.size
            self._leased.discard(self._mappings[buffer.mapping].ctypes.data + buffer.start)
            before = self._free_to.get((buffer.mapping, buffer.start))
            after = self._free_from.get((buffer.mapping, buffer.end))
            for beside in (before, after):
                if beside is not None:
                    self._leave(beside)
            start = buffer.start if before is None else before.start
            end = buffer.end if after is None else after.end
            self._join(buffer.mapping, start, end)

    def _join(self, mapping: int, start: int, end: int) -> None:
        """Let these bytes be free."""
        buffer = _Buffer(end - start, next(self._numbers), mapping, start)
        insort(self._free, buffer)
        self._free_from[mapping, start] = self._free_to[mapping, end] = buffer

    def _leave(self, buffer: _Buffer) -> None:
        """Let a buffer be free no longer."""
        del self._free[bisect_left(self._free, buffer)]
        del self._free_from[buffer.mapping, buffer.start], self._free_to[buffer.mapping, buffer.end]

    def _find(self, wanted: int) -> _Buffer | None:
        # the one of fitting size that was used last, which may still be in the cache
        index = bisect_left(self._free, wanted, key=lambda buffer: buffer.size)
        if index == len(self._free) or self._free[index].size > wanted * _SLACK:
            return None
        size = self._free[index].size
        index = bisect_left(self._free, size + 1, lo=index, key=lambda buffer: buffer.size) - 1
        return self._cut_off(wanted, self._free[index])

    def _half(self, wanted: int) -> _Buffer | None:
        """The first bytes of the smallest free buffer that is twice as large: of others, too little would be left."""
        index = bisect_left(self._free, 2 * wanted, key=lambda buffer: buffer.size)
        return None if index == len(self._free) else self._cut_off(wanted, self._free[index])

    def _cut_off(self, wanted: int, whole: _Buffer) -> _Buffer:
        """The first bytes of a free buffer; the rest stays free."""
        self._hits += 1
        self._leave(whole)
        if wanted < whole.size:
            self._join(whole.mapping, whole.start + wanted, whole.end)
        return _Buffer(wanted, next(self._numbers), whole.mapping, whole.start)

    def _map(self, size: int) -> _Buffer:
        self._misses += 1
        for buffer in sorted(self._unused(), key=lambda buffer: buffer.number):
            if self._held + size <= self._limit(size):
                break
            self._unmap(buffer)
        self._held += size
        number = next(self._numbers)
        self._mappings[number] = _map_pages(size)
        return _Buffer(size, number, number, 0)

    def _unused(self) -> list[_Buffer]:
        """Mappings of which nothing is in use, each as one buffer."""
        return [buffer for buffer in self._free if buffer.size == len(self._mappings[buffer.mapping])]

    def _unmap(self, buffer: _Buffer) -> int:
        self._leave(buffer)
        del self._mappings[buffer.mapping]
        self._held -= buffer.size
        return buffer.size


def _map_pages(size: int) -> np.ndarray:
    """`size` bytes of private memory; where these are huge pages, they begin at the border of one."""
    if size % _PAGE:
        return np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=np.uint8)
    mapped = mmap.mmap(-1, size + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            mapped.madvise(mmap.MADV_HUGEPAGE)
    pages: np.ndarray = np.frombuffer(mapped, dtype=np.uint8)
    shift = -pages.ctypes.data % _PAGE
    return pages[shift : shift + size]


_large, _small = Pool(), Pool(_SMALL_PAGES)


def empty(shape: Sequence[int], dtype: torch.dtype = torch.float32, device: torch.device | str | None = None) -> Tensor:
    """Make a tensor with arbitrary content: from the pool where it is large and on the CPU, otherwise `torch.empty`."""
    if device is None or torch.device(device).type == "cpu":
        elements = 1
        for size in shape:
            elements *= size
        size = elements * dtype.itemsize
        if size and size >= SMALLEST:
            return (_large if size >= HUGE else _small).empty(shape, dtype)
    return torch.empty(tuple(shape), dtype=dtype, device=device)


@contextlib.contextmanager
def pooling_all() -> Iterator[None]:
    """Take every tensor that may come from the pool from it inside, however small, and drop what is free afterwards."""
    global SMALLEST
    before, SMALLEST = SMALLEST, 0
    try:
        yield
    finally:
        SMALLEST = before
        trim()


def is_pooled(x: Tensor) -> bool:
    """Whether a tensor lies on a buffer of the pool."""
    address = x.untyped_storage().data_ptr()
    return _large.has(address) or _small.has(address)


def alias(x: Tensor) -> Tensor:
    """Return the same memory as a tensor of its own, no view: autograd and version counters treat the two apart."""
    if not shares_storage(x.device):
        return x.data
    storage = x.untyped_storage()
    return torch.empty(0, dtype=x.dtype, device=x.device).set_(storage, x.storage_offset(), x.shape, x.stride())


def shares_storage(device: torch.device) -> bool:
    """Whether a tensor can be put over the storage of another; backends outside torch need not allow it."""
    return device.type in ("cpu", "cuda")


def stats() -> PoolStats:
    """Report what the pools of this process hold, of large buffers and of small ones; the peak is a bound."""
    large, small = astuple(_large.stats()), astuple(_small.stats())
    return PoolStats(*(a + b for a, b in zip(large, small, strict=True)))


def trim() -> int:
    """Return the free buffers of both pools back to the system; returns their bytes."""
    return _large.trim() + _small.trim()


def free_bytes(device: torch.device, *, bounded: bool = True) -> int:
    """Return how much memory may be planned with.

    It is what is free on the device (a guess of 4 GiB where the system does not tell), and no more than the environment
    variable TRISECT_MEMORY (`12GiB`, or bytes) allows all ranks of a host.

    Args:
        bounded: False for what is free whatever the variable allows; one that cannot be read is refused all the same.
    """
    free = _free_bytes(device)
    asked = os.environ.get(LIMIT_VARIABLE)
    allowed = _bytes_of(asked) if asked else free
    return min(free, allowed) if bounded else free


def _bytes_of(text: str) -> int:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if match is None:
        raise ConfigError(f"{LIMIT_VARIABLE} is {text!r}; write a number of bytes, or one with a unit such as 12GiB.")
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return free_host_bytes()
