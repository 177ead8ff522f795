"""Names of models and tasks are listed once, and the registries have exactly these."""

from __future__ import annotations

import pytest

from trisect.config.names import MODELS, TASKS, require_names
from trisect.nn.registry import DYNAMIC, STATIC
from trisect.tasks import registry


def test_the_registries_have_the_listed_names() -> None:
    assert set(MODELS) == {*STATIC, *DYNAMIC}
    assert set(TASKS) == set(registry.TASKS)


@pytest.mark.parametrize("names", [("gcn",), ("gcn", "sage", "gat")])
def test_a_registry_with_other_names_is_refused(names: tuple[str, ...]) -> None:
    require_names("model", ("gcn", "sage"), ("sage", "gcn"))
    with pytest.raises(RuntimeError, match=r"config/names\.py"):
        require_names("model", ("gcn", "sage"), names)
