"""A bar and two lines of figures at the bottom of a terminal, drawn anew in place."""

from __future__ import annotations

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trisect.api.pace import Pace
from trisect.report.quantities import seconds

_NARROWEST, _WIDEST = 8, 40  # columns of the bar itself


class TerminalBar:
    """How far a run is. No line is wider than the terminal: one that wraps would stay there when it is drawn anew."""

    def __init__(self, epochs: int, pace: Pace, console: Console) -> None:
        self._epochs, self._pace, self._console = epochs, pace, console
        self._done = 0
        self._figures = ""
        self._live = Live(get_renderable=self._draw, console=console, refresh_per_second=4)

    def start(self) -> None:
        """Show the bar."""
        self._live.start(refresh=True)

    def stop(self) -> None:
        """Leave the bar as it is, and go on below it."""
        self._live.stop()

    def epoch(self, number: int, figures: str) -> None:
        """Show that an epoch has ended, from the next drawing on."""
        self._done, self._figures = number, figures

    def _draw(self) -> Group:
        width = self._console.width
        count = f"epoch {self._done}/{self._epochs}"
        time = times(self._pace, ended=self._done == self._epochs)
        room = width - len(count) - len(time) - 2
        lines: list[Table | Text] = []
        if room >= _NARROWEST:
            bar = ProgressBar(self._epochs, self._done, width=min(room, _WIDEST))
            row = Table.grid(padding=(0, 1))
            row.add_row(count, bar, time)
            lines.append(row)
        else:
            lines.append(_cropped(f"{count} {time}", width))
        if self._figures:
            lines.append(_cropped(self._figures, width))
        return Group(*lines)


def times(pace: Pace, *, ended: bool) -> str:
    """Say what an epoch takes, and how long the others will."""
    each, left = pace.each, pace.left
    if each is None or left is None:
        return "" if ended else f"{duration(pace.elapsed)} so far"
    return f"{seconds(each)} an epoch" + ("" if ended else f", {duration(left)} left")


def duration(value: float) -> str:
    """Give a time to wait, to the second: 5 s, 2 min 5 s, 3 h 12 min."""
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole // 60 % 60} min"


def _cropped(text: str, width: int) -> Text:
    line = Text(text, no_wrap=True)
    line.truncate(width, overflow="ellipsis")
    return line
