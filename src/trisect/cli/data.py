"""`trisect data`: named data sets, graphs in files, ingestion and generators."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from trisect.cli.source import DataDirOption
from trisect.data import describe
from trisect.data.formats.store import MANIFEST, check_free, read_directory, write_directory
from trisect.data.generators.generate import GENERATORS, generate
from trisect.data.ingest.encoding import Encoding
from trisect.data.ingest.ingest import ingest as ingest_table
from trisect.data.load import load
from trisect.data.named import DATA_VARIABLE, NAMED, data_directory
from trisect.data.records import Record, TimelineRecord
from trisect.errors import ConfigError, DataError

app = typer.Typer(
    help="Look at data sets, read tables, generate graphs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Out = Annotated[Path, typer.Option("--out", "-o", help="The graph directory to write, new or empty.")]


@app.command("list")
def list_sets(data_dir: DataDirOption = None) -> None:
    """List the generators and the named data sets.

    Of the named sets it is said which ones are in your data folder.
    """
    console = Console()
    directory = data_directory(data_dir)
    present = {path.stem for path in directory.glob("*.npz")} if directory is not None and directory.is_dir() else set()
    where = f"in {directory}" if directory is not None else f"(no data directory: give --data-dir or {DATA_VARIABLE})"
    sets = Table(title=f"Data sets {where}", title_justify="left", box=None, pad_edge=False)
    for heading in ("name", "found", "kind", "task", "description"):
        sets.add_column(heading, overflow="fold")
    for item in NAMED.values():
        kind = "timeline" if item.timeline else "static"
        sets.add_row(item.name, "yes" if item.name in present else "no", kind, item.task, item.description)
    for name in sorted(present - set(NAMED)):
        sets.add_row(name, "yes", "", "", "")
    console.print(sets)
    made = Table(title="\nGenerators", title_justify="left", box=None, pad_edge=False)
    for heading in ("name", "kind", "description", "arguments"):
        made.add_column(heading, overflow="fold")
    for generator in GENERATORS.values():
        arguments = ", ".join(f"{name}={argument.default}" for name, argument in generator.arguments.items())
        made.add_row(generator.name, "timeline" if generator.timeline else "static", generator.description, arguments)
    console.print(made)


@app.command()
def info(
    source: Annotated[
        str, typer.Argument(metavar="NAME|PATH", help="A named set, a graph directory, an npz or a table.")
    ],
    data_dir: DataDirOption = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="How to read it, such as period=1d; may be given several times.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare every array of a graph directory with its SHA-256.")
    ] = False,
) -> None:
    """Show how large a graph is.

    Shown are vertices, edges, degrees, steps, classes and memory.
    """
    options = parse_settings(settings or [])
    path = Path(source).expanduser()
    named = source in NAMED or not path.exists()
    if named and (path.suffix or path.name != source):
        raise DataError(f"{source} does not exist; check the path, or give the name of a data set (trisect data list).")
    if verify:
        if named or not (path / MANIFEST).is_file():
            raise DataError(f"--verify needs a graph directory; {source} is none.")
        read_directory(path, verify=True)
    record = load({"name" if named else "path": source, **options}, data_dir)
    show(record, source)


def show(record: Record, title: str) -> None:
    """Print what a record holds."""
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    timeline = isinstance(record, TimelineRecord)
    if isinstance(record.meta.get("columns"), dict):
        table.add_row("columns", ", ".join(f"{role} {name!r}" for role, name in record.meta["columns"].items()))
    kind = "undirected" if record.undirected else "directed"
    table.add_row("kind", f"{'timeline' if timeline else 'static graph'}, {kind}")
    table.add_row("vertices", f"{record.vertices:,}")
    table.add_row("events" if timeline else "edges", f"{len(record.src):,}")
    degree = describe.degrees(record)
    spread = f"mean {degree.mean:.2f}, median {degree.median:g}, highest {degree.top:,}"
    table.add_row("degree", f"{spread}, isolated vertices {degree.isolated:,}")
    if isinstance(record, TimelineRecord):
        counts = describe.events_per_step(record)
        period = f", period {record.meta['period']}" if "period" in record.meta else ""
        table.add_row("steps", f"{record.steps:,}{period}")
        if record.steps:
            between = f"{int(counts.min()):,} .. {int(counts.max()):,}, mean {counts.mean():,.1f}"
            table.add_row("events per step", f"{between}\n{describe.sparkline(counts)}")
        if record.edge_y is not None:
            table.add_row("edge classes", describe.class_counts(record.edge_y, record.meta.get("edge_classes")))
    if types := getattr(record, "vertex_types", ()):
        table.add_row("vertex types", ", ".join(f"{t.name} {t.vertices:,} ({t.features:,} features)" for t in types))
    if record.relation is not None:
        table.add_row("relations", describe.class_counts(record.relation, record.relations))
    if record.x is not None:
        table.add_row("features", " x ".join(f"{n:,}" for n in record.x.shape) + _columns(record, "vertices"))
    if record.edge_x is not None:
        table.add_row("edge features", f"{record.edge_x.shape[1]:,}{_columns(record, 'edges')}")
    if record.y is not None:
        if record.y.dtype.kind in "iu":
            table.add_row("classes", describe.class_counts(record.y, record.meta.get("classes")))
        else:
            table.add_row("targets", describe.target_range(record.y))
    if record.splits:
        splits = (f"{name} {int(mask.sum()):,}" for name, mask in record.splits.items())
        table.add_row("splits", ", ".join(splits))
    if record.names is not None and len(record.names):
        table.add_row("ids", f"{record.names[0]} .. {record.names[len(record.names) - 1]}")
    table.add_row("weights", "yes" if record.weight is not None else "no")
    table.add_row("memory", f"{describe.memory(record) / 2**20:,.1f} MiB")
    Console().print(table)


def _columns(record: Record, part: str) -> str:
    """Which columns the features come from, where they come from a table."""
    stored = record.meta.get("encoding", {}).get(part)
    if stored is None:
        return ""
    features = Encoding.of(stored).features
    rest = f", and {len(features) - 12} more" if len(features) > 12 else ""
    return f" ({', '.join(features[:12])}{rest})"


@app.command()
def ingest(
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="The table of edges: CSV, TSV, text (each also .gz) or Parquet.")
    ],
    out: Out,
    src: Annotated[str | None, typer.Option(help="The column of edge sources. [default: the first]")] = None,
    dst: Annotated[str | None, typer.Option(help="The column of edge targets. [default: the second]")] = None,
    time: Annotated[
        str | None, typer.Option(help="The column of times, numbers or ISO dates; makes a timeline.")
    ] = None,
    period: Annotated[
        str | None, typer.Option(help="With --time: the length of a step, like 1d, 12h, 30min, 1w, or a number.")
    ] = None,
    weight: Annotated[str | None, typer.Option(help="The column of edge weights.")] = None,
    labels: Annotated[
        Path | None, typer.Option(help="Labels of vertices: a table of ids and labels, or a .npy file.")
    ] = None,
    vertices: Annotated[
        list[str] | None,
        typer.Option(
            help="A table of vertices: their ids, and columns that become features; or TYPE=FILE, several times."
        ),
    ] = None,
    identity: Annotated[
        str | None, typer.Option("--id", help="The column of ids in --vertices or --labels. [default: the first]")
    ] = None,
    label_column: Annotated[
        str | None, typer.Option("--label-column", help="The column of labels in --vertices or --labels.")
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            help="The columns of --vertices that become features, like age,country:category. [default: all others]"
        ),
    ] = None,
    vertex_time: Annotated[
        str | None,
        typer.Option("--vertex-time", help="The column of times in --vertices, where features change with time."),
    ] = None,
    edge_label: Annotated[
        str | None, typer.Option("--edge-label", help="The column of edge classes, for edge classification.")
    ] = None,
    relation: Annotated[
        str | None, typer.Option(help="The column of relations: which kind each edge is of (cites, writes, ...).")
    ] = None,
    edge_features: Annotated[
        str | None,
        typer.Option("--edge-features", help="The columns that become features of edges, like amount,channel."),
    ] = None,
    categories: Annotated[
        int, typer.Option(help="How many categories of a column get a feature of their own; the others share one.")
    ] = 32,
    on_missing: Annotated[
        str, typer.Option("--on-missing", help="What to do with bad rows: refuse, drop, or zero (for missing weights).")
    ] = "refuse",
    self_loops: Annotated[
        str, typer.Option("--self-loops", help="What to do with rows whose two ends are one vertex: keep, or drop.")
    ] = "keep",
    undirected: Annotated[bool, typer.Option("--undirected", help="Count each row in both directions.")] = False,
    time_unit: Annotated[
        str, typer.Option("--time-unit", help="The unit of times that are numbers: s, ms, us, ns.")
    ] = "s",
    encoding: Annotated[
        Path | None,
        typer.Option(
            "--encoding",
            help="Encode columns with the means, scales and categories of this graph directory, and none of the"
            " table's own, to predict with a model trained on it.",
        ),
    ] = None,
) -> None:
    """Turn tables into a graph directory.

    Needed is a table of edges; a table of vertices may bring features and labels.
    """
    with progress_bar(f"reading {table.name}") as progress:
        target = ingest_table(
            table,
            src,
            dst,
            time,
            period,
            weight,
            labels,
            out=out,
            vertices=vertex_tables(vertices or []),
            id=identity,
            label_column=label_column,
            features=features,
            vertex_time=vertex_time,
            edge_label=edge_label,
            relation=relation,
            edge_features=edge_features,
            categories=categories,
            on_missing=on_missing,
            self_loops=self_loops,
            undirected=undirected,
            time_unit=time_unit,
            encoding=encoding,
            progress=progress,
        )
    record = read_directory(target)
    show(record, str(out))
    for note in record.meta.get("notes", []):
        typer.echo(note)


def vertex_tables(given: list[str]) -> Path | dict[str, Path] | None:
    """`["accounts.csv"]` → the path; `["author=a.csv", "paper=p.csv"]` → the path of each type."""
    if len(given) <= 1 and not (given and "=" in given[0] and not Path(given[0]).exists()):
        return Path(given[0]) if given else None
    tables: dict[str, Path] = {}
    for text in given:
        kind, equals, path = text.partition("=")
        if not equals or not kind or not path or kind in tables:
            raise ConfigError(f"--vertices is {text!r}, one of {len(given)}; write each as TYPE=FILE, a type once.")
        tables[kind] = Path(path)
    return tables


@contextlib.contextmanager
def progress_bar(text: str) -> Iterator[Callable[[float], None] | None]:
    """Show a bar on the terminal's error stream, which takes fractions of 1; None where there is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(text, total=1.0)
        yield lambda fraction: bar.update(task, completed=fraction)


@app.command()
def synthesize(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A generator; see `trisect data list`.")],
    out: Out,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="An argument of the generator, such as vertices=5000; may be given several times."),
    ] = None,
) -> None:
    """Generate a graph directory."""
    check_free(out.absolute())
    arguments = parse_settings(settings or [])
    record = generate(name, **arguments)
    record.meta["arguments"] = arguments
    show(read_directory(write_directory(record, out)), str(out))


def parse_settings(settings: list[str]) -> dict[str, Any]:
    """`["vertices=5000", "symmetrise=true"]` → a mapping, values read as YAML reads them."""
    from trisect.settings.reading import read_yaml

    parsed: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set is {setting!r}; write it as key=value.")
        parsed[key.strip()] = read_yaml(value, f"The value of --set {key}")
    return parsed
