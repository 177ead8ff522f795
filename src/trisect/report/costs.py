"""What a run cost: bytes by axis beside the formula, memory by component, the quality of its cuts, staleness."""

from __future__ import annotations

from collections.abc import Callable

from trisect.report.figures import Series, lines
from trisect.report.markup import Markup, bars, join, note, table, tag
from trisect.report.quantities import counted, number, share, size
from trisect.report.run_view import RunView

PARTS = (0, 1, 2, 3, 4, 5, 8, 9, 10)  # colours of components
AXES = {
    "vertex": "between parts",
    "layer": "between stages",
    "time": "between runs of steps",
    "weights": "gradients of the parameters",
}
_COMPONENTS = {
    "libraries": "libraries (Python, torch)",
    "parameters": "parameters and their gradients",
    "optimiser": "optimiser",
    "features": "features",
    "adjacency": "adjacency",
    "activations": "activations kept for backward",
    "gradients": "gradients on their way back",
    "history": "history of earlier epochs",
    "halo": "rows of other parts",
    "carries": "states between blocks and runs",
    "snapshots": "snapshots",
    "messages": "messages between ranks",
    "labels": "labels and masks",
    "reading": "edges as they were read",
}


def communication(run: RunView) -> Markup:
    """Give the bytes of an epoch by axis, beside the formula's, and by rank."""
    sent = run.summary.at("communication")
    title = tag("h3", "Bytes sent an epoch")
    if run.axes.world == 1:
        return tag("div", title, note("One rank: nothing is sent."), _transfer(run), class_="card")
    planned: dict[str, float] = {}
    kinds: dict[str, list[str]] = {}
    for key, value in run.plan.at("bytes_per_epoch").items():
        axis, _, kind = key.partition("/")
        planned[axis] = planned.get(axis, 0.0) + (value.number() or 0.0)
        kinds.setdefault(axis, []).append(f"{kind.replace('-', ' ')} {size(value.number() or 0.0)}")
    rows, drawn = [], []
    for axis, value in sent.at("by_axis").items():
        count = value.number()
        formula = planned.get(axis, 0.0) if planned else None
        shown = ["–" if each is None else size(each) for each in (formula, count)]
        rows.append([axis, *shown, _difference(formula, count)])
        if count:
            drawn.append((axis, [("c0", count, size(count))], size(count)))
    total, formula = sent.at("bytes_per_epoch").number(), sent.at("formula_bytes_per_epoch").number()
    shown = ["–" if value is None else size(value) for value in (formula, total)]
    rows.append(["together", *shown, _difference(formula, total)])
    parts = "; ".join(f"{axis} ({AXES.get(axis, 'other')}): {', '.join(own)}" for axis, own in kinds.items())
    by_rank = sent.at("by_rank").numbers()
    return tag(
        "div",
        title,
        bars(drawn, caption="Bytes sent an epoch, by axis"),
        table(["axis", "by formula", "counted", "difference"], rows, caption="Bytes by axis, beside the formula"),
        note(f"By kind: {parts}.") if parts else None,
        note(
            "By axis the formula is that of a planned epoch. The sum is that of the last epoch, in which a loss may"
            " also fetch what it samples."
        )
        if not planned or (formula is not None and sum(planned.values()) != formula)
        else None,
        tag(
            "details",
            tag("summary", "By rank"),
            bars(
                [
                    (f"rank\N{NO-BREAK SPACE}{k}", [("c3", value, size(value))], size(value))
                    for k, value in enumerate(by_rank)
                ],
                caption="Bytes sent an epoch, by rank",
            ),
        )
        if by_rank
        else None,
        _transfer(run),
        class_="card",
    )


def _difference(formula: float | None, count: float | None) -> str:
    if formula is None or count is None:
        return "–"
    return "none" if formula == count else f"{'+' if count > formula else '-'}{size(abs(count - formula))}"


def _transfer(run: RunView) -> Markup | None:
    full, sent = (run.summary.at("transfer", key).number() for key in ("full_bytes", "sent_bytes"))
    if not full or sent is None:
        return None
    return note(f"Snapshots brought to the device: {size(sent)} of {size(full)} ({share(sent / full)}).")


