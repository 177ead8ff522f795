"""A device that is not there: `sim`, a backend of torch in Python whose tensors lie in host memory.

It stands in for a GPU where there is none. As CUDA's, its tensors refuse to be mixed with tensors of the CPU, their
memory cannot be read by code that is given its address, and all that passes between device and host is a copy, which
is counted. A process has the device once it has called `install`; `AVAILABLE` says whether torch lets a backend be
written this way. Torch forgets no backend, so after `uninstall` the device stays registered, and says that there is
none of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

try:
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend as _set_up
except ImportError:
    _set_up = None

AVAILABLE = _set_up is not None
NAME = "sim"
# an address that no process has, so that a native kernel that is given one cannot work by accident
_ELSEWHERE = 1 << 62


@dataclass
class Transfers:
    """Copies between device and host: the shape of each, in order.

    Attributes:
        to_device, to_host: of tensors.
        device_bytes, host_bytes: of the same copies, all together.
        reads: single numbers that Python asked for (`item`, `float(x)`, `if x`), each of which waits for the device.
        lists: of indices that lie on the host and choose rows on the device; CUDA copies them each time.
        sizes: results whose size follows from the numbers (`nonzero`, `unique`, a mask), which CUDA waits for.
    """

    to_device: list[tuple[int, ...]] = field(default_factory=list)
    to_host: list[tuple[int, ...]] = field(default_factory=list)
    device_bytes: int = 0
    host_bytes: int = 0
    reads: int = 0
    lists: int = 0
    sizes: int = 0


_counting: list[Transfers] = []


@contextmanager
def counted() -> Iterator[Transfers]:
    """Count what is copied between device and host while the context lasts."""
    transfers = Transfers()
    _counting.append(transfers)
    try:
        yield transfers
    finally:
        _counting[:] = [other for other in _counting if other is not transfers]


class _Storage:
    """What code may ask of the memory of a tensor on the device: whose it is, and its size."""

    def __init__(self, host: Tensor) -> None:
        self._host = host.untyped_storage()

    def data_ptr(self) -> int:
        return self._host.data_ptr() + _ELSEWHERE

    def nbytes(self) -> int:
        return self._host.nbytes()


class PretendTensor(Tensor):
    """A tensor on the device; its numbers are in `host`."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> PretendTensor:
        options: dict[str, Any] = {"dtype": host.dtype, "device": torch.device(NAME, 0), "requires_grad": False}
        if host.layout is torch.strided:
            options |= {"strides": host.stride(), "storage_offset": host.storage_offset()}
        tensor: PretendTensor = Tensor._make_wrapper_subclass(cls, host.size(), **options)  # type: ignore[attr-defined]
        tensor.host = host
        return tensor

    def tolist(self) -> Any:
        """Give the numbers, which is a copy to the host."""
        _note_host(self)
        return self.detach().host.tolist()  # type: ignore[attr-defined]

    def new_tensor(self, data: Any, **options: Any) -> Tensor:
        """Give a new tensor on this device, which torch cannot make in C++."""
        return torch.tensor(data, **{"dtype": self.dtype, "device": self.device, **options})

    def data_ptr(self) -> int:
        """Give an address that tells tensors apart, as CUDA's, and that the host cannot read."""
        return self.detach().host.data_ptr() + _ELSEWHERE  # type: ignore[attr-defined,no-any-return]

    def untyped_storage(self) -> Any:
        """Give what identifies the memory."""
        return _Storage(self.detach().host)  # type: ignore[attr-defined]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _do(func, args, kwargs or {})


# operations that take indices of the CPU beside rows of a device
_INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")
# operations whose result is as large as the numbers say
_SIZED = ("nonzero", "_unique2", "unique_dim", "unique_consecutive", "masked_select", "bincount")


