"""Which memory a computation takes when: each storage that appears, and when it is gone."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trisect.ops.memory import is_pooled


@dataclass(frozen=True)
class Storage:
    """A storage that a computation took: its bytes, and whether it is a buffer of the pool (see `ops.memory`)."""

    bytes: int
    pooled: bool


class StorageLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the storages that operations make inside, and when they are let go.

    Args:
        outside: tensors that were there before; what lies on their storages is not counted.

    Attributes:
        storages: in the order in which they appeared.
        events: k + 1 where storage k appeared, -(k + 1) where it was gone.
    """

    def __init__(self, outside: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._outside = {_address(tensor) for tensor in outside}
        self.storages: list[Storage] = []
        self.events: list[int] = []
        self._numbers: dict[int, int] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would load its compiler for that, which takes 40 MB and half a second."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation, and look at what it gives."""
        read = {_address(tensor) for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)}
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.lift_fresh.default:
            return result  # an array on which a tensor will lie, such as a buffer of the pool
        for tensor in tree_leaves(result):
            # a view of what was not made here is nothing new
            if isinstance(tensor, Tensor) and not (_address(tensor) in read and self.number_of(tensor) is None):
                self._note(tensor)
        return result

    def number_of(self, tensor: Tensor) -> int | None:
        """Give the number of a tensor's storage; None where no operation inside has made it."""
        return self._numbers.get(_address(tensor))

    def live(self) -> set[int]:
        """Give the numbers of the storages that are there now."""
        return set(self._numbers.values())

    def highest(self, first: int = 0, last: int | None = None) -> int:
        """Give the most bytes that were there at a time, from the event `first` to before the event `last`."""
        live = most = sum(self._change(event) for event in self.events[:first])
        for event in self.events[first:last]:
            live += self._change(event)
            most = max(most, live)
        return most

    def _change(self, event: int) -> int:
        size = self.storages[abs(event) - 1].bytes
        return size if event > 0 else -size

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address == 0 or address in self._numbers or address in self._outside:
            return
        number = self._numbers[address] = len(self.storages)
        pooled = is_pooled(tensor)
        # a buffer of the pool is larger than what lies on it
        self.storages.append(Storage(tensor.numel() * tensor.element_size() if pooled else storage.nbytes(), pooled))
        self.events.append(number + 1)
        weakref.finalize(storage, self._gone, address, number)

    def _gone(self, address: int, number: int) -> None:
        self.events.append(-(number + 1))
        if self._numbers.get(address) == number:
            del self._numbers[address]


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
