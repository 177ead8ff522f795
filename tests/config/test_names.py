"""Names of models and tasks are listed once, and the registries have exactly these."""

from __future__ import annotations

import inspect

import pytest

from trisect.config.names import DYNAMIC_MODELS, MODELS, STATIC_MODELS, TASKS, identifier
from trisect.nn.models import dynamic_models, static_models
from trisect.nn.models.recipe import DynamicRecipe, Recipe
from trisect.nn.models.registry import DYNAMIC, STATIC
from trisect.tasks import registry
from trisect.tasks.base import Task
from trisect.tasks.outputs_only import OutputsOnly


def test_the_registries_have_the_listed_names() -> None:
    assert (*STATIC, *DYNAMIC) == MODELS
    assert tuple(registry.TASKS) == TASKS


@pytest.mark.parametrize(
    ("module", "names", "result"),
    [(static_models, STATIC_MODELS, Recipe), (dynamic_models, DYNAMIC_MODELS, DynamicRecipe)],
)
def test_every_function_that_makes_a_model_is_listed(module: object, names: tuple[str, ...], result: type) -> None:
    makers = {
        name
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if not name.startswith("_") and function.__annotations__.get("return") == result.__name__
    }
    assert makers == {identifier(name) for name in names}


def test_every_task_of_the_package_is_listed() -> None:
    # a task that only gives the outputs of another is no name of a configuration
    classes = {task for task in Task.__subclasses__() if task.__module__.startswith("trisect.")} - {OutputsOnly}
    assert classes == set(registry.TASKS.values())
    assert all(task.name == name for name, task in registry.TASKS.items())
