"""What each rank does in a pass, as a value: actions, validation, simulation, drawing. Knows no tensors."""

from trisect.schedule.action import Action, Pass, Verb
from trisect.schedule.schedule import Schedule
from trisect.schedule.simulate import Span, draw, simulate
from trisect.schedule.validate import validate

__all__ = ["Action", "Pass", "Schedule", "Span", "Verb", "draw", "simulate", "validate"]
