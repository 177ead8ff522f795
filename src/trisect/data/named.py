"""Data sets with names, read from a data directory that the user names (`data_dir`, or TRISECT_DATA)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from trisect.data.features import check_features
from trisect.data.formats.npz import Options, read_npz
from trisect.data.records import Record
from trisect.errors import ConfigError, DataError, nearest, unknown

DATA_VARIABLE = "TRISECT_DATA"
OPTION_NAMES = tuple(item.name for item in fields(Options))


@dataclass(frozen=True)
class NamedSet:
    """A data set with a name: what it is, the task it is used for, and how it is usually read."""

    name: str
    description: str
    task: str
    metric: str = "accuracy"
    timeline: bool = False
    defaults: dict[str, Any] = field(default_factory=dict)


def _static(name: str, description: str, metric: str = "accuracy", **defaults: Any) -> NamedSet:
    return NamedSet(name, description, "node-classification", metric, False, defaults)


def _links(name: str, description: str, **defaults: Any) -> NamedSet:
    return NamedSet(name, description, "link-prediction", "mrr", True, defaults)


def _signal(name: str, description: str, **defaults: Any) -> NamedSet:
    return NamedSet(name, description, "node-regression", "mse", True, defaults)


_BITCOIN = "trust ratings between Bitcoin traders; edge class = sign of the rating"
_WIKI = "Wikipedia pages on one subject, classes by traffic"
_AML = "simulated transactions with laundering accounts (AML-Sim)"

NAMED: dict[str, NamedSet] = {
    item.name: item
    for item in (
        _static("cora", "citations between papers, public split"),
        _static("citeseer", "citations between papers, public split"),
        _static("pubmed", "citations between papers on diabetes, public split"),
        _static("squirrel", _WIKI),
        _static("squirrel_filtered", _WIKI + ", without duplicates"),
        _static("chameleon", _WIKI),
        _static("chameleon_filtered", _WIKI + ", without duplicates"),
        _static("actor", "actors that appear on the same page"),
        _static("tolokers", "crowd workers, who was banned", "roc_auc"),
        _static("minesweeper", "a grid of a game, find the mines; depth helps", "roc_auc"),
        _static("twitch-DE", "friendships of German streamers"),
        _static("blogcatalog", "friendships of bloggers; the group of those with one", features=64),
        _static(
            "cnr-2000", "web pages and links; made-up features and labels", features=64, classes=16, symmetrise=True
        ),
        _static("amazon0601", "products bought together; made-up features", features=64, classes=16, symmetrise=True),
        _static("ego-twitter", "followers; made-up features", features=64, classes=16, symmetrise=True),
        _links("bitcoin-otc", _BITCOIN, period=1_200_000),
        _links("bitcoin-alpha", _BITCOIN, period=1_200_000),
        _links("uci-messages", "messages between students", period=190_080),
        _links("mathoverflow", "answers and comments; edge class = which of them", period="30d"),
        _links("cit-hepph", "a growing graph of citations by month", period=1),
        NamedSet(
            "chess", "games by month, edge class = outcome", "edge-classification", "f1", True, {"period": "distinct"}
        ),
        NamedSet("amlsim-20K_cycle200", _AML, "node-classification", "f1", True, {"period": 1}),
        NamedSet("amlsim-20K_fanin200cycle200", _AML, "node-classification", "f1", True, {"period": 1}),
        _signal("england-covid", "infections and mobility by day", lags=8, target="standardised"),
        _signal("twitter-tennis-rg17", "mentions by hour", target="log1p"),
        _signal("chickenpox", "cases in Hungary by week, fixed graph", lags=4),
        _signal("montevideo-bus", "passengers by hour, fixed graph", lags=4, target="standardised"),
    )
}


def data_directory(data_dir: Path | str | None = None) -> Path | None:
    """Give the directory that the caller names, or that of TRISECT_DATA, or None."""
    chosen = data_dir if data_dir is not None else os.environ.get(DATA_VARIABLE)
    return None if chosen is None or str(chosen) == "" else Path(chosen).expanduser()


def read_options(chosen: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Options:
    """Checked options of a named set or an npz archive."""
    for name in chosen:
        if name not in OPTION_NAMES:
            raise ConfigError(unknown("key of data:", name, OPTION_NAMES))
    merged = {**(defaults or {}), **chosen}
    _check_types(merged)
    return Options(**merged)


def _check_types(options: Mapping[str, Any]) -> None:
    minimum = {"split": 0, "classes": 2, "lags": 0, "seed": 0}
    for name, value in options.items():
        integer = isinstance(value, int) and not isinstance(value, bool)
        if name == "split" and value == "all":
            continue
        if name in minimum and value is not None and not (integer and value >= minimum[name]):
            raise ConfigError(f"data.{name} is {value!r}; it must be a whole number of at least {minimum[name]}.")
        if name in ("symmetrise", "row_normalise") and value is not None and not isinstance(value, bool):
            raise ConfigError(f"data.{name} is {value!r}; it must be true or false.")
        if name == "features":
            check_features(value)


def find_named(name: str, data_dir: Path | str | None = None) -> Path:
    """Find the file of a named data set."""
    directory = data_directory(data_dir)
    if directory is None and name not in NAMED and nearest(name, NAMED) is not None:
        raise DataError(unknown("data set", name, NAMED))
    if directory is None:
        raise DataError(
            f"data.name is {name!r} but no data directory is known; give --data-dir or set {DATA_VARIABLE}."
        )
    if not directory.is_dir():
        raise DataError(f"the data directory {directory} does not exist; give another --data-dir or {DATA_VARIABLE}.")
    path = directory / f"{name}.npz"
    if path.is_file() and path.parent == directory:
        return path
    present = sorted(item.stem for item in directory.glob("*.npz"))
    near = nearest(name, {*present, *NAMED})
    if name in NAMED or near is None:
        raise DataError(f"data.name is {name!r} but {directory} holds no {name}.npz; put it there or choose another.")
    raise DataError(f"unknown data set {name!r} in {directory}; did you mean {near!r}?")


def load_named(name: str, data_dir: Path | str | None = None, **options: Any) -> Record:
    """Read the named data set, with its usual options unless the caller sets others (see `npz.Options`)."""
    path = find_named(name, data_dir)
    dataset = NAMED.get(name)
    record = read_npz(path, read_options(options, dataset.defaults if dataset else None))
    record.meta["name"] = name
    if dataset is not None:
        record.meta.update(task=dataset.task, metric=dataset.metric)
    return record
