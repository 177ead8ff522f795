"""`load`: the data section of a configuration (`{name: …}`, `{path: …}` or `{generate: …}`, options) → a record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from trisect.data.derive import random_task, symmetric
from trisect.data.features import with_features
from trisect.data.formats.npz import read_npz
from trisect.data.formats.store import MANIFEST, read_directory
from trisect.data.generators.generate import GENERATORS, generate
from trisect.data.ingest.ingest import Table, read_table
from trisect.data.ingest.periods import offsets_of, steps_of
from trisect.data.named import OPTION_NAMES, load_named, read_options
from trisect.data.records import Record, StaticRecord, TimelineRecord
from trisect.data.splits import random_splits
from trisect.errors import ConfigError, DataError, unknown

FORMS = ("name", "path", "generate")
LATER = ("smoothing", "edge_merge")
"""Keys of the data section that other packages act on; `load` lets them pass."""

COMMON = ("weighted",)
"""Keys that any data section may have; `weighted: false` makes every edge count 1."""

_DIRECTORY = ("period", "symmetrise", "features", "classes", "seed")
_TABLE = tuple(item.name for item in fields(Table))


def form_of(data: Mapping[str, Any]) -> str:
    """Tell which of the three forms a data section has."""
    forms = [form for form in FORMS if data.get(form) is not None]
    if len(forms) != 1:
        what = f"{' and '.join(forms)} together" if forms else "none of them"
        raise ConfigError(f"data has {what}; give one of name, path and generate.")
    if not isinstance(data[forms[0]], (str, Path)):
        raise ConfigError(f"data.{forms[0]} is {data[forms[0]]!r}; it must be a text.")
    return forms[0]


def options(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Give the keys that this data section may have, its form's own among them."""
    form = form_of(data)
    if form == "name":
        return (form, *OPTION_NAMES, *COMMON, *LATER)
    if form == "generate":
        name = str(data[form])
        if name not in GENERATORS:
            raise ConfigError(unknown("generator", name, GENERATORS))
        own = GENERATORS[name].arguments
        return (form, *own, *(key for key in ("symmetrise",) if key not in own), *COMMON, *LATER)
    path = Path(data[form]).expanduser()
    if path.suffix.lower() == ".npz":
        return (form, *OPTION_NAMES, *COMMON, *LATER)
    return (form, *(_DIRECTORY if path.is_dir() else (*_TABLE, "seed")), *COMMON, *LATER)


def check(data: Mapping[str, Any]) -> None:
    """Refuse unknown keys, wrong types and a path that does not exist, without reading data."""
    allowed = options(data)
    for key in data:
        if key not in allowed:
            raise ConfigError(unknown("key of data:", str(key), allowed))
    form = form_of(data)
    if not isinstance(data.get("weighted", True), bool):
        raise ConfigError(f"data.weighted is {data['weighted']!r}; it must be true or false.")
    settings = {key: value for key, value in data.items() if key not in (form, *COMMON, *LATER)}
    if form == "generate":
        GENERATORS[str(data[form])].check({key: value for key, value in settings.items() if key != "symmetrise"})
    else:
        if form == "path" and not Path(data[form]).expanduser().exists():
            raise DataError(f"data.path is {data[form]}, which does not exist; check the path.")
        if set(settings) <= set(OPTION_NAMES):
            read_options(settings)


def load(
    data: Mapping[str, Any], data_dir: Path | str | None = None, join: Callable[[Record], Record] | None = None
) -> Record:
    """Read the record of a data section.

    Args:
        data: `{name: cora, split: 3}`, `{path: DIR, npz, or table}`, `{generate: community, vertices: 5000}`.
        data_dir: where named data sets lie (else the variable TRISECT_DATA).
        join: adds rows that came later to what was stored, before a graph directory's or a timeline's features are
            made from all of them.
    """
    check(data)
    record = _load(data, data_dir, join)
    return record if data.get("weighted", True) else replace(record, weight=None)


