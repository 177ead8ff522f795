"""From a name and options, as a configuration has them, to a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from trisect.config import names
from trisect.errors import ConfigError
from trisect.settings.nearest import unknown_setting, unknown_value
from trisect.settings.sentences import describe_value
from trisect.tasks.base import Task
from trisect.tasks.edge_classification import EdgeClassification
from trisect.tasks.link_prediction import LinkPrediction
from trisect.tasks.node_classification import NodeClassification
from trisect.tasks.node_regression import NodeRegression

_CLASSES: dict[str, type[Task]] = {
    task.name: task for task in (NodeClassification, LinkPrediction, EdgeClassification, NodeRegression)
}
TASKS: dict[str, type[Task]] = {name: _CLASSES[name] for name in names.TASKS}


def make_task(task: str | Mapping[str, Any] | Task, **options: Any) -> Task:
    """Make the task of that name (or `{name: …, options}`), with its options checked."""
    if isinstance(task, Task):
        if options:
            raise ConfigError(f"task {task.name} is already made; give {sorted(options)[0]} when you make it.")
        return task
    if isinstance(task, Mapping):
        options = {**task, **options}
        name = options.pop("name", None)
        if not isinstance(name, str):
            raise ConfigError(f"task.name is missing; use one of {', '.join(TASKS)}.")
    else:
        name = task
    task_class = _class_of(name)
    hints = get_type_hints(task_class)
    option_names = [field.name for field in fields(task_class)]  # type: ignore[arg-type]
    for key, value in options.items():
        if key not in option_names:
            raise ConfigError(unknown_setting("task", key, option_names))
        try:
            TypeAdapter(hints[key]).validate_python(value, strict=True)
        except ValidationError as error:
            raise ConfigError(describe_value(f"task.{key}", value, error)) from None
    return task_class(**{key: tuple(value) if isinstance(value, list) else value for key, value in options.items()})


def _class_of(name: str) -> type[Task]:
    if not isinstance(name, str):
        raise ConfigError(f"task is a {type(name).__name__}; give one of {', '.join(TASKS)}, or a Task.")
    if name not in TASKS:
        raise ConfigError(unknown_value("task", name, TASKS))
    return TASKS[name]
