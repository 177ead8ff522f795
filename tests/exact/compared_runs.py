"""Compares what ranks found with what one process found: losses, parameters, measures, predictions and bytes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from exact_case import ExactCase
from rank_work import Array, Outcome

TOLERANCE = 1e-10
HUNG = "no answer:"
"""With which an outcome's `failed` begins where the process was ended because it gave none."""


def differences(case: ExactCase, alone: Outcome, ranks: Sequence[Outcome]) -> list[str]:
    """Sentences that say in what ranks differ from one process; none where they are the same."""
    said = _failures(alone, ranks)
    if said or refusal(alone, ranks):
        return said
    by_rank = [
        _numbers("loss", rank.loss, alone.loss) + _parameters(rank.parameters, alone.parameters) for rank in ranks
    ]
    for sentence in dict.fromkeys(one for each in by_rank for one in each):
        holders = [number for number, each in enumerate(by_rank) if sentence in each]
        said.append(sentence if len(holders) == len(ranks) else f"{sentence} (ranks {holders})")
    first = ranks[0]
    for name in ("metrics", "baselines", "epochs"):
        said += _numbers(name, getattr(first, name), getattr(alone, name))[:2]
    said += _predictions(ranks, alone)[:2]
    sent, formula = (first.communication[key] for key in ("bytes_per_epoch", "formula_bytes_per_epoch"))
    if sent != formula:
        said.append(f"the ledger has {sent} bytes an epoch, and the formula {formula}")
    kinds: Counter[str] = Counter()
    for rank in ranks:
        kinds.update(rank.sent)
    if kinds != first.formula:
        off = {name: (kinds[name], first.formula.get(name, 0)) for name in sorted({*kinds, *first.formula})}
        wrong = (f"{a} bytes of {name}, and the formula {b}" for name, (a, b) in off.items() if a != b)
        said.append(f"the ledger has {'; '.join(wrong)}")
    return said


def _failures(alone: Outcome, ranks: Sequence[Outcome]) -> list[str]:
    """Processes that failed or hung, those first that say why; and ranks that do not agree in refusing."""
    failed = [(f"rank {number}", rank.failed) for number, rank in enumerate(ranks) if rank.failed]
    failed += [("one process", alone.failed)] if alone.failed else []
    failed.sort(key=lambda one: one[1].startswith(HUNG))
    if failed:
        first, *others = failed
        return [f"{first[0]} failed: {first[1]}", *(f"{who} too: {_last_line(why)}" for who, why in others)]
    refusing = [number for number, rank in enumerate(ranks) if rank.refused]
    if 0 < len(refusing) < len(ranks):
        return [f"ranks {refusing} alone refuse it: {ranks[refusing[0]].refused}"]
    if alone.refused and not refusing:
        return [f"one process refuses it, and ranks do not: {alone.refused}"]
    return []


def _last_line(text: str) -> str:
    """Why a process failed in short; of one that hung, where it was."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if text.startswith(HUNG):
        here = next((line for line in lines if "trisect" in line), "")
        return f"{HUNG} {here}"
    return lines[-1]


def refusal(alone: Outcome, ranks: Sequence[Outcome]) -> str:
    """The sentence by which the case is refused; empty where it is not."""
    return alone.refused or ranks[0].refused


def _off(found: Array, wanted: Array) -> float:
    """The largest difference, as a part of the largest number (of 1 where that is less); NaN and NaN are the same."""
    if found.shape != wanted.shape:
        return math.inf
    if not wanted.size:
        return 0.0
    same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    with np.errstate(invalid="ignore"):
        gaps = np.where(same, 0.0, np.abs(found - wanted))
    finite = np.abs(wanted[np.isfinite(wanted)])
    scale = max(1.0, float(finite.max())) if finite.size else 1.0
    worst = float(gaps.max()) / scale
    return math.inf if math.isnan(worst) else worst


def _parameters(found: Mapping[str, Array], wanted: Mapping[str, Array]) -> list[str]:
    if found.keys() != wanted.keys():
        return [f"parameters {sorted(found.keys() ^ wanted.keys())} are not on both sides"]
    off = {name: _off(found[name], wanted[name]) for name in wanted}
    worst = max(off, key=lambda name: off[name])
    count = sum(value > TOLERANCE for value in off.values())
    return [f"{count} of {len(off)} parameters differ, {worst} by {off[worst]:.1e}"] if count else []


def _numbers(name: str, found: Any, wanted: Any) -> list[str]:
    """Compare nested lists and mappings of numbers."""
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        if wanted.keys() != found.keys():
            return [f"{name} has {sorted(map(str, found))}, and one process {sorted(map(str, wanted))}"]
        return [said for key in wanted for said in _numbers(f"{name}.{key}", found[key], wanted[key])]
    if isinstance(wanted, (list, tuple)) and isinstance(found, (list, tuple)):
        if len(wanted) != len(found):
            return [f"{name} has {len(found)} values, and one process {len(wanted)}"]
        return [said for k in range(len(wanted)) for said in _numbers(f"{name}.{k}", found[k], wanted[k])]
    numbers = isinstance(wanted, (int, float)) and isinstance(found, (int, float))
    if numbers:
        off = _off(np.array(float(found)), np.array(float(wanted)))
        return [f"{name} is {found!r}, and {wanted!r} in one process"] if off > TOLERANCE else []
    return [] if found == wanted else [f"{name} is {found!r}, and {wanted!r} in one process"]


def _predictions(ranks: Sequence[Outcome], alone: Outcome) -> list[str]:
    """Compare the predictions of all rows of all ranks; together they must be those of all vertices and steps."""
    wanted: dict[str, Array] = {}
    for name in sorted({row[0] for row in alone.rows}):
        pieces = [(first, vertices, values) for key, first, vertices, values in alone.rows if key == name]
        steps, count = max(first + len(values) for first, _, values in pieces), len(pieces[0][1])
        whole = np.full((steps, count, *pieces[0][2].shape[2:]), np.nan)
        for first, vertices, values in pieces:
            whole[first : first + len(values), vertices] = values
        wanted[name] = whole
    said: list[str] = []
    seen = {name: np.zeros(whole.shape[:2], bool) for name, whole in wanted.items()}
    for number, rank in enumerate(ranks):
        for name, first, vertices, values in rank.rows:
            if name not in wanted:
                return [f"rank {number} predicts {name}, and one process does not"]
            there = wanted[name][first : first + len(values), vertices]
            seen[name][first : first + len(values), vertices] = True
            off = _off(np.asarray(values, float), np.asarray(there, float))
            if off > TOLERANCE:
                said.append(f"rank {number} predicts {name} of steps from {first}, which differs by {off:.1e}")
    for name, done in seen.items():
        if not done.all():
            said.append(f"no rank predicts {name} of {int((~done).sum())} of {done.size} rows")
    return said
