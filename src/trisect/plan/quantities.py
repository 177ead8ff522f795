"""Numbers with units, as people write them in a cluster file: `60 Gb/s`, `24 GiB`, `5 us`, `27 TFLOP/s`."""

from __future__ import annotations

import re

_PREFIX = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BINARY = {"": 1.0, "K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40}
_NUMBER = r"(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*"
_RATE = re.compile(_NUMBER + r"(?P<prefix>[kKMGT]?)(?P<unit>b|B|FLOP|FLOP/s|b/s|B/s)?")
_SIZE = re.compile(_NUMBER + r"(?P<prefix>[KMGT]?)(?P<binary>i?)B?")
_TIME = re.compile(_NUMBER + r"(?P<unit>s|ms|us|µs|ns)?")


def rate(value: object) -> float:
    """Give bytes or operations a second: a number, or a text such as `60 Gb/s`, `12 GB/s` or `27 TFLOP/s`."""
    match = _RATE.fullmatch(str(value).strip())
    if match is None or float(match["number"]) <= 0:
        raise ValueError(f"is {value!r}, but must be a rate above 0, such as 60 Gb/s, 12 GB/s or 27 TFLOP/s")
    bits = (match["unit"] or "").startswith("b")
    return float(match["number"]) * _PREFIX[match["prefix"]] / (8.0 if bits else 1.0)


def size(value: object) -> int:
    """Give bytes: a number, or a text such as `24 GiB` or `80 GB`."""
    match = _SIZE.fullmatch(str(value).strip())
    if match is None or float(match["number"]) <= 0:
        raise ValueError(f"is {value!r}, but must be a size above 0, such as 24 GiB or 80 GB")
    factors = _BINARY if match["binary"] else _PREFIX
    return int(float(match["number"]) * factors[match["prefix"]])


def seconds(value: object) -> float:
    """Give seconds: a number, or a text such as `5 us`."""
    match = _TIME.fullmatch(str(value).strip())
    if match is None:
        raise ValueError(f"is {value!r}, but must be a time, such as 5 us or 0.2 ms")
    factor = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}[match["unit"] or "s"]
    return float(match["number"]) * factor


def show_size(count: float) -> str:
    """Give bytes as people read them, such as `14.2 GiB`."""
    for unit, factor in (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)):
        if count >= factor:
            return f"{count / factor:,.1f} {unit}"
    return f"{count:,.0f} B"


def show_seconds(value: float) -> str:
    """Give seconds as people read them, such as `0.35 s` or `4.2 ms`."""
    if value >= 100:
        return f"{value:,.0f} s"
    if value < 1e-6:
        return "0 s"
    return f"{value:.3g} s" if value >= 0.1 else f"{value * 1e3:.3g} ms"
