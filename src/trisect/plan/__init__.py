"""What a layout does with a model and its data, before anything runs: segments, schedules, stages, and what it costs.

It knows shapes and no values of tensors. `trisect.plan(model, graph, …)` is `trisect.train.planning.plan`: the name is
this package's too, and so the package can be called.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any


class _CallablePackage(types.ModuleType):
    """This package, which can be called as the function of its name."""

    def __call__(self, *values: Any, **named: Any) -> Any:
        """Compare layouts for a model and data, as `trisect.train.planning.plan` does."""
        return importlib.import_module("trisect.train.planning").plan(*values, **named)


sys.modules[__name__].__class__ = _CallablePackage
