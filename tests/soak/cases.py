"""The layouts that are disturbed: tiny graphs and timelines, in one process and on 2 and 4 ranks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_GRAPH = {"generate": "community", "vertices": 97, "classes": 3, "features": 6, "per_class": 6}
_TIMELINE = {"generate": "evolving", "vertices": 41, "steps": 9, "communities": 3, "features": 5}
_LINKS = {"name": "link-prediction", "eval_negatives": 5}
_CLASSES = "node-classification"
_DATA_AND_MODEL: dict[str, dict[str, Any]] = {
    "deep": {"data": _GRAPH, "model": {"name": "gcnii", "layers": 4, "hidden": 5, "dropout": 0.3}, "task": _CLASSES},
    "plain": {"data": _GRAPH, "model": {"name": "gcn", "layers": 2, "hidden": 7, "dropout": 0.2}, "task": _CLASSES},
    "links": {"data": _TIMELINE, "model": {"name": "cd-gcn", "layers": 2, "hidden": 4, "dropout": 0.2}, "task": _LINKS},
    "window": {"data": _TIMELINE, "model": {"name": "tm-gcn", "layers": 2, "hidden": 4, "window": 3}, "task": _CLASSES},
    "evolving": {"data": _TIMELINE, "model": {"name": "evolvegcn-h", "layers": 2, "hidden": 4}, "task": _CLASSES},
}


@dataclass(frozen=True)
class Case:
    """A configuration under a layout.

    Attributes:
        train: settings besides those that all cases have.
    """

    config: str
    layout: str
    ranks: int
    train: str = "{}"
    epochs: int = 32
    eval_every: int = 2
    checkpoint_every: int = 1

    @property
    def name(self) -> str:
        """Give a name that no other case has, which may be that of a folder."""
        return f"{self.config}-{self.layout}".replace("=", "").replace(",", "-").replace(":", "")

    def settings(self) -> dict[str, Any]:
        """Give the configuration file."""
        train = {
            "epochs": self.epochs,
            "lr": 0.01,
            "eval_every": self.eval_every,
            "checkpoint_every": self.checkpoint_every,
            "timeout": 5,
            "startup_timeout": 15,
            "grace": 10,
            **json.loads(self.train),
        }
        return {**_DATA_AND_MODEL[self.config], "train": train}


_PLATEAU = '{"lr_schedule": "plateau", "optimiser": "adamw"}'
_COSINE = '{"lr_schedule": "cosine", "clip": 1.0}'
CASES = (
    Case("deep", "vertex=1", 1, _PLATEAU),
    Case("plain", "vertex=1,recompute=true", 1, checkpoint_every=2),
    Case("deep", "chunks=3", 1),
    Case("links", "vertex=1", 1, _COSINE),
    Case("evolving", "blocks=3", 1, checkpoint_every=2),
    Case("deep", "vertex=2", 2, _PLATEAU),
    Case("plain", "vertex=2,chunks=2", 2),
    Case("deep", "layer=2,chunks=3", 2, checkpoint_every=2),
    Case("deep", "layer=2,chunks=3,history=exact", 2, _COSINE),
    Case("plain", "vertex=2,spatial=redistribute,recompute=true", 2, '{"optimiser": "sgd"}'),
    Case("links", "time=2,temporal=carry", 2),
    Case("links", "time=2,temporal=redistribute", 2, checkpoint_every=2),
    Case("links", "layer=2,blocks=2", 2, _PLATEAU),
    Case("window", "time=2,temporal=halo", 2),
    Case("evolving", "vertex=2,blocks=2", 2),
    Case("deep", "vertex=2,layer=2", 4),
    Case("deep", "vertex=2,layer=2,chunks=2", 4, checkpoint_every=2),
    Case("links", "vertex=2,time=2", 4),
    Case("window", "layer=2,time=2,blocks=2,recompute=true", 4, _COSINE),
)
