"""How good the model is: every measure, curves of scores, the confusion of classes, calibration, simple rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trisect.report.figures import Series, figure, lines, side_by_side
from trisect.report.markup import Markup, bars, join, note, table, tag
from trisect.report.quantities import counted, measure_name, number, share
from trisect.report.run_view import RunView
from trisect.report.values import Values
from trisect.train.run.summary import compare_with_rules, is_undefined

SPLITS = ("train", "val", "test")
COLOURS = {"train": 0, "val": 1, "test": 2}
LINES = (0, 1, 2, 3, 5, 4, 8, 9, 10, 11)  # colours that are told apart as lines
_FEW_CLASSES, _MOST_CLASSES = 12, 100


def quality(run: RunView) -> Markup:
    """Give the section on a finished run's quality."""
    return join((_measures(run), simple_rules(run), *_pictures(run, _steps(run))))


class Names:
    """The names of the classes of a run; one that has none is called by its number."""

    def __init__(self, run: RunView) -> None:
        self._names = [each.text() for each in run.scores.at("classes")]

    def __call__(self, index: int | None) -> str:
        """Give the name of a class."""
        name = self._names[index] if index is not None and index < len(self._names) else None
        return f"class {index}" if name is None else name[:40]

    def short(self, index: int) -> str:
        """Give the name of a class, or its number alone."""
        return self(index).removeprefix("class ")[:16]


def _flat(values: Values, classes: Names, name: str = "") -> Iterator[tuple[str, float]]:
    """Give every number of the measures by a name; of lists an entry each."""
    for key, value in values.items():
        label = f"{name} {measure_name(key)}".strip()
        single = value.number()
        if single is not None:
            yield label, single
        elif key != "per_step":
            yield from _flat(value, classes, label)
            for index, each in enumerate(value):
                entry = each.number()
                if entry is not None:
                    yield f"{label.replace(' per class', '')} of {classes(index)}", entry


def _measures(run: RunView) -> Markup | None:
    classes = Names(run)
    columns = {split: dict(_flat(run.summary.at("metrics", split), classes)) for split in SPLITS}
    columns = {split: own for split, own in columns.items() if own}
    names = list(dict.fromkeys(name for own in columns.values() for name in own))
    if not names:
        return None
    rows = [[name, *(number(own[name]) if name in own else "–" for own in columns.values())] for name in names[:300]]
    best = run.summary.at("best_epoch").count()
    monitor = run.summary.at("monitor").text() or ""
    undefined = is_undefined({split: run.summary.at("metrics", split).mapping() for split in SPLITS}, monitor)
    chosen = f"the latest; {monitor} had no value" if undefined else f"which was the best by {monitor}"
    said = f"With the parameters of epoch {best}, {chosen}."
    many = len(rows) > 14
    shown = table(["measure", *columns], rows[:14] if many else rows, caption="All measures")
    rest = None
    if many:
        rest = tag(
            "details",
            tag("summary", f"{len(rows) - 14} more measures"),
            table(["measure", *columns], rows[14:], caption="The other measures"),
        )
    return tag("div", tag("h3", "All measures"), shown, rest, note(said) if best else None, class_="card")