def memory(run: RunView) -> Markup:
    """Give the memory of each rank, and what the planner expected it to be made of."""
    peaks = run.summary.at("memory", "peak_rss_bytes").numbers()
    own = run.summary.at("memory", "peak_pss_bytes").numbers()
    parts = [
        (name, value)
        for name, plain in run.plan.at("expected", "memory").items()
        if name != "total" and (value := plain.number() or 0.0) > 0
    ]
    parts.sort(key=lambda pair: -pair[1])
    total = sum(value for _, value in parts)
    first, rest = parts[:9], parts[9:]
    coloured = [(f"c{PARTS[k]}", _COMPONENTS.get(name, name), value) for k, (name, value) in enumerate(first)]
    if rest:
        coloured.append(("c6", "all else", sum(value for _, value in rest)))
    pieces = [(colour, value, f"{name}: {size(value)}") for colour, name, value in coloured]
    rows: list[tuple[str, list[tuple[str, float, str]], str]] = []
    if parts:
        rows.append(("predicted", pieces, size(total)))
    rows += [
        (f"rank\N{NO-BREAK SPACE}{k}", [("c11", value, size(value))], size(value)) for k, value in enumerate(peaks)
    ]
    caption = "Peak memory: predicted by component, and measured of each rank"
    drawn = [bars(rows, [(colour, name) for colour, name, _ in coloured], caption=caption)]
    own_parts = [piece for piece, (_, name, _) in zip(pieces, coloured, strict=True) if "libraries" not in name]
    if 0 < len(own_parts) < len(pieces):
        without = sum(value for _, value, _ in own_parts)
        caption = "Predicted memory by component, without the libraries"
        drawn += [tag("h4", caption), bars([("predicted", own_parts, size(without))], caption=caption)]
    said = []
    if own and run.axes.world > 1:
        said.append(f"Together {size(sum(own))}: a page that ranks share counts once.")
    if parts:
        said.append("The prediction by component is that of the fullest rank.")
    details = None
    if parts:
        components = [[_COMPONENTS.get(name, name), size(value), share(value / total)] for name, value in parts]
        details = tag(
            "details",
            tag("summary", "Components as a table"),
            table(["component", "predicted", "share"], components, caption="Memory by component"),
        )
    return tag(
        "div",
        tag("h3", "Peak memory"),
        drawn,
        note(" ".join(said)) if said else None,
        details,
        class_="card",
    )


_QUALITY: dict[str, tuple[str, Callable[[float], str]]] = {
    "volume": ("rows sent for an aggregation", lambda value: f"{value:,.0f}"),
    "vertex_imbalance": ("vertices of the largest over the mean", lambda value: f"{value:.3f}"),
    "edge_imbalance": ("edges of the largest over the mean", lambda value: f"{value:.3f}"),
    "cut": ("edges that are cut", share),
}


def partition(run: RunView) -> Markup | None:
    """Give the quality of the cuts: parts, chunks, runs."""
    columns = {name: value for name, value in run.summary.at("partition").items() if value.items()}
    if not columns:
        return None
    keys = list(dict.fromkeys(key for value in columns.values() for key, _ in value.items()))
    rows = []
    for key in keys[:40]:
        title, show = _QUALITY.get(key, (key.replace("_", " "), number))
        values = [value.at(key).number() for value in columns.values()]
        if any(value is not None for value in values):
            rows.append([title, *("–" if value is None else show(value) for value in values)])
    if not rows:
        return None
    return tag(
        "div",
        tag("h3", "Quality of the cuts"),
        table(["", *columns], rows, caption="Quality of the cuts"),
        note("An imbalance of 1 is perfect. Fewer edges that are cut mean fewer rows that cross."),
        class_="card",
    )


def staleness(run: RunView) -> Markup | None:
    """Say what was read stale, and what the guard did about it."""
    if not run.finished:
        return None
    plain = run.summary.at("staleness")
    title = tag("h3", "Staleness")
    if not plain.items():
        return tag("div", title, note("None: every epoch is exact, with the result of one process."), class_="card")
    chunks = plain.at("chunks").count()
    told = ["Rows of chunks that are not done yet are read as they were in earlier epochs."]
    if chunks:
        told[0] = f"There are {counted(chunks, 'chunk')}. {told[0]}"
    reads, drift = plain.at("historical_reads").number(), plain.at("drift").number()
    if reads is not None:
        told.append(f"That is {share(reads)} of all reads.")
    if drift is not None:
        told.append(f"These rows lie {share(drift)} from the fresh ones.")
    loss = plain.at("loss")
    numbers = [loss.at(key).number() for key in ("epoch", "exact", "stale")]
    if None not in numbers:
        epoch, exact, stale = (value or 0.0 for value in numbers)
        told.append(f"Training loss at epoch {epoch:.0f}: exact {exact:.4g}, stale {stale:.4g}.")
    actions = [_guard_words(each.plain) for each in plain.at("stepped_in")][:20]
    checks = plain.at("checks").count()
    if checks and not actions:
        told.append(f"The guard looked {counted(checks, 'time')} and never had to step in.")
    chart = lines(
        "Training loss, stale beside exact",
        [
            Series("stale", 1, run.points("guard", "stale")),
            Series("exact", 0, run.points("guard", "exact")),
        ],
    )
    return join((tag("div", title, note(" ".join(told)), map(note, actions), class_="card"), chart))


def _guard_words(action: object) -> str:
    plain = action if isinstance(action, dict) else {}
    words = {key: str(plain.get(key, "?"))[:200] for key in ("epoch", "why", "back_to", "then")}
    return (
        f"The guard stepped in at epoch {words['epoch']} ({words['why']}) and went back to epoch {words['back_to']};"
        f" then {words['then']}."
    )
