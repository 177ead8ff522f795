"""The names of models and tasks, listed once. The registries of both packages find the functions and classes by them.

They stand here, and not with the models, since a configuration is checked before torch is imported.
"""

from __future__ import annotations

from typing import Literal, get_args

StaticModelName = Literal["gcn", "sage", "gcnii", "resgcn+", "gat", "gatv2", "gin", "gine", "rgcn"]
DynamicModelName = Literal["cd-gcn", "wd-gcn", "evolvegcn-o", "evolvegcn-h", "tm-gcn", "recurrent"]
ModelName = Literal[StaticModelName, DynamicModelName]
TaskName = Literal["node-classification", "link-prediction", "edge-classification", "node-regression"]

STATIC_MODELS: tuple[str, ...] = get_args(StaticModelName)
DYNAMIC_MODELS: tuple[str, ...] = get_args(DynamicModelName)
MODELS: tuple[str, ...] = get_args(ModelName)
TASKS: tuple[str, ...] = get_args(TaskName)

OPTIMIZERS = (
    "Adadelta", "Adafactor", "Adagrad", "Adam", "Adamax", "AdamW", "ASGD", "Muon", "NAdam", "RAdam", "RMSprop", "Rprop",
    "SGD",
)  # fmt: skip
"""Optimizers of torch.optim that step without a closure, on dense gradients."""
SCHEDULERS = (
    "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR", "ExponentialLR", "LinearLR",
    "MultiStepLR", "OneCycleLR", "PolynomialLR", "ReduceLROnPlateau", "StepLR",
)  # fmt: skip
"""Schedulers of torch.optim.lr_scheduler whose options are plain values."""
LOSSES = ("cross_entropy", "focal", "mse", "l1", "huber", "bce")
"""Losses of a row, by name; `tasks/row_loss.py` has them."""
CALLBACKS = ("on_epoch_end", "on_evaluate", "on_checkpoint")
"""The methods that an object among `callbacks` may have."""

CUSTOM = "custom"
"""What config.yaml calls a model or a task that is an object of Python, handed to `fit`."""


def identifier(name: str) -> str:
    """This is the Python identifier of a name: `evolvegcn-o` is made by `evolvegcn_o`, `resgcn+` by `resgcn`."""
    return name.replace("-", "_").rstrip("+")
