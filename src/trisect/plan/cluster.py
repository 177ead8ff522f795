"""`Cluster`: what the hardware can do, as a frozen value that people can write as a small YAML file."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from trisect.errors import ConfigError
from trisect.plan.quantities import rate, seconds, size
from trisect.settings.reading import read_yaml
from trisect.settings.section import CLOSED, Flag, Positive, Text, section
from trisect.settings.writing import drafted


def _reading(read: Callable[[Any], Any]) -> BeforeValidator:
    """Give a validator of a value that may be of any type."""

    def checked(value: Any) -> Any:
        try:
            return read(value)
        except (TypeError, OverflowError):
            raise ValueError(f"is {value!r}, which is of a type or size that makes no sense there") from None

    return BeforeValidator(checked)


Rate = Annotated[float, _reading(rate)]
Size = Annotated[int, _reading(size)]
SizeOrNone = Annotated[int, _reading(lambda value: 0 if value == 0 else size(value))]
Seconds = Annotated[float, _reading(seconds), Field(ge=0)]


def _rates_by_width(value: Any) -> dict[int, float]:
    """A rate for each width of a row in bytes; a single rate holds for all widths."""
    if not isinstance(value, dict):
        return {4: rate(value)}
    rates = {int(width): rate(number) for width, number in value.items()}
    if not rates or min(rates) < 1:
        raise ValueError(f"is {value!r}, but must be a rate, or a rate for each width of a row in bytes")
    return dict(sorted(rates.items()))


def _shares(value: Any) -> dict[int, float]:
    shares = {int(ranks): float(share) for ranks, share in dict(value).items()}
    if any(ranks < 1 or not 0 < share <= 1.5 for ranks, share in shares.items()):
        raise ValueError(f"is {value!r}, but must give a share of full speed for each number of ranks, such as 2: 0.6")
    return dict(sorted(shares.items()))


def _ratios_by_kind(value: Any) -> dict[str, dict[int, tuple[float, ...]]]:
    """Six ratios for each kind of layer and width of a row in bytes."""
    kinds = {
        str(kind): {int(width): tuple(float(ratio) for ratio in ratios) for width, ratios in dict(widths).items()}
        for kind, widths in dict(value).items()
    }
    if any(len(ratios) != 6 or min(ratios) <= 0 for widths in kinds.values() for ratios in widths.values()):
        raise ValueError(
            "must give for each kind and width six numbers above 0: of rows, entries and calls forward, then backward"
        )
    return {kind: dict(sorted(widths.items())) for kind, widths in kinds.items() if widths}


def _kept_by_kind(value: Any) -> dict[str, tuple[float, ...]]:
    """Two shares for each kind of layer."""
    kinds = {str(kind): tuple(float(share) for share in shares) for kind, shares in dict(value).items()}
    if any(len(shares) != 2 or not all(0 < share <= 1 for share in shares) for shares in kinds.values()):
        raise ValueError("must give for each kind two shares above 0 and up to 1: forward and backward")
    return kinds


# where the numbers of a cluster come from; `written` by a person is the default
MEASURED, QUICK, DISTURBED, PRESET, GUESSED = "measured", "quick", "disturbed", "preset", "guessed"
_ORIGINS = {
    MEASURED: "were measured by trisect plan --calibrate",
    QUICK: "were measured for some seconds at the first plan; trisect plan --calibrate measures them thoroughly",
    DISTURBED: "were disturbed when measured, and are doubtful; repeat trisect plan --calibrate when it is quiet",
    PRESET: "are a preset's, from data sheets; nothing of it was measured",
    GUESSED: "were guessed from its cores; trisect plan --calibrate measures them",
}


def origin_of(name: str, source: str) -> str:
    """Say in a sentence where the rates of a cluster come from."""
    return f"The rates of {name} {_ORIGINS.get(source, 'are those of its file')}."


# what a task does with pairs of rows is rated beside the layers; what is no layer of its own is not rated
PAIRS, UNRATED = "pairs", "_"

RatesByWidth = Annotated[dict[int, float], _reading(_rates_by_width)]
SharesByKind = Annotated[dict[str, tuple[float, ...]], _reading(_kept_by_kind)]
RatiosByKind = Annotated[dict[str, dict[int, tuple[float, ...]]], _reading(_ratios_by_kind)]
Shares = Annotated[dict[int, float], _reading(_shares)]


@section("cluster.device", ConfigError)
@dataclass(frozen=True, config=CLOSED)
class Device:
    """What one rank computes on, when it is alone on its host.

    Attributes:
        flops: dense float32 operations a second of the products that layers do.
        gather: bytes a second of rows that a sum over neighbours reads, by the width of a row in bytes, where the rows
            lie in memory; `gather_cached` where they lie in the cache, of `cache` bytes.
        elementwise: bytes a second that elementwise work reads and writes.
        half: seconds that a half of a layer costs whatever its size, each way (Python, kernels' starts).
        step: seconds that each further step of a timeline costs in such a half.
        stale: seconds that such a half costs besides where its rows are a chunk that reads history.
        turn: seconds until a rank that waited has a core again, where a host has more ranks than cores.
        layers: by kind of layer and width in bytes, how many times as long its work takes as the rates above say: of
            rows, entries and calls, forward and then backward (of `pairs`: of rows that are scored, of pairs, and of
            pairs that are drawn). A kind that is not there takes the middle of the others.
        kept: by kind of layer, the share of its speed that is left with the cores of one of several ranks, forward and
            backward: a kind keeps less the better its work is divided among threads.
        memory: bytes of the device; of a CPU, of the whole host.
        host_link: bytes a second between host and device; None where they are the same.
        libraries: bytes that a rank takes before it has any data; `joined` how many more where it is one of several.
        page: buffers of a MiB and more take whole multiples of these bytes.
    """

    flops: Rate
    gather: RatesByWidth
    elementwise: Rate
    memory: Size
    gather_cached: RatesByWidth | None = None
    cache: SizeOrNone = 0
    half: Seconds = 1e-4
    step: Seconds = 2e-5
    stale: Seconds = 0.0
    turn: Seconds = 0.0
    kept: SharesByKind = Field(default_factory=dict)
    layers: RatiosByKind = Field(default_factory=dict)
    host_link: Rate | None = None
    libraries: Size = 335 << 20
    joined: SizeOrNone = 0
    page: Positive = 1 << 21

    def gather_rate(self, width: int, table: float) -> float:
        """Give the bytes a second at which rows of `width` bytes are read from a table of so many bytes."""
        far = _at(self.gather, width)
        if self.gather_cached is None or self.cache == 0:
            return far
        share = min(1.0, self.cache / max(table, 1.0))
        return 1.0 / (share / _at(self.gather_cached, width) + (1.0 - share) / far)

    def ratios(self, kind: str, width: float, *, back: bool) -> tuple[float, float, float]:
        """Give how many times as long a kind of layer takes as its rates say: of its rows, entries and calls."""
        first = 3 if back else 0
        if kind in self.layers:
            return (
                self._ratio(kind, width, first),
                self._ratio(kind, width, first + 1),
                self._ratio(kind, width, first + 2),
            )
        rated = [name for name in self.layers if name != PAIRS]
        if not rated or kind.startswith(UNRATED):
            return 1.0, 1.0, 1.0
        rows, entries, calls = (
            sorted(self._ratio(name, width, first + more) for name in rated)[len(rated) // 2] for more in range(3)
        )
        return rows, entries, calls

    def keeps(self, kind: str, *, back: bool) -> float:
        """Give how much more of its speed a kind of layer keeps with fewer cores than the kind in the middle does."""
        if kind not in self.kept:
            return 1.0
        shares = sorted(each[int(back)] for name, each in self.kept.items() if name != PAIRS)
        return self.kept[kind][int(back)] / shares[len(shares) // 2] if shares else 1.0

    def _ratio(self, kind: str, width: float, which: int) -> float:
        return _at({each: ratios[which] for each, ratios in self.layers[kind].items()}, round(width))


def _at(rates: dict[int, float], width: int) -> float:
    """Interpolate between the widths on either side, on logarithmic scales; beyond the ends, hold."""
    widths = list(rates)
    if width <= widths[0]:
        return rates[widths[0]]
    for low, high in pairwise(widths):
        if width <= high:
            share = math.log(width / low) / math.log(high / low)
            return math.exp((1 - share) * math.log(rates[low]) + share * math.log(rates[high]))
    return rates[widths[-1]]


@section("cluster.link", ConfigError)
@dataclass(frozen=True, config=CLOSED)
class Link:
    """What carries rows from one rank to another.

    Attributes:
        bandwidth: bytes a second each way; between hosts, of a host, whose ranks share it.
        latency: seconds until a message of no size is there.
        message: seconds that a message costs each of the two ranks themselves.
        copies: whether the ranks' own processors move the bytes, so that they can do nothing else meanwhile.
    """

    bandwidth: Rate
    latency: Seconds = 1e-5
    message: Seconds = 2e-5
    copies: Flag = False


@section("cluster", ConfigError)
@dataclass(frozen=True, config=CLOSED)
class Cluster:
    """Hosts of devices, and what joins them.

    Attributes:
        name: as it is shown.
        hosts, devices: how many hosts there are, and how many devices each has; of a CPU, its cores.
        inside, between: the link between ranks of one host, and of two.
        shares: of a CPU, the share of its speed alone that a rank has where so many ranks share the host.
        single: of a CPU, the share that one of several ranks has while all others of the host wait; None: as `shares`.
        source: where the numbers come from: `measured` (`quick`: for some seconds, `disturbed`: by others meanwhile),
            `preset`, `guessed`, or `written` by a person.
    """

    name: Text
    device: Device
    inside: Link
    between: Link
    hosts: Positive = 1
    devices: Positive = 1
    shares: Shares = Field(default_factory=dict)
    single: float | None = None
    source: Text = "written"

    @property
    def is_cpu(self) -> bool:
        """Say whether ranks share the cores and the memory of their host."""
        return self.device.host_link is None

    def resized(self, ranks: int) -> Cluster:
        """Give the same with as many hosts as so many ranks need; ranks of a single CPU host share its cores."""
        if self.is_cpu and self.hosts == 1:
            return self
        return replace(self, hosts=max(1, -(-ranks // self.devices)))

    def ranks_on_host(self, world: int) -> int:
        """Say how many ranks of a world share a host; hosts are filled one after the other."""
        return min(world, -(-world // self.hosts) if world > self.hosts * self.devices else self.devices)

    def host_of(self, rank: int, world: int) -> int:
        """Give the host of a rank."""
        return rank // self.ranks_on_host(world)

    def share(self, world: int, working: int | None = None) -> float:
        """Give the share of a lone rank's speed that each rank has in such a world.

        Args:
            working: of the ranks of a host, how many work at the same time; None: all.
        """
        ranks = self.ranks_on_host(world)
        if working is not None and working < ranks and self.single is not None:
            if working <= 1:
                return self.single
            return min(self.single, self.share(world) * ranks / working)
        if not self.shares or ranks == 1:
            return self.shares.get(1, 1.0)
        measured = dict(sorted({1: 1.0, **self.shares}.items()))
        most = max(measured)
        if ranks > most:
            # beyond what was measured, ranks take turns on the cores
            return measured[most] * most / ranks
        # between two numbers on logarithmic scales: half as many ranks have twice the cores each
        return _at(measured, ranks)

    def memory_of_rank(self, world: int) -> int:
        """Give the bytes that a rank may take; ranks of a CPU share those of the host."""
        return self.device.memory // self.ranks_on_host(world) if self.is_cpu else self.device.memory

    def plain(self) -> dict[str, Any]:
        """Give all numbers as plain data, which `cluster_of_mapping` reads back."""
        plain: dict[str, Any] = _plain(self)
        return plain

    def write(self, path: Path) -> None:
        """Write the cluster as a file that `read_cluster` reads."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with drafted(path, str(os.getpid())) as draft:  # every training reads it, and never half of it
            draft.write_text(yaml.safe_dump(self.plain(), sort_keys=False), encoding="utf-8")


def _plain(value: Any) -> Any:
    """Return a tree of dataclasses, mappings and tuples as mappings and lists; fields that are None are left out."""
    if is_dataclass(value):
        plain = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        return {name: inner for name, inner in plain.items() if inner is not None}
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return list(value) if isinstance(value, tuple) else value


def cluster_of_mapping(plain: Any, where: str) -> Cluster:
    """Make a cluster of what a file has."""
    if not isinstance(plain, dict):
        raise ConfigError(f"{where} is no cluster; it must have name, device, inside and between.")
    values = dict(plain)
    for name, kind in (("device", Device), ("inside", Link), ("between", Link)):
        if isinstance(values.get(name), dict):
            _require_fields(kind, values[name], f"{where}, {name},")
            values[name] = kind(**values[name])
    _require_fields(Cluster, values, where)
    cluster = Cluster(**values)
    if cluster.device.layers and not cluster.device.kept:
        raise ConfigError(
            f"{where} has device.layers and no device.kept: another version measured it; measure this machine anew "
            "(trisect plan --calibrate), or remove both."
        )
    return cluster


def _require_fields(kind: type[Any], values: dict[Any, Any], where: str) -> None:
    for key in values:
        if not isinstance(key, str):
            raise ConfigError(f"{where} has the key {key!r}; keys are names (docs/planner.md shows a cluster file).")
        if key not in (field.name for field in fields(kind)):
            # a calibration that another version left would otherwise end every command without saying what to do
            raise ConfigError(
                f"{where} has {key[:40]!r}, which is no part of it; remove that line, or measure this machine anew "
                "(trisect plan --calibrate)."
            )
    for field in fields(kind):
        if field.name not in values and field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(f"{where} has no {field.name}; add it (docs/planner.md shows a cluster file).")


def read_cluster(path: Path) -> Cluster:
    """Read a cluster file as `Cluster.write` writes it; a mistake in it is one sentence."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ConfigError(f"--cluster is {path}, which is no regular file; give a YAML file.")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--cluster is {path}, which cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"The cluster file {path} is not UTF-8 text; remove it, or write it anew.") from None
    return cluster_of_mapping(read_yaml(text, f"The cluster file {path}"), f"The cluster file {path}")
