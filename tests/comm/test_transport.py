"""Messages and sums between ranks of one host, through shared memory and through the network."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest


@pytest.mark.parametrize(("world", "native"), [(2, True), (2, False), (4, True)])
def test_every_order_of_messages(
    world: int, native: bool, tmp_path: Path, ranks: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setenv("TRISECT_NATIVE", "0")
    cases = [
        {"run": "orders", "module": "transport_cases", "world": world, "turns": 6, "smallest": smallest}
        for smallest in (1, 1 << 16)
    ]
    for results in ranks.run_forks(world, cases, tmp_path):
        for result in results:
            assert result["right"]
            assert not result["other"]
            assert result["bytes"]["auto"] == result["bytes"]["network"] > 0


@pytest.mark.parametrize(("world", "native"), [(2, True), (3, True), (3, False)])
def test_sums_have_the_bits_of_the_order_of_ranks(
    world: int, native: bool, tmp_path: Path, ranks: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setenv("TRISECT_NATIVE", "0")
    case = {"run": "sums", "module": "transport_cases", "world": world, "smallest": 1 << 16}
    [results] = ranks.run_forks(world, [case], tmp_path)
    for result in results:
        assert result["right"]
        assert result["gathered"]
        assert result["other"] == (world == 2)  # two numbers have one order
        assert result["bytes"][0] == result["bytes"][1] > 0


@pytest.mark.parametrize("wait", ["rows", "sum", "value", "all"])
def test_a_silent_rank_is_noticed_after_the_timeout(wait: str, tmp_path: Path, ranks: ModuleType) -> None:
    [results] = ranks.run_forks(2, [{"run": "silent", "module": "transport_cases", "wait": wait}], tmp_path)
    assert results[0]["lost"]
    assert 0.9 < results[0]["seconds"] < 20.0