def simple_rules(run: RunView) -> Markup | None:
    """Give the measures of the model and of each simple rule; nothing where the task has no rules."""
    summary = run.summary
    rules_by_split = {split: summary.at("baselines", split).items() for split in ("val", "test")}
    measured = [(split, rules) for split, rules in rules_by_split.items() if rules]
    if not measured:
        return None
    head: list[str] = []
    rows: list[list[str]] = []
    pictures = []
    for split, rules in measured:
        names = [name for name, value in rules[0][1].items() if value.number() is not None]
        head = head or names
        contestants = [("the model", summary.at("metrics", split)), *rules]
        for name, measures in contestants:
            shown = [measures.at(key).number() for key in head]
            rows.append([f"{split}, {name.replace('_', ' ')}", *("–" if v is None else f"{v:.4f}" for v in shown)])
        monitored = (summary.at("monitor").text() or "").rpartition(".")[2]
        chosen = monitored if monitored in names else next(iter(names), "")
        values = [
            (name.replace("_", " "), value)
            for name, measures in contestants
            if (value := measures.at(chosen).number()) is not None
        ]
        rows_ = [(name, [("c0" if name == "the model" else "c6", value, "")], number(value)) for name, value in values]
        most = 1.0 if all(value <= 1 for _, value in values) else None
        drawn = bars(rows_, caption=f"{chosen} on {split}, model and rules", total=most)
        pictures.append(tag("div", tag("h4", f"{measure_name(chosen)} on {split}"), drawn))
    return tag(
        "div",
        tag("h3", "Beside simple rules"),
        note(_verdict(summary)),
        tag("div", pictures, class_="two"),
        tag(
            "details",
            tag("summary", "All measures of the rules"),
            table(["", *head], rows, caption="Model and simple rules"),
        ),
        class_="card",
    )


def _verdict(summary: Values) -> str:
    try:
        return compare_with_rules(summary.plain) or ""
    except (TypeError, KeyError, AttributeError, ValueError, OverflowError):  # files of another version, or forged
        return "The measures of the model and of the rules do not fit each other."


def _steps(run: RunView) -> list[Markup | None]:
    """Draw the measures of each step, of a task on a timeline."""
    figures = []
    names = [name for name, _ in run.summary.at("metrics", "test", "per_step").items() if name != "step"]
    for name in names[:4]:
        series = []
        for split in ("val", "test"):
            inner = run.summary.at("metrics", split, "per_step")
            steps, values = inner.at("step").numbers(), inner.at(name).numbers()
            if steps and len(steps) == len(values):
                series.append(Series(split, COLOURS[split], list(zip(steps, values, strict=True))))
        figures.append(lines(f"{measure_name(name)} by step", series, x="step"))
    return figures


def _pictures(run: RunView, steps: list[Markup | None]) -> Iterator[Markup | None]:
    scores = {split: run.scores.at(split) for split in ("test", "val")}
    present = [split for split, picture in scores.items() if picture.items()]
    if not present:
        yield side_by_side(*steps)
        if run.finished and run.summary.at("metrics", "test", "accuracy"):
            yield note("There are no curves, since the run directory has no scores.json. Newer runs write it.")
        return
    classes = Names(run)
    curves = {split: _Curve.all_of(scores[split]) for split in present}
    calibration = _calibration({split: scores[split] for split in present}, classes)
    matrices = [_confusion(scores[split], split, classes) for split in present]
    few = sum(1 for _ in scores[present[0]].at("confusion")) <= _FEW_CLASSES
    yield side_by_side(
        *steps, _roc(curves, classes), _precision_recall(curves, classes), calibration, matrices[0] if few else None
    )
    if any(curve.kind is None for own in curves.values() for curve in own):
        yield note(
            "Scores are those of the pairs that evaluation asks for: the linked ones and the sampled others. Precision"
            " depends on how many are sampled. Probabilities are corrected for that training samples another number."
        )
    yield from matrices[1:] if few else matrices


class _Curve:
    """The points of one class on one split: thresholds, hits and false alarms."""

    def __init__(self, plain: Values) -> None:
        self.kind = plain.at("class").count()
        self.positives, self.negatives = plain.at("positives").count() or 0, plain.at("negatives").count() or 0
        self.auc, self.precision = plain.at("auc").number(), plain.at("average_precision").number()
        triples = [each.numbers() for each in plain.at("points")]
        self.points = [(t[0], t[1], t[2]) for t in triples if len(t) == 3 and t[1] + t[2] > 0]

    @classmethod
    def all_of(cls, plain: Values) -> list[_Curve]:
        curves = [cls(each) for each in plain.at("curves")][:24]
        return [curve for curve in curves if curve.points and curve.positives and curve.negatives]


