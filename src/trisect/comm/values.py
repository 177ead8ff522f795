"""Plain values as bytes and back, for what ranks tell each other. Reading them never runs anything of the sender's.

A value is None, a bool, a number, a string, bytes, a tensor, or a list, tuple or dict of such. The bytes are the length
of a JSON text, the text, and the tensors in the safetensors format.
"""

from __future__ import annotations

import json
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

_LENGTH = 8


def pack(value: Any) -> bytes:
    """Turn a value into bytes.

    Raises:
        TypeError: it has something in it that is not plain.
    """
    tensors: list[Tensor] = []
    text = json.dumps(_tree(value, tensors), separators=(",", ":")).encode()
    blob = save({str(number): tensor for number, tensor in enumerate(tensors)}) if tensors else b""
    return len(text).to_bytes(_LENGTH, "little") + text + blob


def unpack(data: bytes) -> Any:
    """Turn bytes into the value that they stand for.

    Raises:
        RuntimeError: they are none that `pack` makes.
    """
    end = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
    try:
        tree = json.loads(data[_LENGTH:end])
        return _value(tree, load(data[end:]) if len(data) > end else {})
    except Exception as error:
        raise RuntimeError(f"another rank sent {len(data)} bytes that are no value ({error})") from error


def _tree(value: Any, tensors: list[Tensor]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_tree(each, tensors) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [_tree(each, tensors) for each in value]}
    if isinstance(value, dict):
        return {"dict": [[_tree(key, tensors), _tree(each, tensors)] for key, each in value.items()]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, Tensor):
        # a copy, since the format refuses tensors that share memory
        tensors.append(value.detach().cpu().clone().contiguous())
        return {"tensor": len(tensors) - 1}
    raise TypeError(f"ranks tell each other plain values, and {type(value).__name__} is none; make it a dict")


def _value(tree: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(tree, list):
        return [_value(each, tensors) for each in tree]
    if not isinstance(tree, dict):
        return tree
    [(kind, content)] = tree.items()
    if kind == "tuple":
        return tuple(_value(each, tensors) for each in content)
    if kind == "dict":
        return {_value(key, tensors): _value(each, tensors) for key, each in content}
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "tensor":
        return tensors[str(content)]
    raise ValueError(f"unknown kind {kind!r}")
