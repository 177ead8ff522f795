"""`docs/scaling.md` and its figures, from the numbers that `trisect bench papers` works out."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from trisect.plan.parts import effective_degree, halo_share
from trisect.plan.presets import PRESETS
from trisect.plan.quantities import show_seconds
from trisect_bench._curves import Curve, chart
from trisect_bench._paper_figures import (
    DEPTH,
    LAYOUTS,
    ROWS,
    SPEEDUP,
    STRONG,
    STRONG_HALO,
    TOTAL_SAVED,
    TRANSFER_RATIO,
)
from trisect_bench._paper_layers import FITTED, PRESET
from trisect_bench._scales import INTERNET, INTERNET_CLUSTER, INTERNET_DEVICES

Numbers = dict[str, Any]
_NAMES = {"gcn": "GCN", "sage": "GraphSAGE", "gcnii": "GCNII", "resgcn+": "ResGCN+"}
_NAMES |= {"cd-gcn": "CD-GCN", "tm-gcn": "TM-GCN", "evolvegcn-o": "EvolveGCN-O"}
# What counts as near: of seconds, and of bytes.
NEAR, EXACT = 0.30, 0.02


def page(numbers: Numbers) -> str:
    """Give the page."""
    parts = [_prose(_HEAD), *_pipeline(numbers["pipeline"]), *_timeline(numbers["timeline"]), *_users(numbers["users"])]
    return "\n".join([*parts, *_internet(numbers["internet"])]) + "\n"


def charts(numbers: Numbers) -> dict[str, str]:
    """Give the figures, by their file name."""
    pipeline = numbers["pipeline"]
    result = {
        "strong.svg": chart(
            "reddit, GCN with 32 layers",
            _beside(pipeline["strong"], STRONG),
            x="GPUs",
            y="seconds an epoch",
        )
    }
    for graph, curves in pipeline["depth"].items():
        result[f"depth-{graph}.svg"] = chart(
            f"{graph}, GCNII on 8 GPUs", _beside(curves, DEPTH[graph]), x="layers", y="seconds an epoch"
        )
    result["timeline.svg"] = chart(
        "steps dealt to GPUs: speed against one GPU",
        [
            Curve(
                _NAMES[row["model"]],
                {int(gpus): row["seconds"]["1"] / each for gpus, each in row["seconds"].items()},
                number,
            )
            for number, row in enumerate(numbers["timeline"]["scaling"])
        ],
        x="GPUs",
        y="times faster",
        width=640,
    )
    users = numbers["users"]
    marks = {number: float(user["typical"]) for number, user in enumerate(users)}
    for name, title, hours in (
        ("users-seconds.svg", "seconds an epoch", False),
        ("users-cost.svg", "device-hours for 100 epochs", True),
    ):
        curves = [Curve(user["user"], _points(user, hours=hours), number) for number, user in enumerate(users)]
        result[name] = chart(title, curves, x="devices", y=title, marks=marks, width=640)
    return result


def _points(user: Numbers, *, hours: bool) -> dict[float, float]:
    """Give a user's seconds of an epoch by the number of devices, or the device-hours of a hundred."""
    return {
        float(point["devices"]): point["seconds"] * (point["devices"] / 36.0 if hours else 1.0)
        for point in user["points"]
        if point["layout"]
    }


def _beside(ours: dict[str, dict[str, float]], paper: dict[str, dict[int, float]]) -> list[Curve]:
    """Our curves as lines, the paper's points as circles of the same colour."""
    curves = []
    for number, (kind, points) in enumerate(ours.items()):
        curves.append(Curve(f"{kind}, planner", {int(x): y for x, y in points.items()}, number))
        curves.append(Curve(f"{kind}, paper", {float(x): y for x, y in paper[kind].items()}, number, measured=True))
    return curves


def near(rows: Iterable[Numbers], key: str, limit: float) -> tuple[int, int]:
    """Say how many predictions of all lie within a share of what was measured."""
    errors = [
        abs(mine / paper - 1.0) for row in rows for mine, paper in zip(row[key], row[f"paper_{key}"], strict=True)
    ]
    return sum(error <= limit for error in errors), len(errors)