Join = Callable[[Record], Record]


def _load(data: Mapping[str, Any], data_dir: Path | str | None, join: Join | None) -> Record:
    form = form_of(data)
    settings = {key: value for key, value in data.items() if key not in (form, *COMMON, *LATER)}
    if form == "name":
        return _joined(load_named(str(data[form]), data_dir, **settings), settings, join)
    if form == "generate":
        symmetrise = bool(settings.pop("symmetrise", False))
        record = generate(str(data[form]), **settings)
        return _joined(_symmetrised(record) if symmetrise else record, {}, join)
    return _load_path(Path(data[form]).expanduser(), settings, join)


def _joined(record: Record, settings: Mapping[str, Any], join: Join | None) -> Record:
    """Add later rows to a record that was read as a whole; features that were made of its events are made anew."""
    if join is None:
        return record
    features = settings.get("features")
    if not isinstance(record, TimelineRecord) or features is None:
        return join(record)
    joined = join(replace(record, x=None))
    if not isinstance(joined, TimelineRecord):
        raise DataError("internal error: a timeline became a graph when rows were joined to it.")
    return with_features(joined, features, int(settings.get("seed", 0)))


def _load_path(path: Path, settings: dict[str, Any], join: Join | None) -> Record:
    if path.suffix.lower() == ".npz":
        return _joined(read_npz(path, read_options(settings)), settings, join)
    if path.is_dir():
        if not (path / MANIFEST).is_file():
            raise DataError(f"data.path {path} is no graph directory (it has no {MANIFEST}); make one with ingest.")
        stored = read_directory(path)
        return _adapt(stored if join is None else join(stored), settings)
    seed = int(settings.pop("seed", 0))
    record = read_table(path, Table(**{key: _column(key, value) for key, value in settings.items()}), seed=seed)
    return record if join is None else join(record)


def _column(key: str, value: Any) -> Any:
    """Turn column numbers into names; YAML may have them as numbers: `src: 0`."""
    names = ("src", "dst", "time", "weight", "edge_label", "relation", "id", "label_column", "vertex_time")
    return str(value) if key in names and value is not None else value


def _symmetrised(record: Record) -> Record:
    return symmetric(record) if isinstance(record, StaticRecord) else replace(record, undirected=True)


def _adapt(record: Record, settings: Mapping[str, Any]) -> Record:
    """Give a graph directory another period, both directions, or made-up features."""
    chosen = read_options(settings)
    if chosen.period is not None:
        record = _another_period(record, chosen.period)
    if chosen.symmetrise:
        record = _symmetrised(record)
    if isinstance(record, StaticRecord):
        if chosen.features is not None and not isinstance(chosen.features, int):
            raise DataError(f"data.features is {chosen.features!r}; for a static graph give a width.")
        if chosen.features is not None or chosen.classes is not None:
            record = random_task(record, chosen.features, chosen.classes, chosen.seed)
    elif chosen.features is not None:
        record = with_features(record, chosen.features, chosen.seed)
    classes = record.y is not None and record.y.ndim == 1 and record.y.dtype.kind == "i"
    if classes and record.y is not None and not record.splits:
        record = replace(record, splits=random_splits(record.y, chosen.seed))
    return record


def _another_period(record: Record, period: Any) -> Record:
    if not isinstance(record, TimelineRecord) or record.time is None:
        raise DataError(f"data.period is {period!r} but the graph directory keeps no times; leave it out.")
    if (record.y is not None and record.y.ndim == 2) or (record.x is not None and record.x.ndim == 3):
        raise DataError(f"data.period is {period!r} but the graph has values for each step; leave it out.")
    unit = str(record.meta.get("time_unit", "s"))
    offsets = offsets_of(steps_of(record.time, period, unit))
    return replace(record, offsets=offsets, meta={**record.meta, "period": period})
