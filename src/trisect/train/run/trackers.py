"""Where the figures of each epoch go besides metrics.jsonl: TensorBoard, Weights & Biases, MLflow.

Each is a subscriber of the same stream of epochs. What goes wrong in one of them is said once, and the run goes on.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from trisect.config import Config
from trisect.config.train import TRACKERS
from trisect.errors import ConfigError


class Tracker(Protocol):
    """Takes the figures of epochs."""

    def log(self, figures: Mapping[str, float], epoch: int) -> None:
        """Take the figures of an epoch."""

    def close(self) -> None:
        """Write what is left to write."""


class Trackers:
    """All trackers of a run: TensorBoard where it is installed, and those that `train.track` names."""

    def __init__(self, directory: Path, config: Config, name: str) -> None:
        self._trackers: list[tuple[str, Tracker]] = []
        if importlib.util.find_spec("tensorboard") is not None:
            self._begin("TensorBoard", _TensorBoard, directory, config, name)
        for each in tracker_names(config.train.track):
            self._begin(each, {"wandb": _WandB, "mlflow": _MLflow}[each], directory, config, name)

    def _begin(self, title: str, make: Any, directory: Path, config: Config, name: str) -> None:
        _works(title, lambda: self._trackers.append((title, make(directory, config, name))))

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Hand an epoch's figures to all trackers."""
        figures = dict(_scalars(record))
        number = int(record["epoch"])
        self._trackers = [
            (title, tracker)
            for title, tracker in self._trackers
            if _works(title, partial(tracker.log, figures, number))
        ]

    def close(self) -> None:
        """Let all trackers end."""
        for title, tracker in self._trackers:
            _works(title, tracker.close)


def tracker_names(text: str | None) -> tuple[str, ...]:
    """List the trackers that `train.track` names."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def require_trackers(text: str | None) -> None:
    """Refuse a tracker whose package is not installed."""
    for name in tracker_names(text):
        if importlib.util.find_spec(TRACKERS[name]) is None:
            raise ConfigError(
                f"train.track has {name}, which is not installed; install it with: pip install 'trisect[{name}]'."
            )


class _TensorBoard:
    def __init__(self, directory: Path, config: Config, name: str) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer = SummaryWriter(str(directory / "tensorboard"))

    def log(self, figures: Mapping[str, float], epoch: int) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, epoch)

    def close(self) -> None:
        self._writer.close()


class _WandB:
    def __init__(self, directory: Path, config: Config, name: str) -> None:
        import wandb

        # the same id for a run and its continuation, so that they are one curve
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "trisect"),
            id=name,
            name=directory.name,
            dir=str(directory),
            resume="allow",
            config=config.resolved(),
        )

    def log(self, figures: Mapping[str, float], epoch: int) -> None:
        self._run.log(dict(figures), step=epoch)

    def close(self) -> None:
        self._run.finish()


class _MLflow:
    def __init__(self, directory: Path, config: Config, name: str) -> None:
        import mlflow

        where = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{(directory / 'mlflow.db').resolve()}")
        self._client = mlflow.MlflowClient(where)
        title = os.environ.get("MLFLOW_EXPERIMENT_NAME", "trisect")
        experiment = self._client.get_experiment_by_name(title)
        number = self._client.create_experiment(title) if experiment is None else experiment.experiment_id
        run = self._client.create_run(number, run_name=directory.name, tags={"trisect.run": name})
        self._id = run.info.run_id
        for section, values in config.resolved().items():
            for key, value in values.items() if isinstance(values, Mapping) else [("", values)]:
                self._client.log_param(self._id, f"{section}.{key}".rstrip("."), str(value)[:500])

    def log(self, figures: Mapping[str, float], epoch: int) -> None:
        for name, value in figures.items():
            self._client.log_metric(self._id, name, value, step=epoch)

    def close(self) -> None:
        self._client.set_terminated(self._id)


def _scalars(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for key, value in record.items():
        if isinstance(value, Mapping):
            for inner, number in _scalars(value):
                yield f"{key}/{inner}", number
        elif key != "epoch" and isinstance(value, (int, float)):
            yield key, float(value)


def _works(title: str, call: Callable[[], object]) -> bool:
    """Call a tracker; where it fails, for want of a login or of a network, say so."""
    try:
        call()
    except Exception as error:
        words = " ".join(str(error).split())[:200]
        warnings.warn(
            f"{title} is left out from here on ({type(error).__name__}: {words}); the run goes on.", stacklevel=2
        )
        return False
    return True