def winners(rows: Sequence[Numbers]) -> int:
    """Say of how many rows the fastest layout is the one that was measured to be."""
    return sum(row["winner"] == row["paper_winner"] for row in rows)


_HEAD = """# What the planner says of larger systems

Nothing on this page was measured here. The [planner](planner.md) is asked for what two papers measured on
clusters that we do not have, with their data described by a few numbers (`data:
{vertices: …, edges: …, halo: …}`); then for systems that nobody has yet. `trisect bench papers --set
write=docs` makes this page, its figures and `scaling/numbers.json` again; `--set only=pipeline` prints one
section.
"""


def _prose(text: str) -> str:
    """Wrap the paragraphs of a text; headings stand for themselves."""
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    return (
        "\n\n".join(
            part if part.startswith("#") else textwrap.fill(part, 130, break_long_words=False, break_on_hyphens=False)
            for part in paragraphs
            if part
        )
        + "\n"
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "|".join("---" for _ in head) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


# GNNPipe


def _pipeline(numbers: Numbers) -> Iterator[str]:
    rows = numbers["rows"]
    own, more = rows[: len(ROWS)], rows[len(ROWS) :]
    constants, device = numbers["constants"], PRESETS[PRESET].device
    bytes_near, bytes_all = near(rows, "gib", EXACT)
    seconds_near, seconds_all = near(own, "seconds", NEAR)
    held = [row for k, row in enumerate(rows) if k >= len(ROWS) or row["model"] not in FITTED]
    held_near, held_all = near(held, "seconds", NEAR)
    yield _prose(f"""## GNNPipe: layers cut over 8 GPUs

GNNPipe (arXiv 2308.10087) cuts deep models by layer and lets chunks of vertices go through the stages. Its
authors' logs are public (github.com/dreaming-panda/Mithril_MultiGPU, branch `dp`, `nsdi2023`): seconds and
bytes of an epoch for four models on five graphs, each cut by vertex over 8 parts (*graph*), by layer into 8
stages with 32 chunks (*pipeline*), and into 4 stages of two parts with 16 chunks each (*hybrid*), on two hosts
of four RTX A5000 with 60 Gb/s between them. Here: the preset `{PRESET}`, the layouts `vertex=8`,
`layer=8,chunks=32` and `layer=4,vertex=2,chunks=16`, 32 layers.

**What went in.** Vertices, entries, features, classes and widths; the rows of other parts that 8 and 2 parts
read, which follow from the logged bytes of one model (a number for each graph and number of parts). Of the
hardware, three rates of the device were fitted, to the rows of GCN and ResGCN+ in the table: rows are gathered
{constants["gather"]:.3g} times as fast as the preset's guess ({_rate(device.gather[256] * constants["gather"])}
at 256 bytes and more: most rows come from the cache), dense products run at {constants["flops"]:.3g} times
({constants["flops"] * device.flops / 1e12:.3g} TFLOP/s), and half a layer costs
{1e6 * constants["half"] * device.half:.0f} µs whatever its size. `trisect bench papers --set fit=true` finds
them again, between a quarter and eight times the preset's. Links are the preset's.

**What comes out.** Bytes are within 2 % in {bytes_near} of {bytes_all}; the fastest layout is right in
{winners(own)} of the {len(own)} rows of the paper's table, and in {winners(more)} of the {len(more)} of
ogbn-arxiv; seconds are within 30 % in {seconds_near} of the table's {seconds_all}, and in {held_near} of the
{held_all} that nothing was fitted to.
""")
    head = ["graph, model"]
    for kind in LAYOUTS:
        head += [f"{kind} s", "paper", "error"]
    head += ["fastest", "paper"]
    yield _table(head, (_seconds_row(row) for row in rows))
    yield _table(
        ["graph, model", *(word for kind in LAYOUTS for word in (f"{kind} GiB", "paper", "error"))],
        (_bytes_row(row) for row in rows),
    )
    yield "".join(_misses(rows))
    yield _strong_text(numbers)
    yield "![strong scaling](scaling/strong.svg)\n"
    yield _prose(f"""Depth, GCNII on 8 GPUs, 8 to 128 layers: the pipeline's lead grows with depth since its
bytes do not. It is faster than the cut by vertex, by the planner and by the paper:
{_crossings(numbers["depth"])}.
""")
    yield "\n".join(f"![depth, {graph}](scaling/depth-{graph}.svg)" for graph in numbers["depth"]) + "\n"


def _rate(value: float) -> str:
    return f"{value / 1e12:.2f} TB/s" if value >= 1e12 else f"{value / 1e9:.0f} GB/s"


def _seconds_row(row: Numbers) -> list[str]:
    cells = [f"{row['graph']} {_NAMES[row['model']]}"]
    for mine, paper in zip(row["seconds"], row["paper_seconds"], strict=True):
        cells += [f"{mine:.3f}", f"{paper:.3f}", f"{mine / paper - 1.0:+.0%}"]
    mark = "" if row["winner"] == row["paper_winner"] else " ✗"
    return [*cells, row["winner"] + mark, row["paper_winner"]]


def _bytes_row(row: Numbers) -> list[str]:
    cells = [f"{row['graph']} {_NAMES[row['model']]}"]
    for mine, paper in zip(row["gib"], row["paper_gib"], strict=True):
        cells += [f"{mine:.3f}", f"{paper:.3f}", f"{mine / paper - 1.0:+.1%}"]
    return cells


def _misses(rows: Sequence[Numbers]) -> Iterator[str]:
    """Say of which rows the seconds are not near."""
    far = [
        f"{row['graph']} {_NAMES[row['model']]} {kind} ({mine / paper - 1.0:+.0%})"
        for row in rows
        for kind, mine, paper in zip(LAYOUTS, row["seconds"], row["paper_seconds"], strict=True)
        if abs(mine / paper - 1.0) > NEAR
    ]
    yield _prose(f"**Where it misses.** Seconds off by more than 30 %: {', '.join(far) or 'none'}. {_WHY}")


_WHY = """The planner counts as many starts of kernels for a layer of any model, while GNNPipe's ResGCN+ starts
about three times as many as its GCN (by its logs: 400 µs against 140 µs for a layer of a chunk); where chunks
are small (squirrel, flickr, physics) that is most of an epoch. It takes 4/7 of the rows of 8 parts to leave
their host, as chance would have it, while METIS puts parts that share many rows side by side (flickr). It takes
parts to be equal, while GNNPipe's are cut without weights. And it models Trisect's engine, which cuts stages by
work and hides rows on links where it can, not GNNPipe's.
"""


def _strong_text(numbers: Numbers) -> str:
    degree = effective_degree(STRONG_HALO[8], 8)
    guesses = ", ".join(f"{halo_share(parts, degree):.2f} at {parts}" for parts in (2, 4, 16))
    logged = ", ".join(f"{STRONG_HALO[parts]:.2f}" for parts in (2, 4, 16))
    gains = []
    for kind in STRONG:
        ours, paper = numbers["strong"][kind], STRONG[kind]
        gains.append(
            f"{kind} {ours['2'] / ours['16']:.1f} times faster on 16 GPUs than on 2 (paper {paper[2] / paper[16]:.1f})"
        )
    return _prose(f"""Strong scaling of reddit GCN, 1 to 16 GPUs; lines are the planner's, circles the paper's:
{"; ".join(gains)}. The rows that parts read of others are those of the logs ({logged} for each vertex at 2, 4
and 16 parts). From the number at 8 parts alone the planner's rule for data that are not there would say
{guesses}: for a graph as dense as reddit it is too flat.
""")


def _crossings(depth: Numbers) -> str:
    """Say from how many layers on the pipeline is faster, by the planner and by the paper."""
    texts = []
    for graph, curves in depth.items():
        ours = [int(layers) for layers in curves["graph"] if curves["pipeline"][layers] < curves["graph"][layers]]
        paper = [
            layers for layers, seconds in DEPTH[graph]["graph"].items() if DEPTH[graph]["pipeline"][layers] < seconds
        ]
        texts.append(f"{graph} {_from(ours)} (paper {_from(paper)})")
    return ", ".join(texts)


def _from(layers: Sequence[int]) -> str:
    return f"from {min(layers)} layers on" if layers else "never"


# The timeline paper


def _timeline(numbers: Numbers) -> Iterator[str]:
    rows = numbers["scaling"]
    best = max(rows, key=_gain)
    waits = best["waits"] / best["seconds"]["128"]
    yield _prose(f"""## Dynamic graphs: time cut over 128 GPUs

"Efficient Scaling of Dynamic Graph Neural Networks" (SC'21, arXiv 2109.07893) deals the steps of a timeline to
128 V100 in 16 hosts, redistributes rows before and after the recurrent part, and streams the difference of
snapshots from host to device. It reports up to {SPEEDUP:.0f}x on 128 GPUs, transfers up to {TRANSFER_RATIO}x
shorter and up to {TOTAL_SAVED:.0%} less time in all. Its code is not public, and of its data only AML-Sim has a
known number of steps (1 M vertices, 124 M edges, 200 steps), so this is a model of it and no reproduction.

**What went in.** The preset `16x8-v100`; two features, two layers 6 wide; edges that live for 20 steps (the
window in the public code of TM-GCN; the paper's own is not known); as many blocks as the memory asks for. The
planner has no snapshots that stream: their bytes by the formula of the encoding, over 12 GB/s to each GPU, are
added to its seconds. One number is fitted: layers take {numbers["slower"]:.2f} times as long as the data
sheet's rates say, which makes the difference of snapshots save {TOTAL_SAVED:.0%} of an epoch of CD-GCN on one
GPU.

**What comes out.** {_NAMES[best["model"]]} is {_gain(best):.1f} times faster on 128 GPUs than on one; the paper
reports up to {SPEEDUP:.0f}. What is left is mostly the redistribution, {best["gib"]:.0f} GiB an epoch and
{waits:.0%} of its time, which does not shrink with more GPUs than hosts have links for.
""")
    gpus = list(rows[0]["seconds"])
    yield _table(
        ["model", *(f"{count} GPU{'s' if count != '1' else ''}" for count in gpus), "times faster"],
        (
            [_NAMES[row["model"]], *(show_seconds(row["seconds"][count]) for count in gpus), f"{_gain(row):.1f}x"]
            for row in rows
        ),
    )
    yield "![steps dealt to GPUs](scaling/timeline.svg)\n"
    yield from _difference_text(numbers["differences"])
    yield from _alternatives_text(numbers["alternatives"])


def _gain(row: Numbers) -> float:
    seconds = row["seconds"]
    return float(seconds["1"] / seconds["128"])


def _difference_text(rows: Sequence[Numbers]) -> Iterator[str]:
    yield _prose("""**The difference of snapshots**, for CD-GCN: how many times shorter transfers are, and what
that saves of an epoch. The first snapshot of a run is sent whole, so that the more GPUs share the steps, the
less is left to save: it is a technique for few GPUs, or long timelines.
""")
    counts = ("1", "8", "128")
    yield _table(
        ["an edge lives", "bound of the encoding", *(f"{n} GPU{'s' if n != '1' else ''}" for n in counts)],
        (
            [
                f"{row['life']} steps",
                f"{row['bound']:.1f}x",
                *(f"{row[n]['transfer_ratio']:.1f}x, {row[n]['saved']:.0%} saved" for n in counts),
            ]
            for row in rows
        ),
    )


def _alternatives_text(rows: Sequence[Numbers]) -> Iterator[str]:
    yield _prose("""**What other exchanges would give there**, on all 128 GPUs. *carry* hands the state of
chunks of vertices from run to run, *halo* along time the frames of a window; *by columns* is `spatial:
redistribute`; *compact* sends each edge once, with two 32-bit numbers, where the difference sends the values of
all edges that live.
""")
    yield _table(
        ["model", "cut", "computing", "waiting", "GiB", "+ difference", "+ compact", "against the paper's"],
        (
            [
                _NAMES[row["model"]],
                row["name"],
                show_seconds(row["compute"]),
                show_seconds(row["waits"]),
                f"{row['gib']:,.1f}",
                show_seconds(row["seconds"] + row["difference"]),
                show_seconds(row["seconds"] + row["compact"]),
                f"{_paper_total(rows, row) / (row['seconds'] + row['compact']):.2f}x",
            ]
            for row in rows
        ),
    )
    yield _prose("""The rows that parts read of others are a guess here (three tenths of what chance would
give), so that the cuts by vertex are the least certain of these.
""")


def _paper_total(rows: Sequence[Numbers], row: Numbers) -> float:
    """Give the seconds of the paper's own exchange and transfer for the same model."""
    own = next(each for each in rows if each["model"] == row["model"])
    return float(own["seconds"] + own["difference"])


# Four users


def _users(users: Sequence[Numbers]) -> Iterator[str]:
    yield _prose("""## Four users, from 1 to 1,024 devices

What the planner would choose, with all rates from data sheets; a larger circle stands where such a user is
today.
""")
    yield "".join(f"- **{user['user']}**: {user['words']}.\n" for user in users)
    yield "![seconds of an epoch](scaling/users-seconds.svg)\n![device-hours](scaling/users-cost.svg)\n"
    yield _table(
        ["user", "devices", "seconds an epoch", "layout", "mostly"],
        (_user_row(user, point) for user in users for point in _told(user)),
    )


def _told(user: Numbers) -> list[Numbers]:
    """The points of a user that the table shows: the first that fits, today's, and the most."""
    points = user["points"]
    fitting = [point for point in points if point["layout"]]
    typical = [point for point in points if point["devices"] == user["typical"]]
    chosen = [*fitting[:1], *typical, points[-1]]
    return [point for k, point in enumerate(chosen) if point not in chosen[:k]]


def _user_row(user: Numbers, point: Numbers) -> list[str]:
    if not point["layout"]:
        return [user["user"], f"{point['devices']:,}", "does not fit", point["needs"], ""]
    seconds = show_seconds(point["seconds"])
    return [user["user"], f"{point['devices']:,}", seconds, f"`{point['layout']}`", point["bottleneck"]]


# Internet scale


def _internet(rows: Sequence[Numbers]) -> Iterator[str]:
    yield _prose(f"""## 10^9 vertices, 10^11 edges, {INTERNET_DEVICES:,} devices

GraphSAGE, 3 layers 128 wide, 128 features, on {INTERNET_DEVICES:,} devices of `{INTERNET_CLUSTER}`. Everything
hangs on how well the graph can be cut: *halo* is how many rows of other parts {INTERNET_DEVICES:,} parts read
for each vertex. Without a partition of the graph itself nobody knows it; the first row is what the planner
assumes where nothing is said (three tenths of the neighbours that chance would give).
""")
    yield _table(
        ["halo", "layout", "an epoch", "computing", "rows on links", "leave ranks", "memory a device"],
        (_internet_row(row) for row in rows),
    )
    yield from _needs(rows)


def _internet_row(row: Numbers) -> list[str]:
    if not row["layout"]:
        return [f"{row['halo']:.1f}", "none fits", "", "", "", "", f"`{row['needs'].replace(' needs', '` needs', 1)}"]
    memory = ", ".join(f"{name} {size:.1f}" for name, size in row["memory"])
    return [
        f"{row['halo']:.1f}",
        f"`{row['layout']}`",
        show_seconds(row["seconds"]),
        show_seconds(row["compute"]),
        show_seconds(row["communication"]),
        f"{row['tib']:.1f} TiB",
        f"{row['total_memory']:.1f} GiB: {memory}",
    ]


def _needs(rows: Sequence[Numbers]) -> Iterator[str]:
    fitting = [row for row in rows if row["layout"]]
    if not fitting:
        yield "None of these fits.\n"
        return
    worst = fitting[0]
    link = PRESETS[INTERNET_CLUSTER].between.bandwidth * 8 / 1e9
    wanted = link * worst["communication"] / max(worst["compute"], 1e-9)
    yield _prose(f"""What it would need: at a halo of {worst["halo"]:.1f}, a link of {wanted:,.0f} Gb/s from
each host (here {link:,.0f}) for rows to take no longer than computing, or a partition whose halo is smaller by
the same factor. Cutting by columns instead (`spatial: redistribute`) moves 2 rows a vertex and layer whatever
the graph, but needs the whole matrix on each device, {2 * INTERNET.edges * 8 / 1e12:.1f} TB.
Labels, masks and the order of all vertices are on
every rank in this engine (19 bytes a vertex): {19 * INTERNET.vertices / 2**30:.1f} GiB of each device, which a
larger graph could not have. A partitioner for such a graph is not in this repository.
""")
