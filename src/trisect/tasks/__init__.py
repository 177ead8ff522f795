"""Tasks by name: what is learnt, and how it is judged. Tasks know no ranks."""

from trisect.tasks.base import SPLITS, BoundTask, MeasuredRules, Split, Statistics, Task, TaskContext
from trisect.tasks.edge_classification import EdgeClassification
from trisect.tasks.link_prediction import LinkPrediction
from trisect.tasks.node_classification import NodeClassification
from trisect.tasks.node_regression import NodeRegression
from trisect.tasks.registry import TASKS, make_task

__all__ = [
    "SPLITS",
    "TASKS",
    "BoundTask",
    "EdgeClassification",
    "LinkPrediction",
    "MeasuredRules",
    "NodeClassification",
    "NodeRegression",
    "Split",
    "Statistics",
    "Task",
    "TaskContext",
    "make_task",
]
