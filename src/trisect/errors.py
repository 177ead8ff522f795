"""The errors that Trisect shows to its users: one sentence that names the field, the value and the remedy."""

from __future__ import annotations


class TrisectError(Exception):
    """A failure with a message for the user. The command line prints it alone and leaves with `exit_code`."""

    exit_code = 2


class ConfigError(TrisectError):
    """A setting is unknown, has the wrong type, or does not fit the others."""


class DataError(TrisectError):
    """A file, a table or an array given as data cannot be used."""


class LayoutError(TrisectError):
    """A layout does not fit the ranks, the layers, the graph or the timeline."""


class CheckpointError(TrisectError):
    """A checkpoint or a run directory is missing, damaged, or belongs to another run."""


class RunError(TrisectError):
    """Training began and cannot go on (a rank died, the loss is not finite)."""

    exit_code = 1
