"""All exchanges that move rows, states or sums in a view. A new one is a file of its own and a line here."""

from __future__ import annotations

from trisect.views.boundary import Boundary
from trisect.views.carry import Carry
from trisect.views.exchange import Exchange
from trisect.views.fetch import Fetch
from trisect.views.halo import Halo
from trisect.views.redistribute import RedistributeRows
from trisect.views.redistribute_steps import RedistributeSteps
from trisect.views.top import Top
from trisect.views.total import Total
from trisect.views.window import Window

# of two that move as many bytes, `auto` takes the earlier
CATALOGUE: list[type[Exchange]] = [
    Window,
    Carry,
    Halo,
    RedistributeRows,
    RedistributeSteps,
    Top,
    Fetch,
    Total,
    Boundary,
]


def options_on(axis: str) -> list[type[Exchange]]:
    """Return the exchanges that a layout may ask for on an axis."""
    return [exchange for exchange in CATALOGUE if exchange.axis == axis and exchange.option]


def by_columns(spatial: str) -> bool:
    """Whether an exchange, by its word in a layout, sums up whole columns, so that rows are dealt out equally."""
    return any(exchange.by_columns for exchange in options_on("vertex") if exchange.option == spatial)
