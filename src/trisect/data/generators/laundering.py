"""The generator `laundering`: a transaction network with planted laundering patterns, in the manner of AML-Sim."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trisect.data.generators.static_graphs import check_fractions, check_sizes, require
from trisect.data.records import Array, TimelineRecord
from trisect.data.splits import random_splits

PATTERNS = ("fan-in", "fan-out", "cycle", "scatter-gather")
_SMALLEST, _LARGEST = 4, 12


@dataclass(frozen=True)
class _Planted:
    """Transactions of all patterns, sorted by step, and the pattern (1.., 0: none) of each account."""

    src: Array
    dst: Array
    amount: Array
    offsets: Array
    pattern: Array


def laundering(
    vertices: int = 20_000,
    steps: int = 100,
    transactions: float = 0.5,
    fraud: float = 0.02,
    contacts: int = 8,
    window: int = 20,
    seed: int = 0,
) -> TimelineRecord:
    """Accounts that pay each other, a few of which launder money; events carry amounts as weights.

    Normal transactions follow fixed contacts (repeated pairs), with heavy-tailed activity of senders and popularity of
    receivers and lognormal amounts on each account's own scale. Laundering: groups of 4 to 12 accounts move a sum by
    fan-in, fan-out, a cycle or scatter-gather, within `window` steps, in ordinary-looking amounts; these accounts pay
    normally as well. `y` is 1 for accounts in a pattern, `edge_y` for its transactions.

    Args:
        transactions: normal transactions per account and step.
        fraud: the fraction of accounts that take part in a pattern.
        contacts: how many receivers an account has.
        window: the most steps that a pattern lasts.
    """
    check_sizes(vertices=vertices, steps=steps, contacts=contacts, window=window)
    check_fractions(fraud=fraud)
    require(transactions > 0, f"transactions is {transactions}; it must be greater than 0.")
    rng = np.random.default_rng([seed, 6])
    rank = rng.permutation(vertices).astype(np.int32)  # accounts from the most to the least active
    popular = rng.permutation(vertices).astype(np.int32)
    receivers = popular[_heavy_tail(rng, vertices, (vertices, contacts))]  # [accounts, contacts]
    scale = np.exp(rng.standard_normal(vertices, dtype=np.float32) * 0.8 + 5.0)  # an account's usual amount
    planted = _plant(rng, vertices, steps, fraud, min(window, steps), scale)

    normal = round(vertices * transactions)
    total = normal * steps + len(planted.src)
    src, dst = np.empty(total, np.int32), np.empty(total, np.int32)
    amount, edge_y = np.empty(total, np.float32), np.zeros(total, np.int8)
    offsets = planted.offsets + np.arange(steps + 1, dtype=np.int64) * normal
    for t in range(steps):
        draw = np.random.Generator(np.random.SFC64([seed, 7, t]))
        start, middle, stop = int(offsets[t]), int(offsets[t]) + normal, int(offsets[t + 1])
        payer = rank[_heavy_tail(draw, vertices, normal)]
        payee = receivers[payer, draw.integers(0, contacts, normal, dtype=np.int8 if contacts < 128 else np.int64)]
        payee = np.where(payee == payer, (payee + 1) % vertices, payee)
        src[start:middle], dst[start:middle] = payer, payee
        amount[start:middle] = scale[payer] * np.exp(draw.standard_normal(normal, dtype=np.float32) * np.float32(0.5))
        there = slice(int(planted.offsets[t]), int(planted.offsets[t + 1]))
        src[middle:stop], dst[middle:stop] = planted.src[there], planted.dst[there]
        amount[middle:stop], edge_y[middle:stop] = planted.amount[there], 1
    y = (planted.pattern > 0).astype(np.int64)
    accounts = np.bincount(planted.pattern, minlength=len(PATTERNS) + 1)
    return TimelineRecord(
        vertices=vertices,
        src=src,
        dst=dst,
        offsets=offsets,
        weight=amount,
        y=y,
        edge_y=edge_y,
        splits=random_splits(y, seed),
        meta={
            "task": "node-classification",
            "classes": ["normal", "laundering"],
            "accounts_by_pattern": {name: int(n) for name, n in zip(PATTERNS, accounts[1:], strict=True)},
        },
    )


def _heavy_tail(rng: np.random.Generator, count: int, size: int | tuple[int, ...]) -> Array:
    """Ranks 0..count-1, rank r with a density ∝ r^-1/2 (a power of a uniform number: no table to search)."""
    u = rng.random(size, dtype=np.float32)
    return np.minimum((u * u * np.float32(count)).astype(np.int32), count - 1)


def _plant(rng: np.random.Generator, vertices: int, steps: int, fraud: float, window: int, scale: Array) -> _Planted:
    """Disjoint groups of accounts, all groups of one pattern and size at once."""
    wanted = int(vertices * fraud)
    sizes = rng.integers(_SMALLEST, _LARGEST + 1, wanted // _SMALLEST + 1)
    sizes = sizes[: int(np.searchsorted(np.cumsum(sizes), wanted, side="right"))]
    kinds = np.arange(len(sizes)) % len(PATTERNS)
    accounts = rng.permutation(vertices)[: int(sizes.sum())].astype(np.int32)
    first = np.cumsum(sizes) - sizes
    pattern = np.zeros(vertices, np.int8)
    pattern[accounts] = np.repeat(kinds + 1, sizes)
    columns: list[tuple[Array, Array, Array, Array]] = []
    for kind, name in enumerate(PATTERNS):
        for size in range(_SMALLEST, _LARGEST + 1):
            begin = first[(kinds == kind) & (sizes == size)]
            if len(begin):
                group = accounts[begin[:, None] + np.arange(size)]  # [groups, size]
                columns.append(_transfers(rng, name, group, steps, window, scale))
    if not columns:
        empty = np.zeros(0, np.int32)
        return _Planted(empty, empty, np.zeros(0, np.float32), np.zeros(steps + 1, np.int64), pattern)
    src, dst, amount, step = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    order = np.argsort(step, kind="stable")
    offsets = np.zeros(steps + 1, np.int64)
    np.cumsum(np.bincount(step, minlength=steps), out=offsets[1:])
    return _Planted(src[order], dst[order], amount[order], offsets, pattern)


def _transfers(
    rng: np.random.Generator, name: str, group: Array, steps: int, window: int, scale: Array
) -> tuple[Array, Array, Array, Array]:
    """(src, dst, amount, step) of the groups' transfers, flat; a group is a row of `group` [groups, size]."""
    groups, size = group.shape
    begin = rng.integers(0, steps - window + 1, (groups, 1))
    usual = scale[group].mean(axis=1, keepdims=True)
    centre = np.repeat(group[:, :1], size - 1, axis=1)
    if name == "fan-in" or name == "fan-out":
        rest = group[:, 1:]
        src, dst = (rest, centre) if name == "fan-in" else (centre, rest)
        step = begin + rng.integers(0, window, src.shape)
        amount = usual * rng.uniform(0.9, 1.1, src.shape)
    elif name == "cycle":
        src, dst = group, np.roll(group, -1, axis=1)
        step = begin + np.sort(rng.integers(0, window, src.shape), axis=1)
        amount = usual * 0.98 ** np.arange(size)[None, :]  # each account keeps a small commission
    else:
        between, sink = group[:, 1:-1], np.repeat(group[:, -1:], size - 2, axis=1)
        half = max(1, window // 2)
        early = begin + rng.integers(0, half, between.shape)
        late = begin + np.minimum(window - 1, half + rng.integers(0, max(1, window - half), between.shape))
        sent = usual * rng.uniform(0.9, 1.1, between.shape)
        src, dst = np.hstack([centre[:, 1:], between]), np.hstack([between, sink])
        step, amount = np.hstack([early, late]), np.hstack([sent, sent * 0.97])
    return src.reshape(-1), dst.reshape(-1), amount.astype(np.float32).reshape(-1), step.astype(np.int32).reshape(-1)
