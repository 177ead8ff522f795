"""What each rank does in an epoch, as a value: actions, builders, validation, simulation, drawing. Knows no tensors."""

from trisect.schedule.action import Action, Half, Kind, Phase, Side
from trisect.schedule.builders import evaluation, single
from trisect.schedule.schedule import Schedule
from trisect.schedule.simulate import Span, draw, simulate
from trisect.schedule.validate import validate

__all__ = [
    "Action",
    "Half",
    "Kind",
    "Phase",
    "Schedule",
    "Side",
    "Span",
    "draw",
    "evaluation",
    "simulate",
    "single",
    "validate",
]