def _do(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Do an operation on the host, and give what comes out as tensors of the device where it belongs there."""
    name, target = func.overloadpacket.__name__, kwargs.get("device")
    if _is_ours(target) and not _module.installed:
        raise RuntimeError(f"this process has no device {NAME}; call install")
    if name == "_to_copy" and target is not None:
        return _copied(func, args[0], kwargs)
    if name == "copy_":
        return _overwritten(func, args, kwargs)
    if name == "_local_scalar_dense":
        for transfers in _counting:
            transfers.reads += 1
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    here = any(isinstance(tensor, PretendTensor) for tensor in tensors)
    strangers = [t for t in tensors if not isinstance(t, PretendTensor) and t.dim() > 0] if here else []
    if strangers and name in _INDEXING and isinstance(args[0], PretendTensor):
        for transfers in _counting:
            transfers.lists += 1
    elif strangers:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in strangers)
        raise RuntimeError(f"{func} was given tensors of {NAME} and of the CPU; on the CPU are those of {shapes}")
    if here and (name in _SIZED or (name in _INDEXING and _masks(args[1]))):
        for transfers in _counting:
            transfers.sizes += 1
    result = func(*tree_map(_host_of, args), **tree_map(_host_of, kwargs))
    if not here and not _is_ours(target):
        return result
    return _wrapped(func, args, kwargs, result)


def _masks(indices: Any) -> bool:
    return any(isinstance(index, Tensor) and index.dtype is torch.bool for index in tree_leaves(indices))


def _wrapped(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> Any:
    """Tensors of the device for a result; where an operation wrote to an argument, that argument."""
    returns = func._schema.returns
    results = list(result) if len(returns) > 1 else [result]
    wrapped: list[Any] = []
    for value, declared in zip(results, returns, strict=False):
        if declared.alias_info is not None and declared.alias_info.is_write:
            written = _argument(func, args, kwargs, declared.alias_info.before_set)
            if written.shape != written.host.shape:
                raise RuntimeError(f"{func} changed the size of a tensor of {NAME}, which it cannot have")
            wrapped.append(written)
        else:
            wrapped.append(tree_map(_on_device, value))
    if not returns:
        return None
    return tuple(wrapped) if len(returns) > 1 else wrapped[0]


def _argument(func: Any, args: Any, kwargs: dict[str, Any], names: set[str]) -> Any:
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.before_set == names:
            return kwargs[argument.name] if argument.name in kwargs else args[position]
    raise AssertionError(f"{func} writes to no argument")


def _copied(func: Any, source: Tensor, kwargs: dict[str, Any]) -> Tensor:
    """A copy of another type, or on the other side."""
    ours, theirs = isinstance(source, PretendTensor), _is_ours(kwargs["device"])
    plain = {key: value for key, value in kwargs.items() if key not in ("device", "pin_memory")}
    copy: Tensor = func(_host_of(source), **plain)
    if theirs and not ours:
        _note_device(copy)
    elif ours and not theirs:
        _note_host(copy)
    return PretendTensor(copy) if theirs else copy


def _overwritten(func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor:
    target: Tensor = args[0]
    ours, theirs = isinstance(args[1], PretendTensor), isinstance(target, PretendTensor)
    func(_host_of(target), _host_of(args[1]), *args[2:], **kwargs)
    if theirs and not ours:
        _note_device(args[1])
    elif ours and not theirs:
        _note_host(args[1])
    return target


def _note_device(tensor: Tensor) -> None:
    for transfers in _counting:
        transfers.to_device.append(tuple(tensor.shape))
        transfers.device_bytes += tensor.numel() * tensor.element_size()


def _note_host(tensor: Tensor) -> None:
    for transfers in _counting:
        transfers.to_host.append(tuple(tensor.shape))
        transfers.host_bytes += tensor.numel() * tensor.element_size()


def _is_ours(device: Any) -> bool:
    return device is not None and torch.device(device).type == NAME


def _host_of(value: Any) -> Any:
    if isinstance(value, PretendTensor):
        return value.host
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == NAME else value


def _on_device(value: Any) -> Any:
    return PretendTensor(value) if isinstance(value, Tensor) and not isinstance(value, PretendTensor) else value


class _Module:
    """What torch asks of `torch.sim`: once it is registered, torch asks it in a process that uses the CPU alone too."""

    installed = False

    def is_initialized(self) -> bool:
        return self.installed

    def is_available(self) -> bool:
        return self.installed

    def device_count(self) -> int:
        return int(self.installed)

    def current_device(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Do nothing: the device has no generator of its own."""

    def get_rng_state(self, device: Any = 0) -> Tensor:
        return torch.empty(0, dtype=torch.uint8)

    def set_rng_state(self, state: Tensor, device: Any = 0) -> None:
        """Do nothing, as for a seed."""


_module = _Module()


def _hook() -> Any:
    """What torch's C++ code asks of the device."""

    class Hook(torch._C._acc.PrivateUse1Hooks):  # type: ignore[name-defined,misc]
        def is_available(self) -> bool:
            return _module.installed

        def has_primary_context(self, device: int) -> bool:
            return _module.installed

        def is_built(self) -> bool:
            return True

    return Hook()


def register() -> None:
    """Make the device known to torch, for as long as the process lives: torch forgets no backend."""
    if _set_up is None or _registered:
        return
    _set_up(NAME, _module, _hook())
    library = torch.library.Library("_", "IMPL")
    library.fallback(lambda op, *args, **kwargs: _do(op, args, kwargs), "PrivateUse1")
    _registered.append(library)


def install() -> None:
    """Let torch's makers of tensors know the device too."""
    register()
    _module.installed = True
    # torch makes these by resizing an empty tensor, or from parts in C++: neither can be done in Python
    torch.arange = _made_on_the_host(_ARANGE)
    torch.eye = _made_on_the_host(_EYE)
    torch.tensor = _brought(_TENSOR)
    torch.sparse_csr_tensor = _csr_made_on_the_host(_CSR)


def uninstall() -> None:
    """Give torch its own makers back, and have no device any more."""
    _module.installed = False
    torch.arange, torch.eye, torch.tensor, torch.sparse_csr_tensor = _ARANGE, _EYE, _TENSOR, _CSR


_ARANGE, _EYE, _TENSOR, _CSR = torch.arange, torch.eye, torch.tensor, torch.sparse_csr_tensor
_registered: list[Any] = []


def _made_on_the_host(maker: Any) -> Any:
    def make(*args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        made: Tensor = maker(*args, device=None if _is_ours(device) else device, **kwargs)
        return PretendTensor(made) if _is_ours(device) else made

    return make


def _brought(maker: Any) -> Any:
    def make(data: Any, *, device: Any = None, **kwargs: Any) -> Tensor:
        made: Tensor = maker(data, device=None if _is_ours(device) else device, **kwargs)
        return made.to(device) if _is_ours(device) else made

    return make


def _csr_made_on_the_host(maker: Any) -> Any:
    def make(*parts: Any, device: Any = None, **kwargs: Any) -> Tensor:
        made: Tensor = maker(*tree_map(_host_of, parts), device=None if _is_ours(device) else device, **kwargs)
        return PretendTensor(made) if isinstance(parts[0], PretendTensor) else made

    return make
