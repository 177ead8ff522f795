"""One page: the figures of a run, or of several beside each other, in one file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from trisect.errors import TrisectError
from trisect.report.box import box_data, box_of, rank_table
from trisect.report.compare import comparison
from trisect.report.costs import communication, memory, partition, staleness
from trisect.report.figures import Series, figure, lines, side_by_side
from trisect.report.markup import Child, Markup, join, note, table, tag
from trisect.report.planned import predictions
from trisect.report.quality import COLOURS, quality
from trisect.report.quantities import counted, measure_name, number, seconds, share, size
from trisect.report.run_view import RunView
from trisect.report.timing import timing
from trisect.train.run.checkpoint import write_atomically
from trisect.train.run.run_directory import RunDirectory
from trisect.train.run.summary import describe_stop

_SCRIPTS = ("common.js", "lines.js", "schedule.js", "box.js", "page.js")
Section = tuple[str, str, Child]  # its name in links, its title, what it holds


def write_report(directory: RunDirectory, path: Path | None = None) -> Path:
    """Write the page of a run, `report.html` in its directory unless said otherwise."""
    path = directory.path / "report.html" if path is None else path
    write_atomically(path, render(directory).encode())
    return path


def write_comparison(directories: Sequence[RunDirectory], path: Path) -> Path:
    """Write one page of several runs."""
    write_atomically(path, render_comparison(directories).encode())
    return path


def render(directory: RunDirectory) -> str:
    """Give the page of a run, finished or not."""
    return render_view(RunView.of(directory))


def render_view(run: RunView) -> str:
    """Give the page of a run that was read."""
    sections: list[Section] = [
        ("learning", "Learning", side_by_side(*_curves(run), _epoch_times(run)) if run.records else None),
        ("quality", "How good it is", quality(run)),
        ("box", "How the work is cut", _cut(run)),
        ("time", "Where the time went", timing(run)),
        ("costs", "Predicted, sent and held", _costs(run)),
        ("settings", "Settings", _settings(run)),
    ]
    stopped = describe_stop(run.summary.mapping())
    above = _tiles(run) if stopped is None else join((note(stopped), _tiles(run)))
    return _page(run.name, _subtitle(run), above, sections, _left_out(run))


def render_comparison(directories: Sequence[RunDirectory]) -> str:
    """Give one page of several runs, the first of which the others are compared with."""
    if len(directories) < 2:
        raise TrisectError("a comparison needs at least two runs; name another run directory.")
    return render_views([RunView.of(directory) for directory in directories])


def render_views(runs: Sequence[RunView]) -> str:
    """Give one page of several runs that were read."""
    title = f"{len(runs)} runs beside each other"
    first = f"All ratios are to the first, {runs[0].name}. All charts of a kind have the same axes."
    return _page(title, first, Markup(""), comparison(runs), Markup(""))


def _page(title: str, subtitle: str, tiles: Markup, sections: Iterable[Section], end: Markup) -> str:
    script = "".join(_asset(name) for name in _SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # nothing is fetched, and no script runs but this one, whatever a file of the run says
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    kept = [(name, heading, content) for name, heading, content in sections if content]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("title", f"{title} · Trisect"),
        tag("style", Markup(_asset("report.css"))),
    )
    main = tag(
        "main",
        tag(
            "header",
            tag("div", tag("h1", title), tag("p", subtitle, class_="sub")),
            tag("button", "Dark or light", type="button", id="theme", aria_pressed="false"),
        ),
        tag("nav", (tag("a", heading, href=f"#{name}") for name, heading, _ in kept), aria_label="Parts of this page"),
        tag("noscript", note("Charts need JavaScript. Without it, each has its sentence and its table.")),
        tiles,
        (tag("section", tag("h2", heading), content, id=name, aria_label=heading) for name, heading, content in kept),
        end,
    )
    body = tag("body", main, tag("div", id="tip", role="status", aria_live="polite"), tag("script", Markup(script)))
    return "<!doctype html>" + tag("html", head, body, lang="en")


@cache
def _asset(name: str) -> str:
    return resources.files("trisect.report").joinpath("assets", name).read_text(encoding="utf-8")


def _subtitle(run: RunView) -> str:
    model, data = run.config["model"], run.config["data"]
    source = data.get("name") or data.get("path") or data.get("generate") or data.get("object")
    epochs = run.config["train"]["epochs"]
    state = "finished"
    if run.summary.at("stopped"):
        state = f"stopped after {len(run.records)} of {epochs} epochs"
    elif not run.finished:
        state = f"not finished, {len(run.records)} of {epochs} epochs so far"
    elif run.summary.at("stopped_early").plain is True:
        state = "finished, stopped early"
    restarts = run.summary.at("restarts").count()
    if restarts:
        state += f", started again {counted(restarts, 'time')} after faults"
    depth = f", {model['layers']} layers of {model['hidden']}" if "layers" in model and "hidden" in model else ""
    return f"{model['name']}{depth}, {run.config['task']['name']} on {source}; {state}."


def _tiles(run: RunView) -> Markup:
    summary = run.summary
    tiles: list[tuple[str, str]] = []
    monitor = (summary.at("monitor").text() or "").rpartition(".")[2]
    for split in ("test", "val"):
        measures = {
            name: v for name, plain in summary.at("metrics", split).items() if (v := plain.number()) is not None
        }
        name = (
            monitor if monitor in measures and monitor != "loss" else next((k for k in measures if k != "loss"), None)
        )
        if name is not None:
            tiles.append((number(measures[name]), f"{split} {measure_name(name)}"))
    if run.records:
        last = run.records[-1].at("loss").number()
        tiles.append(("–" if last is None else number(last), "last training loss"))
        tiles.append((f"{len(run.records):,}", "epoch" if len(run.records) == 1 else "epochs"))
    best = summary.at("best_epoch").text()
    if best:
        tiles.append((best[:12], "best epoch"))
    median = summary.at("seconds_per_epoch", "median").number()
    if median is not None:
        tiles.append((seconds(median), "an epoch (median)"))
    peaks = summary.at("memory", "peak_rss_bytes").numbers()
    if peaks:
        tiles.append((size(max(peaks)), "peak memory of a rank" if len(peaks) > 1 else "peak memory"))
    sent = summary.at("communication", "bytes_per_epoch").number()
    if sent is not None and run.axes.world > 1:
        tiles.append((size(sent), "sent an epoch"))
    computing = run.computing()
    if computing is not None and run.axes.world > 1:
        tiles.append((share(computing), "of all ranks' time is computing"))
    parameters = summary.at("parameters").count()
    if parameters is not None:
        tiles.append((f"{parameters:,}", "parameters"))
    shown = [tag("div", tag("b", value), tag("span", name), class_="tile") for value, name in tiles]
    return tag("div", shown, class_="tiles") if shown else Markup("")


def _curves(run: RunView) -> Iterable[Markup | None]:
    """Draw the losses, then each measure, its splits as lines."""
    best = run.summary.at("best_epoch").count()
    loss = [Series("train", 0, run.points("loss"))]
    loss += [Series(split, COLOURS[split], run.points(split, "loss")) for split in ("val", "test")]
    yield lines("Loss", loss, mark=best, log=True)
    names: dict[str, None] = {}
    for record in run.records:
        for split in COLOURS:
            measures = record.at(split).items()
            names.update(dict.fromkeys(k for k, v in measures if k != "loss" and v.number() is not None))
    for name in list(names)[:12]:
        series = [Series(split, colour, run.points(split, name)) for split, colour in COLOURS.items()]
        series = [each for each in series if each.points]
        title = measure_name(name)
        title = f"{title[:1].upper()}{title[1:]}" + (f" on {series[0].name}" if len(series) == 1 else "")
        yield lines(title, series, mark=best)


def _epoch_times(run: RunView) -> Markup | None:
    return lines("Time of an epoch", [Series("epoch", 0, run.points("seconds"))], unit="seconds", from_zero=True)


def _cut(run: RunView) -> Markup:
    box = box_of(run)
    data = box_data(run, box)
    axes, world = data["axes"], run.axes.world
    said = f"{axes[0]}; {axes[1]}; {axes[2]}."
    said += " The whole box is on one rank." if world == 1 else f" The colours are the {world} ranks."
    if not box.exact:
        said += " The sizes are not known, so that equal shares are drawn."
    title = "The box: vertices × layers × time"
    drawn = figure(title, data, text=said, alternative=rank_table(run, box), beside=True, wide=True)
    return join((drawn, tag("div", partition(run), staleness(run), class_="two")))


def _costs(run: RunView) -> Markup:
    if not run.summary:
        return note("These figures come when the run has ended.")
    return tag("div", predictions(run), communication(run), memory(run), class_="two")


def _settings(run: RunView) -> Markup:
    layout = run.summary.at("layout").plain if run.summary else run.config["layout"]
    rows: list[tuple[str, Any]] = [("layout", layout)]
    if isinstance(layout, Mapping):  # one chunk reads no history
        rows = [(str(k), v) for k, v in layout.items() if k != "history" or layout.get("chunks") != 1]
    rest = {key: value for key, value in run.config.items() if key != "layout"}
    version = run.summary.at("version").text()
    told = [] if version is None else [f"Trisect {version[:40]}, {counted(run.axes.world, 'rank')}."]
    return tag(
        "div",
        tag(
            "div",
            tag("h3", "Layout"),
            table(["", "value"], [(key, _setting(value)[:400]) for key, value in rows], caption="Layout", wide=True),
            map(note, told),
            class_="card",
        ),
        tag(
            "div",
            tag("h3", "config.yaml"),
            tag("pre", yaml.safe_dump(rest, sort_keys=False), tabindex=0, aria_label="config.yaml"),
            class_="card",
        ),
        class_="two",
    )


def _setting(value: Any) -> str:
    """Give a setting as text: its parts after each other, yes and no."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_setting(part)}" for key, part in value.items())
    return {True: "yes", False: "no", None: "none"}[value] if value is None or isinstance(value, bool) else str(value)


def _left_out(run: RunView) -> Markup:
    """Say what the run directory has and the page does not show."""
    parts = [
        "the actions of other epochs than the one drawn, and of evaluations (trace.json and events/ have them)",
        "the parameters (checkpoints/)",
    ]
    figures = ("loss", "train", "val", "test")
    told = (value for record in run.records for name, value in record.mapping().items() if name in figures)
    lost = sum(1 for value in told for each in _figures(value) if each is None or not math.isfinite(each))
    if lost:
        parts.append(f"{counted(lost, 'value')} that {'is' if lost == 1 else 'are'} not finite (metrics.jsonl)")
    return note(f"Left out here: {'; '.join(parts)}.")


def _figures(value: Any) -> Iterable[float | None]:
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _figures(inner)
    elif value is None or isinstance(value, float):
        yield value
