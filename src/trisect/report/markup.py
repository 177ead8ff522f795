"""HTML whose text is escaped unless it was made here, so that no value of a file becomes markup."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any


class Markup(str):
    """HTML that was made by `tag`; any other text is escaped when it is put into a tag."""

    __slots__ = ()


Child = Any  # Markup, a text, None, or an iterable of these

_VOID = frozenset({"meta", "br", "hr", "input"})
NOTHING = Markup("")


def tag(name: str, /, *children: Child, **attributes: Any) -> Markup:
    """Make an element. `class_` is the attribute class, `data_x` is data-x; True stands alone, None is left out."""
    text = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{name}{text}>")
    return Markup(f"<{name}{text}>{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Markup:
    """String children together, escaping what is not markup."""
    parts: list[str] = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Markup):
            parts.append(child)
        elif isinstance(child, str):
            parts.append(html.escape(child))
        elif isinstance(child, Iterable):
            parts.append(join(child))
        else:
            parts.append(html.escape(str(child)))
    return Markup("".join(parts))


def _attribute(key: str, value: Any) -> str:
    key = key.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    return f" {key}" if value is True else f' {key}="{html.escape(str(value), quote=True)}"'


def note(*children: Child) -> Markup:
    """Make a line of small print."""
    return tag("p", *children, class_="note")


def table(head: Sequence[Child], rows: Iterable[Sequence[Child]], *, caption: str, wide: bool = False) -> Markup:
    """Make a table whose first column names rows; the others are right-aligned. It scrolls where it is too wide.

    Args:
        caption: what the table shows, for those who do not see it.
        wide: whether the last column is prose.
    """
    last = len(head) - 1
    kind = ["name", *("number" for _ in head[1:])]
    if wide:
        kind[last] = "prose"
    titles = [tag("th", title, scope="col", class_=kind[k]) for k, title in enumerate(head)]
    body = [
        tag(
            "tr",
            (
                tag("th", cell, scope="row") if k == 0 else tag("td", cell, class_=kind[min(k, last)])
                for k, cell in enumerate(row)
            ),
        )
        for row in rows
    ]
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption, class_="unseen"),
            tag("thead", tag("tr", titles)),
            tag("tbody", body),
        ),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=caption,
    )


def bars(
    rows: Sequence[tuple[str, Sequence[tuple[str, float, str]], str]],
    kinds: Sequence[tuple[str, str]] = (),
    *,
    caption: str,
    total: float | None = None,
) -> Markup:
    """Make horizontal bars as a table: (name, parts, what stands at the end); a part is (colour, value, its text).

    Args:
        kinds: (colour, meaning) of the parts, for a legend.
        total: the value that fills the width; by default the longest bar's.
    """
    longest = total or max((sum(value for _, value, _ in parts) for _, parts, _ in rows), default=0.0) or 1.0
    body = [
        tag(
            "tr",
            tag("th", name, scope="row"),
            tag(
                "td",
                tag(
                    "span",
                    (
                        tag("i", class_=colour, style=f"width:{100 * max(value, 0) / longest:.3f}%", title=text)
                        for colour, value, text in parts
                        if value > 0
                    ),
                    class_="bar",
                ),
                class_="bars",
            ),
            tag("td", end, class_="number"),
        )
        for name, parts, end in rows
    ]
    return join(
        (
            legend(kinds),
            tag(
                "div",
                tag("table", tag("caption", caption, class_="unseen"), tag("tbody", body), class_="barred"),
                class_="scroll",
                tabindex=0,
                role="region",
                aria_label=caption,
            ),
        )
    )


def legend(kinds: Iterable[tuple[str, str]]) -> Markup:
    """Say what colours mean."""
    keys = [tag("li", tag("i", class_=colour), meaning) for colour, meaning in kinds]
    return tag("ul", keys, class_="legend") if keys else NOTHING
