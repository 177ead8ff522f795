"""What ranks tell each other."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from trisect.comm.values import pack, unpack
from trisect.train.run.checkpoint import Region, Shard


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        -1.5e-300,
        "ärger",
        b"\x00\xff",
        [1, [2, "x"], None],
        (1, (2, 3)),
        {},
        {3: "damaged", "val": {"a": 1}},
        {"tensor": 0, "dict": []},
    ],
)
def test_values_come_back(value: Any) -> None:
    back = unpack(pack(value))
    assert back == value
    assert type(back) is type(value)
    assert unpack(pack([value])) != value


def test_numbers_keep_their_bits() -> None:
    assert unpack(pack(0.1 + 0.2)) == 0.1 + 0.2 != 0.3
    assert math.isnan(unpack(pack(math.nan)))
    assert unpack(pack(-math.inf)) == -math.inf


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4),
        torch.randn(3, 4, dtype=torch.float64).t(),
        torch.arange(5),
        torch.tensor(2.5),
        torch.empty(0, 7),
        torch.randn(4).to(torch.bfloat16),
        torch.tensor([True, False]),
    ],
)
def test_tensors_come_back(tensor: torch.Tensor) -> None:
    back = unpack(pack({"sums": {"loss": tensor}, "again": (tensor, tensor)}))
    assert back["sums"]["loss"].equal(tensor)
    assert back["again"][1].equal(tensor)
    assert back["sums"]["loss"].dtype == tensor.dtype


def test_what_is_not_plain_is_refused() -> None:
    with pytest.raises(TypeError, match="Path is none"):
        pack({"folder": Path()})


class _Loud:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("a peer's pickle was run",))


@pytest.mark.parametrize("data", [pickle.dumps(_Loud()), b"", b"\x05" + bytes(7) + b'{"a"', pack([1])[:-1]])
def test_foreign_bytes_are_refused_and_not_run(data: bytes) -> None:
    with pytest.raises(RuntimeError, match="that are no value"):
        unpack(data)


def test_shards_of_a_checkpoint_come_back() -> None:
    shard = Shard("rank-00001.safetensors", 9, "ab", {"w": ((2, 3), Region((4, 3), (2, 0))), "b": ((), Region((), ()))})
    assert Shard.from_plain(unpack(pack(shard.plain()))) == shard
