"""The page: key figures, curves, time, memory, communication, what each rank did when, settings."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from trisect.report.assets import SCRIPT, STYLE
from trisect.report.beside import left_out, simple_rules
from trisect.report.charts import Series, bars, lines, number
from trisect.report.picture import picture
from trisect.report.planned import compare, planned_spans, predicted_table, rests_on
from trisect.train.run.checkpoint import write_atomically
from trisect.train.run.run_directory import RunDirectory

_LARGEST = 1e300  # of a value in a chart; what is larger, or no number, is left out
_SPLIT_COLOURS = {"train": "ca", "val": "cb", "test": "cc"}


def write_report(directory: RunDirectory, path: Path | None = None) -> Path:
    """Write the page of a run, `report.html` in its directory unless said otherwise."""
    path = directory.path / "report.html" if path is None else path
    write_atomically(path, render(directory).encode())
    return path


def render(directory: RunDirectory) -> str:
    """Give the page of a run, finished or not."""
    records = directory.metrics()
    summary = directory.summary() or {}
    config = directory.config.resolved()
    title = directory.path.resolve().name
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="sub">{html.escape(_subtitle(config, summary, records))}</p>',
        _tiles(summary, records),
        _section("Epochs", f'<div class="charts">{"".join(_curves(records, summary))}{_timing(records)}</div>')
        if records
        else "",
        _section("Beside simple rules", simple_rules(summary)),
        _section("Where the time went", _events(directory, summary.get("layout"))),
        _section("Predicted and measured", _predicted(directory.plan(), summary)),
        _section("Memory and communication", _costs(summary)),
        _section("Settings", _settings(config, summary)),
        left_out(records, summary),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)} · Trisect</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(parts)}</main><script>{SCRIPT}</script></body></html>"
    )


def _section(title: str, content: str) -> str:
    return f"<h2>{html.escape(title)}</h2>{content}" if content else ""


def _subtitle(config: Mapping[str, Any], summary: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> str:
    model, data = config["model"], config["data"]
    source = data.get("name") or data.get("path") or data.get("generate") or data.get("object")
    state = "finished" if summary else f"not finished, {len(records)} of {config['train']['epochs']} epochs so far"
    depth = f", {model['layers']} layers of {model['hidden']}" if "layers" in model else ""
    shape = f"{model['name']}{depth}"
    return f"{shape}, {config['task']['name']} on {source}; {state}."


def _tiles(summary: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> str:
    tiles: list[tuple[str, str]] = []
    monitor = str(summary.get("monitor", "")).rpartition(".")[2]
    for split in ("test", "val"):
        metrics = summary.get("metrics", {}).get(split) or {}
        name = monitor if monitor in metrics and monitor != "loss" else next((k for k in metrics if k != "loss"), None)
        if name is not None and isinstance(metrics[name], (int, float)):
            tiles.append((number(metrics[name]), f"{split} {name.replace('_', ' ')}"))
    if records:
        tiles.append((number(_value(records[-1], "loss")), "last training loss"))
        tiles.append((str(len(records)), "epochs"))
    if summary.get("best_epoch"):
        tiles.append((str(summary["best_epoch"]), "best epoch"))
    median = summary.get("seconds_per_epoch", {}).get("median")
    if median is not None:
        tiles.append((seconds(median), "an epoch (median)"))
    peaks = summary.get("memory", {}).get("peak_rss_bytes") or []
    if peaks:
        tiles.append((size(max(peaks)), "peak memory"))
    if "communication" in summary:
        tiles.append((size(summary["communication"]["bytes_per_epoch"]), "sent an epoch"))
    return (
        '<div class="tiles">'
        + "".join(f'<div class="tile"><b>{html.escape(v)}</b><span>{html.escape(n)}</span></div>' for v, n in tiles)
        + "</div>"
    )


def _curves(records: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> Iterable[str]:
    """One chart of the losses, then one for each measure, its splits as lines."""
    best = summary.get("best_epoch")
    best = best if isinstance(best, int) else None
    loss = [Series("train", "ca", _points(records, ("loss",)))]
    loss += [Series(split, _SPLIT_COLOURS[split], _points(records, (split, "loss"))) for split in ("val", "test")]
    last = int(records[-1]["epoch"])
    yield lines("Loss", loss, mark=best, epochs=last)
    names: dict[str, None] = {}
    for record in records:
        for split in _SPLIT_COLOURS:
            inner = record.get(split)
            if isinstance(inner, Mapping):
                names.update(dict.fromkeys(k for k, v in inner.items() if k != "loss" and isinstance(v, (int, float))))
    for name in names:
        series = [Series(split, colour, _points(records, (split, name))) for split, colour in _SPLIT_COLOURS.items()]
        yield lines(name.replace("_", " "), series, mark=best, epochs=last)


def _timing(records: Sequence[Mapping[str, Any]]) -> str:
    points = [(x, 1e3 * y) for x, y in _points(records, ("seconds",))]
    return lines("Time per epoch", [Series("epoch", "ca", points)], unit=" ms", from_zero=True)


def _events(directory: RunDirectory, layout: Mapping[str, Any] | None) -> str:
    plan = directory.plan()
    events = [directory.events(rank) for rank in directory.ranks()]
    return picture(events, layout, plan.get("halves"), planned_spans(plan))


def _predicted(plan: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    return predicted_table(compare(plan, summary), rests_on(plan), seconds, size)


def _costs(summary: Mapping[str, Any]) -> str:
    if not summary:
        return '<p class="note">These figures come when the run has ended.</p>'
    peaks = summary["memory"]["peak_rss_bytes"]
    memory = bars([(f"rank {rank}", float(peak), size(peak)) for rank, peak in enumerate(peaks)])
    own = summary["memory"].get("peak_pss_bytes")
    if summary["world"] > 1 and own is not None:
        memory += f'<p class="note">Together {size(sum(own))}: a page that ranks share counts once.</p>'
    sent = summary["communication"]
    if summary["world"] == 1:
        wire = '<p class="note">One rank: nothing is sent.</p>'
    else:
        wire = bars([(axis, float(count), size(count)) for axis, count in sent["by_axis"].items()])
        formula = sent.get("formula_bytes_per_epoch")
        if formula is not None:
            wire += f'<p class="note">By formula {size(formula)} an epoch, counted {size(sent["bytes_per_epoch"])}.</p>'
    transfer = summary["transfer"]
    if transfer["full_bytes"]:
        fraction = transfer["sent_bytes"] / transfer["full_bytes"]
        wire += (
            f'<p class="note">Snapshots brought to the device: {size(transfer["sent_bytes"])} of'
            f" {size(transfer['full_bytes'])} ({fraction:.0%}).</p>"
        )
    staleness = summary.get("staleness")
    exact = "Exact: no stale rows are read."
    if staleness is not None:
        exact = html.escape(_stale_words(staleness))
    wire += f'<p class="note">{exact}</p>'
    return (
        f'<div class="two"><div class="card"><h3>Peak memory</h3>{memory}</div>'
        f'<div class="card"><h3>Bytes sent an epoch, by axis</h3>{wire}</div></div>'
    )


def _stale_words(staleness: Mapping[str, Any]) -> str:
    """Give what was stale and what the guard did, in sentences."""
    told = f"Rows of chunks that are not done yet ({staleness.get('chunks')} chunks) are stale"
    if staleness.get("historical_reads") is not None:
        told += f": {staleness['historical_reads']:.0%} of all reads"
    if staleness.get("drift") is not None:
        told += f", which lie {staleness['drift']:.0%} from the fresh rows"
    told += "."
    loss = staleness.get("loss")
    if loss is not None:
        told += f" Training loss at epoch {loss.get('epoch')}: exact {loss['exact']:.4g}, stale {loss['stale']:.4g}."
    for action in staleness.get("stepped_in") or ():
        told += (
            f" The guard stepped in at epoch {action.get('epoch')} ({action.get('why')}) and went back to epoch"
            f" {action.get('back_to')}; then {action.get('then')}."
        )
    return told


def _settings(config: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    layout = summary.get("layout", config["layout"])
    rows = [("layout", layout)]
    if isinstance(layout, Mapping):  # one chunk reads no history
        rows = [(key, value) for key, value in layout.items() if key != "history" or (layout.get("chunks") or 1) > 1]
    table = "".join(
        f'<tr><th>{html.escape(str(k))}</th><td class="number">{html.escape(str(v))}</td></tr>' for k, v in rows
    )
    rest = {key: value for key, value in config.items() if key != "layout"}
    text = yaml.safe_dump(rest, sort_keys=False)
    release, world = (html.escape(str(summary.get(key))) for key in ("version", "world"))
    version = f'<p class="note">Trisect {release}, {world} rank(s).</p>' if summary else ""
    return (
        f'<div class="two"><div class="card"><h3>Layout</h3><table>{table}</table>{version}</div>'
        f'<div class="card"><h3>config.yaml</h3><pre>{html.escape(text)}</pre></div></div>'
    )


def _points(records: Sequence[Mapping[str, Any]], path: tuple[str, ...]) -> list[tuple[float, float]]:
    values = ((record["epoch"], _value(record, *path)) for record in records)
    return [(epoch, value) for epoch, value in values if abs(value) < _LARGEST]


def _value(record: Mapping[str, Any], *path: str) -> float:
    value: Any = record
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, (int, float)) else math.nan


def seconds(value: float) -> str:
    """Give a duration as people write it."""
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def size(value: float) -> str:
    """Give a number of bytes as people write it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"
