"""A bar in the cell of a notebook, which is drawn anew in place; needs nothing but IPython itself."""

from __future__ import annotations

import html
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def in_notebook() -> bool:
    """Say whether the cell of a notebook shows what this process prints."""
    ipython = sys.modules.get("IPython")  # who runs in a notebook has imported it
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


class Cell:
    """A bar and figures in a notebook."""

    def __init__(self, epochs: int) -> None:
        self._epochs = epochs
        self._handle: Any = None

    def epoch(self, number: int, figures: str) -> None:
        """Draw how far the run is."""
        text = f"epoch {number}/{self._epochs}  {figures}"
        bar = f'<progress value="{number}" max="{self._epochs}" style="width:16em"></progress>'
        content = {"text/plain": text, "text/html": f"{bar} <code>{html.escape(text)}</code>"}
        if self._handle is None:
            self._handle = _display(content, display_id=True)
        else:
            self._handle.update(content, raw=True)

    def table(self, head: Sequence[str], rows: Mapping[str, Sequence[str]], text: str) -> None:
        """Show a table; `text` is what a viewer without HTML gets."""
        cells = [f"<tr>{''.join(f'<th>{html.escape(name)}</th>' for name in ('', *head))}</tr>"]
        for name, values in rows.items():
            inner = "".join(f"<td>{html.escape(value)}</td>" for value in values)
            cells.append(f"<tr><th>{html.escape(name)}</th>{inner}</tr>")
        _display({"text/plain": text, "text/html": f"<table>{''.join(cells)}</table>"})


def _display(content: Mapping[str, str], **more: Any) -> Any:
    from IPython.display import display  # type: ignore[import-not-found]

    return display(dict(content), raw=True, **more)
