"""The catalogue has every exchange once, and each that may be chosen has a view."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import trisect.views
from trisect.layout import AXES, EXCHANGES
from trisect.pipeline.sight import SPATIAL
from trisect.schedule.action import EXCHANGES as DECLARED
from trisect.views.catalogue import CATALOGUE, by_columns, options_on
from trisect.views.exchange import LETTERS, Exchange
from trisect.views.recur import EXCHANGES as ALONG

FOLDER = Path(trisect.views.__file__).parent


def subclasses(cls: type[Exchange]) -> set[type[Exchange]]:
    """Return the classes of the library under one, itself included."""
    own = {cls} if cls.__module__.startswith("trisect.views.") else set()
    return own.union(*(subclasses(each) for each in cls.__subclasses__()))


def test_every_class_with_a_letter_is_in_the_catalogue_once() -> None:
    for module in pkgutil.iter_modules([str(FOLDER)]):
        importlib.import_module(f"trisect.views.{module.name}")
    classes = {cls for cls in subclasses(Exchange) if cls.__dict__.get("letter")}
    assert classes
    assert set(CATALOGUE) == classes
    assert len(CATALOGUE) == len(classes)
    # one class a file
    assert len({cls.__module__ for cls in classes}) == len(classes)
    # and all that a layout may ask for has a letter
    assert all(cls.letter for cls in subclasses(Exchange) if cls.__dict__.get("option"))


def test_letters_and_options_are_unambiguous() -> None:
    letters = [exchange.letter for exchange in CATALOGUE]
    assert sorted(letters) == sorted(set(letters)) == sorted(LETTERS)
    names = [exchange.name for exchange in CATALOGUE]
    assert len(set(names)) == len(names)
    for axis, setting in (("vertex", "spatial"), ("time", "temporal")):
        options = [exchange.option for exchange in options_on(axis)]
        # each may be asked for, and nothing else
        assert sorted(["auto", *options]) == sorted(EXCHANGES[setting])
    for exchange in CATALOGUE:
        assert LETTERS[exchange.letter] is exchange
        declared = DECLARED[exchange.letter]
        assert (exchange.name, exchange.axis, exchange.paired) == (declared.name, declared.axis, declared.paired)
        assert exchange.axis in AXES
        # all say what they move
        assert exchange.bytes_of.__func__ is not Exchange.bytes_of.__func__  # type: ignore[attr-defined]


def test_every_option_has_a_view() -> None:
    assert set(SPATIAL) == {exchange.option for exchange in options_on("vertex")}
    # and along time is the view itself
    assert {exchange.option: exchange for exchange in options_on("time")} == ALONG
    assert not options_on("layer")


def test_which_exchange_deals_rows_out_equally() -> None:
    assert {exchange.option for exchange in options_on("vertex") if by_columns(exchange.option)} == {"redistribute"}
    assert not by_columns("auto")
