"""`Resumption`: where passes forward begin instead of step 0, and what they keep for those that come later."""

from __future__ import annotations

from dataclasses import dataclass, field

from trisect.nn.base import State


@dataclass
class Resumption:
    """Of ranks that go through all steps themselves; states are those of the own rows.

    Attributes:
        first: the step that passes begin with.
        states: by layer, the state before that step; empty where it is step 0.
        keep: the step before which states are to be kept; None: none are.
        kept: by layer, those that the latest pass kept.
    """

    first: int = 0
    states: dict[int, State] = field(default_factory=dict)
    keep: int | None = None
    kept: dict[int, State] = field(default_factory=dict)
