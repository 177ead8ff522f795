"""The pool of buffers."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

from trisect.errors import ConfigError
from trisect.ops import memory
from trisect.ops.memory import HUGE, SMALLEST, Pool, empty, free_bytes, is_pooled

MIB = 1 << 20


def test_small_and_large_have_the_shape_and_type_asked_for():
    for shape in ((3, 4), (0, 5), (700, 1000), (2, 300, 1000), (5_000_000,)):
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int32):
            tensor = empty(shape, dtype)
            assert tensor.shape == torch.Size(shape)
            assert tensor.dtype == dtype
            assert tensor.is_contiguous()
            tensor.fill_(3)
            assert bool((tensor == 3).all())


def test_a_buffer_comes_back_when_the_last_view_is_gone():
    pool = Pool()
    tensor = pool.empty((1000, 1000), torch.float32)
    address, view = tensor.data_ptr(), tensor[10:20]
    del tensor
    gc.collect()
    assert pool.stats().free_bytes == 0
    del view
    gc.collect()
    stats = pool.stats()
    assert stats.used_bytes == 0
    assert stats.free_bytes >= 4_000_000
    again = pool.empty((999, 1000), torch.float32)
    assert again.data_ptr() == address
    assert pool.stats().hits == 1


def test_two_tensors_never_share_memory():
    pool = Pool()
    tensors = [pool.empty((600, 1000), torch.float32).fill_(value) for value in range(8)]
    del tensors[::2]
    fresh = [pool.empty((600, 1000), torch.float32).fill_(value) for value in range(100, 106)]
    assert [int(tensor[0, 0]) for tensor in tensors] == [1, 3, 5, 7]
    assert [int(tensor[-1, -1]) for tensor in fresh] == list(range(100, 106))


def test_the_pool_holds_little_more_than_was_in_use_at_once():
    pool = Pool()
    for size in range(2, 40):
        pool.empty((size * MIB,), torch.int8)
    stats = pool.stats()
    assert stats.used_bytes == 0
    assert stats.free_bytes <= stats.peak_bytes + 16 * MIB
    assert stats.peak_bytes <= 40 * MIB


def test_a_much_larger_buffer_is_not_wasted_on_a_small_tensor():
    """Of a full pool a part of a free buffer serves, and joins the rest again when it comes back."""
    pool = Pool()
    pool.empty((400 * MIB,), torch.int8)
    parts = [pool.empty((size * MIB,), torch.int8) for size in (50, 60, 100)]
    stats = pool.stats()
    assert (stats.used_bytes, stats.free_bytes, stats.misses) == (210 * MIB, 190 * MIB, 1)
    assert all(part.data_ptr() % (2 * MIB) == 0 for part in parts)
    for value, part in enumerate(parts):
        part[:: 1 << 16] = value
    assert [int(part[:: 1 << 16].max()) for part in parts] == [0, 1, 2]
    del parts[::2], part
    again = pool.empty((280 * MIB,), torch.int8)  # what came back lies beside what was left
    assert pool.stats().misses == 1
    del parts, again
    assert pool.empty((400 * MIB,), torch.int8).numel() == 400 * MIB
    assert pool.stats().misses == 1
    assert pool.trim() == 400 * MIB


def test_what_is_held_is_bounded_whatever_is_asked_for():
    """Random sizes and lives: tensors never overlap, and no more is held than twice what was in use at once."""
    pool, generator = Pool(), torch.Generator().manual_seed(0)
    live: list[tuple[int, torch.Tensor]] = []
    for turn in range(600):
        if live and (len(live) > 12 or float(torch.rand((), generator=generator)) < 0.45):
            value, tensor = live.pop(int(torch.randint(len(live), (), generator=generator)))
            assert bool((tensor[:: 1 << 12] == value).all())
        else:
            size = int(2 ** (17 + 6 * float(torch.rand((), generator=generator))))
            live.append((turn % 120, pool.empty((size,), torch.int8).fill_(turn % 120)))
    stats = pool.stats()
    assert stats.used_bytes + stats.free_bytes <= 2 * stats.peak_bytes
    assert stats.misses < 60


def test_passes_that_are_alike_map_nothing_after_the_first():
    """A large tensor lives beside few others, then others in its place: no buffer goes for one that comes again."""
    pool = Pool()

    def one_pass():
        kept = [pool.empty((12 * MIB,), torch.int8) for _ in range(2)]
        large = pool.empty((16 * MIB,), torch.int8)
        kept += [pool.empty((12 * MIB,), torch.int8) for _ in range(6)]
        del large
        kept += [pool.empty((size * MIB,), torch.int8) for size in (12, 4)]

    one_pass()
    one_pass()
    second = pool.stats()
    for _ in range(4):
        one_pass()
    assert pool.stats().misses == second.misses
    assert pool.stats().free_bytes == second.free_bytes <= second.peak_bytes + 16 * MIB


def test_trim_gives_the_free_buffers_back():
    pool = Pool()
    kept = pool.empty((2 * MIB,), torch.int8)
    pool.empty((4 * MIB,), torch.int8)
    assert pool.trim() == 4 * MIB
    assert pool.stats().free_bytes == 0
    assert pool.stats().used_bytes == 2 * MIB
    kept.fill_(1)


def test_begins_at_a_huge_page():
    assert Pool().empty((HUGE,), torch.int8).data_ptr() % (2 * MIB) == 0


def test_tensors_of_some_hundred_kib_are_mapped_once_and_take_no_huge_page():
    memory.trim()
    before = memory.stats()
    address = empty((3 * SMALLEST,), torch.int8).data_ptr()
    assert empty((3 * SMALLEST - 9,), torch.int8).data_ptr() == address
    small, large = empty((3 * SMALLEST,), torch.int8), empty((HUGE,), torch.int8)
    stats = memory.stats()
    assert stats.used_bytes - before.used_bytes == 3 * SMALLEST + 2 * MIB
    assert (stats.hits - before.hits, stats.misses - before.misses) == (2, 2)
    assert is_pooled(small)
    assert is_pooled(large)
    del small, large
    memory.trim()
    assert memory.stats().used_bytes == before.used_bytes


@pytest.mark.parametrize("size", [SMALLEST - 1, SMALLEST, HUGE])
def test_a_tensor_of_the_pool_is_known(size):
    assert is_pooled(empty((size,), torch.int8)) == (size >= SMALLEST)
    assert not is_pooled(torch.empty(size, dtype=torch.int8))


def test_behaves_as_a_tensor_of_its_own():
    tensor = empty((1000, 1000)).fill_(1.0)
    assert not tensor._is_view()
    tensor.requires_grad_()
    (tensor * 2).relu_().sum().backward()
    assert float(tensor.grad[0, 0]) == 2.0


@pytest.mark.parametrize("count", [4])
def test_threads(count):
    pool = Pool()
    failures = []

    def work(value: int) -> None:
        for _ in range(60):
            tensor = pool.empty((300, 1000), torch.float32).fill_(value)
            if not bool((tensor == value).all()):
                failures.append(value)

    workers = [threading.Thread(target=work, args=(value,)) for value in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures
    assert pool.stats().used_bytes == 0
    # each thread still holds its last tensor while it asks for the next
    assert pool.stats().peak_bytes <= 2 * count * 2 * MIB


def test_a_limit_bounds_what_is_planned_with(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    monkeypatch.delenv("TRISECT_MEMORY", raising=False)
    free = free_bytes(cpu)
    assert free > 3 << 20
    for text, size in (("3MiB", 3 << 20), ("2048", 2048), ("1.5 k", 1536), ("2 MB", 2 << 20)):
        monkeypatch.setenv("TRISECT_MEMORY", text)
        assert free_bytes(cpu) == size
        assert free_bytes(cpu, bounded=False) > 3 << 20
    monkeypatch.setenv("TRISECT_MEMORY", "9999T")
    assert free_bytes(cpu) < 1 << 50
    for text in ("much", "-1", "3 apples", "GiB"):
        monkeypatch.setenv("TRISECT_MEMORY", text)
        with pytest.raises(ConfigError, match=r"TRISECT_MEMORY is .*12GiB"):
            free_bytes(cpu)
        with pytest.raises(ConfigError, match="TRISECT_MEMORY"):
            free_bytes(cpu, bounded=False)


@pytest.mark.parametrize("poisoned", [True, False])
def test_poisoned_buffers_hold_nan_before_they_are_written_and_when_they_are_free(
    poisoned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "POISONED", poisoned)
    pool = Pool()
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        tensor = pool.empty((300, 1000), dtype)
        assert bool(tensor.isnan().all()) == poisoned
        tensor.fill_(1)
        address = tensor.data_ptr()
        del tensor
        gc.collect()
        pages = next(iter(pool._mappings.values()))
        assert bool((pages == 0xFF).all()) == poisoned
        again = pool.empty((300, 1000), dtype)
        assert again.data_ptr() == address
        assert bool(again.isnan().all()) == poisoned


def test_nothing_is_asked_of_the_pool_for_no_bytes():
    """Two buffers of no bytes would begin at one address, which the pool knows them by."""
    with memory.pooling_all():
        assert is_pooled(empty((1,), torch.uint8))
        assert not is_pooled(empty((0, 5), torch.float32))
