"""The configuration of a call of `fit`, for the config.yaml of its run directory: objects of Python are named in words.

It is read by people, by the report, and by a resumed run, which must be given the same objects again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from trisect.config import Config, TrainOptions, parse_config
from trisect.config.names import CUSTOM
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.nn import options as model_options
from trisect.nn.models.source import ModelSource, NamedModel
from trisect.tasks import Task
from trisect.tasks.registry import TASKS


def config_of(model: ModelSource, data: Graph | Timeline, task: Task, options: TrainOptions, layout: Layout) -> Config:
    """Give the configuration that says as much of a call as text can say."""
    if isinstance(model, NamedModel):
        defaults = {name: option.default for name, option in model_options(model.name).items()}
        plain_model = {"name": model.name, **defaults, **model.options}
    else:
        plain_model = {"name": CUSTOM, "object": " ".join(repr(model).split())}
    plain_task: dict[str, Any] = {"name": CUSTOM, "object": type(task).__name__}
    if TASKS.get(task.name) is type(task):
        own = {name: list(value) if isinstance(value, tuple) else value for name, value in task.options().items()}
        plain_task = {"name": task.name, **own}
    return parse_config(
        {
            "data": {"object": f"{data!r}, sha256 {digest(data)}"},
            "model": plain_model,
            "task": plain_task,
            "layout": "auto" if layout.auto else layout.plain(),
            "train": options.plain(),
        }
    )


def digest(data: Graph | Timeline) -> str:
    """Give a short hash of all arrays of the data: another graph of the same size has another."""
    total = hashlib.sha256()
    _add(total, data)
    return total.hexdigest()[:16]


def _add(total: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        total.update(f"{value.dtype} {list(value.shape)}".encode())
        total.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    elif isinstance(value, Mapping):
        for key in sorted(value):
            total.update(str(key).encode())
            _add(total, value[key])
    elif is_dataclass(value):
        for field in fields(value):
            # caches are no data, and names of vertices change nothing that is computed
            if field.init and field.compare and field.name != "names":
                if field.name == "y_weight" and getattr(value, field.name) is None:
                    continue  # so that the hash is that of releases that did not know it
                total.update(field.name.encode())
                _add(total, getattr(value, field.name))
    else:
        total.update(repr(value).encode())
