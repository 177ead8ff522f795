"""A section of settings as a frozen value, and the types of its fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, Strict, ValidationError

from trisect.errors import TrisectError
from trisect.settings.sentences import describe_error

Section = TypeVar("Section")

# The fields below are strict by themselves. A strict section would refuse mappings, which a configuration gives it.
CLOSED = ConfigDict(extra="forbid", allow_inf_nan=False)

Positive = Annotated[int, Field(ge=1, strict=True)]
NotNegative = Annotated[int, Field(ge=0, strict=True)]
PositiveNumber = Annotated[float, Field(gt=0, strict=True)]
Fraction = Annotated[float, Field(ge=0, lt=1, strict=True)]
Flag = Annotated[bool, Strict()]
Text = Annotated[str, Strict()]


def section(path: str, error: type[TrisectError]) -> Callable[[type[Section]], type[Section]]:
    """Let the constructor of a pydantic dataclass say what is wrong in one sentence.

    Args:
        path: where the section stands in a configuration, such as `layout`.
        error: what is raised.
    """

    def decorate(cls: type[Section]) -> type[Section]:
        validate = cls.__init__

        def __init__(self: Section, *values: Any, **named: Any) -> None:  # noqa: N807
            try:
                validate(self, *values, **named)
            except ValidationError as mistake:
                raise error(describe_error(mistake, cls, tuple(path.split(".")))) from None

        cls.__init__ = __init__  # type: ignore[method-assign, assignment]
        return cls

    return decorate
