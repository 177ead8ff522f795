"""The catalogue has every exchange once, and each that may be chosen has a view."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import trisect.exchanges
from trisect.exchanges.base import Exchange
from trisect.exchanges.catalogue import CATALOGUE, LETTERS
from trisect.layout import AXES, EXCHANGES
from trisect.pipeline.sight import SPATIAL
from trisect.schedule.action import EXCHANGES as DECLARED
from trisect.views.recur import EXCHANGES as ALONG

FOLDER = Path(trisect.exchanges.__file__).parent


def test_every_class_is_in_the_catalogue_once() -> None:
    for module in pkgutil.iter_modules([str(FOLDER)]):
        importlib.import_module(f"trisect.exchanges.{module.name}")
    classes = {cls for cls in Exchange.__subclasses__() if cls.__module__.startswith("trisect.exchanges.")}
    assert {type(exchange) for exchange in CATALOGUE} == classes
    assert len(CATALOGUE) == len(classes)
    # one class a file
    assert len({cls.__module__ for cls in classes}) == len(classes)


def test_letters_and_choices_are_unambiguous() -> None:
    letters = [exchange.letter for exchange in CATALOGUE if exchange.letter]
    assert sorted(letters) == sorted(set(letters)) == sorted(LETTERS)
    for axis, setting in (("vertex", "spatial"), ("time", "temporal")):
        names = [exchange.option for exchange in CATALOGUE if exchange.option and exchange.axis == axis]
        # each may be asked for, and nothing else
        assert sorted(["auto", *names]) == sorted(EXCHANGES[setting])
    for letter, exchange in LETTERS.items():
        assert (exchange.name, exchange.axis, exchange.paired) == (
            DECLARED[letter].name,
            DECLARED[letter].axis,
            DECLARED[letter].paired,
        )
        assert exchange.axis in AXES


def test_every_choice_has_a_view() -> None:
    assert set(SPATIAL) == {one.option for one in CATALOGUE if one.option and one.axis == "vertex"}
    # which tells of itself by the name that the schedule has for it
    assert {option: kind.name for option, kind in ALONG.items()} == {
        one.option: one.name for one in CATALOGUE if one.option and one.axis == "time"
    }
