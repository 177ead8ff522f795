from __future__ import annotations

from typing import Any

import pytest

from trisect.errors import ConfigError
from trisect.tasks import TASKS, LinkPrediction, NodeClassification, make_task


def test_names_and_mappings() -> None:
    assert make_task("node-classification") == NodeClassification()
    task = make_task({"name": "link-prediction", "negatives": 100, "eval_negatives": "all", "split": [62, 9, 17]})
    assert task == LinkPrediction(negatives=100, eval_negatives="all", split=(62, 9, 17))
    assert make_task(task) is task


@pytest.mark.parametrize("name", list(TASKS))
def test_options_can_be_listed_and_given_back(name: str) -> None:
    options = make_task(name).options()
    assert options
    assert make_task(name, **options).options() == options


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("node-clasification", {}, "node-classification"),
        ("link-prediction", {"negative": 3}, r"did you mean task\.negatives"),
        ("link-prediction", {"negatives": "many"}, r"task\.negatives is 'many'"),
        ("link-prediction", {"decoder": "cosine"}, r"task\.decoder is 'cosine', but must be one of bilinear, dot, mlp"),
        ("node-regression", {"horizon": 1.5}, r"task\.horizon is 1\.5"),
        ({"split": [1, 1, 1]}, {}, r"task\.name is missing"),
    ],
)
def test_mistakes_are_one_sentence(task: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make_task(task, **options)
    assert "\n" not in str(caught.value)


def test_a_made_task_takes_no_options() -> None:
    with pytest.raises(ConfigError, match="already made"):
        make_task(NodeClassification(), hidden=3)