def _named(curves: dict[str, list[_Curve]], classes: Names) -> Iterator[tuple[str, int, _Curve]]:
    """Give curves with a name and a colour: both splits of two classes or of links, else each class on the first."""
    if all(len(own) <= 1 for own in curves.values()):
        for split, own in curves.items():
            for curve in own:
                yield split, COLOURS[split], curve
    else:
        split = next(iter(curves))
        for k, curve in enumerate(curves[split]):
            yield classes(curve.kind), LINES[k % len(LINES)], curve


def _unit_chart(
    title: str, axes: tuple[str, str], series: list[dict[str, Any]], text: str, alternative: Markup, *, diagonal: bool
) -> Markup:
    data = {"kind": "unit", "x": axes[0], "y": axes[1], "diagonal": diagonal, "series": series}
    return figure(title, data, text=text, alternative=alternative)


def _roc(curves: dict[str, list[_Curve]], classes: Names) -> Markup | None:
    named = list(_named(curves, classes))
    if not named:
        return None
    series = [
        {
            "name": f"{name}, area {curve.auc:.3f}" if curve.auc is not None else name,
            "colour": colour,
            "points": [
                [0, 0],
                *([_short(f / curve.negatives), _short(h / curve.positives)] for _, h, f in curve.points),
            ],
            "notes": ["nothing", *(f"score ≥ {number(t)}" for t, _, _ in curve.points)],
        }
        for name, colour, curve in named
    ]
    areas = _range([(name, curve.auc) for name, _, curve in named])
    rows = [
        [f"{name}, score ≥ {number(t)}", share(f / curve.negatives), share(h / curve.positives)]
        for name, _, curve in named
        for t, h, f in curve.points[:: max(1, len(curve.points) // 10)]
    ]
    return _unit_chart(
        _titled("ROC", curves, classes),
        ("false alarms, of all others", "hits, of all that are"),
        series,
        f"Area under the curve: {areas}. An area of 0.5 is chance, 1 is perfect.",
        table(["threshold", "false alarms", "hits"], rows, caption="ROC"),
        diagonal=True,
    )


def _precision_recall(curves: dict[str, list[_Curve]], classes: Names) -> Markup | None:
    named = list(_named(curves, classes))
    if not named:
        return None
    series = [
        {
            "name": f"{name}, mean {curve.precision:.3f}" if curve.precision is not None else name,
            "colour": colour,
            "points": [[_short(h / curve.positives), _short(h / (h + f))] for _, h, f in curve.points if h],
            "notes": [f"score ≥ {number(t)}" for t, h, _ in curve.points if h],
        }
        for name, colour, curve in named
    ]
    means = _range([(name, curve.precision) for name, _, curve in named])
    base = _range([(name, c.positives / (c.positives + c.negatives)) for name, _, c in named])
    rows = [
        [f"{name}, score ≥ {number(t)}", share(h / curve.positives), share(h / (h + f))]
        for name, _, curve in named
        for t, h, f in curve.points[:: max(1, len(curve.points) // 10)]
    ]
    return _unit_chart(
        _titled("Precision and recall", curves, classes),
        ("recall", "precision"),
        series,
        f"Average precision: {means}. By chance: {base}.",
        table(["threshold", "recall", "precision"], rows, caption="Precision and recall"),
        diagonal=False,
    )


def _range(values: list[tuple[str, float | None]]) -> str:
    """Give all of a few values, or the lowest and the highest of many."""
    present = [(value, name) for name, value in values if value is not None]
    if len(present) <= 2:
        return ", ".join(f"{name} {number(value)}" for value, name in present) or "not known"
    (low, lowest), (high, highest) = min(present), max(present)
    return f"from {number(low)} ({lowest}) to {number(high)} ({highest})"


def _titled(name: str, curves: dict[str, list[_Curve]], classes: Names) -> str:
    if all(len(own) <= 1 for own in curves.values()):
        kind = next((curve.kind for own in curves.values() for curve in own), None)
        return name if kind is None else f"{name} of {classes(kind)}"
    return f"{name}, each class against the rest, on {next(iter(curves))}"


def _calibration(scores: dict[str, Values], classes: Names) -> Markup | None:
    series, rows, said = [], [], []
    subject = ""
    for split, plain in scores.items():
        triples = [each.numbers() for each in plain.at("calibration", "bins")]
        bins = [(t[0], t[1], t[2]) for t in triples if len(t) == 3 and 0 <= t[0] <= 1 and 0 <= t[1] <= 1][:50]
        if not bins:
            continue
        drawn = [each for each in bins if each[2] >= 10] or bins  # a share of few rows says little
        subject = plain.at("calibration", "of").text() or ""
        series.append(
            {
                "name": split,
                "colour": COLOURS[split],
                "dots": True,
                "points": [[_short(p), _short(hit)] for p, hit, _ in drawn],
                "notes": [counted(n, "row") for _, _, n in drawn],
            }
        )
        rows += [[f"{split}, about {share(p)}", share(hit), f"{n:,.0f}"] for p, hit, n in bins]
        error = plain.at("calibration", "error").number()
        said.append(f"on {split} by {share(error)}" if error is not None else "")
    if not series:
        return None
    subjects = {"links": "links", "class 1": classes(1), "predicted class": "the predicted class"}
    return _unit_chart(
        f"Calibration of {subjects.get(subject, 'probabilities')}",
        ("probability that the model gives", "how often it came true"),
        series,
        f"Probabilities are off {' and '.join(filter(None, said))} on average. On the diagonal they are right.",
        table(["probability", "came true", "rows"], rows, caption="Calibration"),
        diagonal=True,
    )


def _confusion(plain: Values, split: str, names: Names) -> Markup | None:
    counts = [row.counts() for row in plain.at("confusion")]
    classes = len(counts)
    if not 2 <= classes <= _MOST_CLASSES or any(len(row) != classes for row in counts):
        return None
    right = sum(counts[k][k] for k in range(classes))
    total = sum(map(sum, counts)) or 1
    worst = max(((counts[a][b], a, b) for a in range(classes) for b in range(classes) if a != b), default=(0, 0, 0))
    body = [
        tag(
            "tr",
            tag("th", f"is {names.short(k)}", scope="row"),
            (
                tag(
                    "td",
                    f"{count:,}",
                    class_="heat right" if k == j else "heat",
                    style=f"--heat:{100 * count / max(1, sum(row)):.0f}%",
                    title=f"{count:,} of {sum(row):,} of {names(k)} were taken for {names(j)}",
                )
                for j, count in enumerate(row)
            ),
        )
        for k, row in enumerate(counts)
    ]
    caption = f"Confusion of classes on {split}: rows are what a vertex or event is, columns what it was taken for"
    said = (
        f"Rows are what is, columns what it was taken for. {right:,} of {total:,} are right ({share(right / total)})."
    )
    if worst[0]:
        said += f" The most frequent mistake: {worst[0]:,} of {names(worst[1])} were taken for {names(worst[2])}."
    return tag(
        "details",
        tag("summary", f"Confusion matrix on {split}"),
        tag(
            "div",
            tag(
                "table",
                tag("caption", caption, class_="unseen"),
                tag(
                    "thead",
                    tag("tr", tag("th", ""), (tag("th", f"as {names.short(k)}", scope="col") for k in range(classes))),
                ),
                tag("tbody", body),
                class_="confusion",
            ),
            class_="scroll",
            tabindex=0,
            role="region",
            aria_label=caption,
        ),
        note(said),
        class_="card",
        open=split == "test",
    )


def _short(value: float) -> float:
    return float(f"{value:.5g}")
