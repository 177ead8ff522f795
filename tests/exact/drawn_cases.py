"""Draws cases from a seed: models, tasks, odd graphs and exact layouts, with sizes around what switches code paths.

A case depends on the seed and its number alone. What Trisect refuses is avoided where a rule says so here, and counted
where it is drawn all the same.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from exact_case import ExactCase, Plain
from hand_cut import CUTS
from thresholds import THRESHOLDS

from trisect.config.names import DYNAMIC_MODELS, STATIC_MODELS

T = TypeVar("T")
EPOCHS = 3
PYG = ("mean", "max", "graph", "gat", "gatv2")
SPATIAL = ("gcn", "sage", "gat", "gatv2", "gin", "gine")
TEMPORAL = ("gru", "lstm", "mean", "harmonic", "ones")
WINDOWED = ("mean", "harmonic", "ones")
SUMMING = ("gcn", "sage", "gcnii", "resgcn+", "gin", "cd-gcn", "wd-gcn", "evolvegcn-o", "evolvegcn-h", "tm-gcn")
"""Models that do no more with their neighbours than sum them up, so that columns may be redistributed."""
_OF_ONE = ("heads", "out_heads", "attention_dropout", "train_eps", "mlp_norm", "root_weight")
"""Options that some of the `SPATIAL` models have and others have not."""
_WIDTHS = (1, 4, 7, 8, 15, 16, 17, 24, 31, 32, 33, 63, 64)
_MOST = 400_000
"""Numbers of a case's activations, beyond which vertices are taken away: a case takes a second."""
_GROUPED = 1100
"""Vertices of a part from which on native kernels sum weight gradients by groups of rows."""
_WIDE = 600
"""Numbers of a row that native kernels do not hold at once."""


def draw(seed: int, number: int) -> ExactCase:
    """Draw the case of this number."""
    case = _Draw(random.Random(f"{seed}:{number}")).case()
    return with_relations(case, random.Random(f"{seed}:{number}:kinds"))


def with_relations(case: ExactCase, source: random.Random) -> ExactCase:
    """Give some cases relations of edges, and layers that tell them apart; others are left as they are."""
    name, redistributes = case.model["name"], case.layout.get("spatial") == "redistribute"
    spatial = case.model.get("spatial", name)
    if source.random() > 0.15 or redistributes or spatial not in SPATIAL or not case.data["features"]:
        return case
    model = {key: value for key, value in case.model.items() if key not in _OF_ONE}
    model["spatial" if name == "recurrent" else "name"] = "rgcn"
    if source.random() < 0.4:
        model["bases"] = source.choice((1, 2))
    if name != "recurrent":
        model["root_weight"] = source.random() < 0.7
    data = {**case.data, "relations": source.choice((1, 2, 3, 7)), "edge_features": 0, "merge": "mean"}
    return replace(case, model=model, data=data)


class _Draw:
    """One draw; every method takes its choices from the same generator."""

    def __init__(self, source: random.Random) -> None:
        self._random = source

    def _one(self, choices: Sequence[T]) -> T:
        return self._random.choice(choices)

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def case(self) -> ExactCase:
        timeline = self._chance(0.65)
        data, task = self._data(timeline=timeline)
        layout = self._layout(timeline=timeline)
        model = self._model(data, task, stages=layout.get("layer", 1), timeline=timeline)
        self._exchanges(layout, model, timeline=timeline)
        reference = self._chunks(layout, timeline=timeline)
        self._sizes(data, layout, model)
        cut = self._one(CUTS)
        if self._chance(0.1):
            cut = "layout"
            layout["partition"] = self._one(("metis", "stream", "hypergraph") if timeline else ("metis", "stream"))
            if reference:
                reference["partition"] = layout["partition"]
        case = ExactCase(
            data=data,
            model=model,
            task=task,
            layout=layout,
            train=self._train(model),
            reference=reference,
            cut=cut,
            runs=timeline and self._chance(0.4),
            native=self._native(cut, reference),
            threads=2 if self._chance(0.15) else 1,
            prefetch=timeline and self._chance(0.25),
            memory=self._one(("1KiB", "1MiB")) if timeline and self._chance(0.2) else "",
        )
        return replace(case, thresholds=self._thresholds(case))

    def _native(self, cut: str, reference: Plain) -> str:
        """Draw the kernels: none, the plainest, or most often the library's choice."""
        native = self._one(("0", "base", *[""] * 6))
        # a stream without kernels cuts otherwise, and chunks that read history are to be the same
        return "" if reference and cut == "layout" else native

    def _data(self, *, timeline: bool) -> tuple[Plain, Plain]:
        """Draw the data, and the task that they allow."""
        name = self._one(("node-classification", "node-regression"))
        if timeline and self._chance(0.4):
            name = self._one(("link-prediction", "edge-classification"))
        pairs = name in ("link-prediction", "edge-classification")
        data: Plain = {
            "seed": self._random.randrange(1 << 30),
            "vertices": self._vertices(),
            "degree": self._one((0.5, 1.0, 2.0, 3.0, 6.0)),
            "features": self._one((1, 3, 5, 8, 17)),
            "weights": self._chance(0.3),
            "edge_features": self._one((1, 2, 5)) if self._chance(0.4) else 0,
            "merge": self._one(("mean", "sum", "last", "count")),
            "undirected": self._chance(0.5),
            "loops": self._chance(0.3),
            "duplicates": self._chance(0.3),
            "isolated": self._one((0.0, 0.0, 0.2, 0.5)),
            "hub": self._chance(0.15),
            "near": self._chance(0.4),
            "missing": self._one((0.0, 0.3)),
            "targets": "none" if pairs else "classes" if name == "node-classification" else "numbers",
            "classes": self._one((2, 3, 5)) if name == "node-classification" else self._one((1, 1, 3)),
            "masks": self._chance(0.7),
            "untrained": self._chance(0.4),
            "few_labels": timeline and self._chance(0.25),
        }
        if data["merge"] == "count" and data["edge_features"]:
            data["edge_features"] = 1
        task: Plain = {"name": name}
        if timeline:
            self._add_steps(data, task, pairs=pairs)
        if pairs:
            task["decoder"] = self._one(("mlp", "bilinear") if name == "edge-classification" else ("mlp", "dot"))
        else:
            task["decoder"] = self._one(("auto", "auto", "linear", "mlp"))
        if task["decoder"] in ("mlp",):
            task["hidden"] = self._one((3, 8, 16))
        return data, task

    def _add_steps(self, data: Plain, task: Plain, *, pairs: bool) -> None:
        steps = self._one((3, 4, 5, 6, 7, 8, 9, 12))
        data |= {
            "steps": steps,
            "fixed": self._chance(0.25),
            "late": self._chance(0.3),
            "empty": sorted(self._random.sample(range(1, steps - 1), 1)) if steps > 4 and self._chance(0.35) else [],
            "repeats": self._chance(0.4),
            "by_step": self._chance(0.7),
            "edge_classes": self._one((2, 3)) if task["name"] == "edge-classification" else 0,
            "smoothing": None,
        }
        if self._chance(0.35):
            kind = self._one(("edge-life", "m-transform"))
            data["smoothing"] = {"kind": kind, "length": self._one((2, 3))}
            if kind == "m-transform":
                data["smoothing"]["matrix"] = self._one(("mean", "harmonic", "ones"))
        if not data["edge_features"] and self._chance(0.1):
            data["features"], data["fixed"] = 0, False  # degrees stand for them
        if pairs:
            task["split"] = [steps - 3, 1, 1] if steps > 4 else [1, 1, 0]
            if task["name"] == "link-prediction":
                task |= {
                    "eval_negatives": "all" if self._chance(0.3) else 3,
                    "negatives": self._one((1, 2)),
                    "sampling": self._one(("uniform", "destinations")),
                    "memory": self._one((0, 0, 2)),
                    "average": self._one(("pairs", "steps")),
                    "candidates": self._one(("all", "all", "seen")),
                    "mrr": self._one(("rows", "pairs")),
                }
            elif self._chance(0.3):
                task["class_weights"] = "balanced"
        elif data["by_step"]:
            task["split"] = [steps - 3, 1, 1]
            task["horizon"] = self._one((0, 1))
            if steps == 3:
                task["split"] = [1, 1, 0]
        else:
            task["at"] = self._one(("last", "every"))

    def _vertices(self) -> int:
        low, high = self._one(((8, 14), (8, 40), (15, 17), (20, 80), (50, 130), (100, 400), (400, 3000)))
        return self._random.randint(low, high)

    def _layout(self, *, timeline: bool) -> Plain:
        """Draw the degrees of the cuts, of up to eight ranks."""
        degrees = [
            (t, s, v)
            for t in ((1, 2, 3, 4, 8) if timeline else (1,))
            for s in (1, 2, 3, 4)
            for v in (1, 2, 3, 4, 6, 8)
            if 1 < t * s * v <= 8
        ]
        # few ranks are cheap, so that there are more of them
        weights = [1.0 / (t * s * v) ** 1.5 * (2.0 if v > 1 else 1.0) for t, s, v in degrees]
        (chosen,) = self._random.choices(degrees, weights)
        layout: Plain = {name: size for name, size in zip(("time", "layer", "vertex"), chosen, strict=True) if size > 1}
        if timeline and self._chance(0.45):
            layout["blocks"] = self._one((2, 3, 4, 12, "auto"))  # of 12, which `_sizes` lowers, each has one step
        for name, value, probability in (
            ("recompute", True, 0.35),
            ("pack", self._one((True, False)), 0.3),
            ("transport", "network", 0.15),
        ):
            if self._chance(probability):
                layout[name] = value
        return layout

    def _model(self, data: Plain, task: Plain, *, stages: int, timeline: bool) -> Plain:
        name = self._one((*(name for name in STATIC_MODELS if name != "rgcn"), "pyg"))
        if timeline and self._chance(0.6):
            name = self._one((*DYNAMIC_MODELS, "recurrent", "recurrent", "pyg"))
        if name == "gine" and not data["edge_features"]:
            data["edge_features"] = self._one((1, 2, 5)) if data["merge"] != "count" else 1
        layers = max(stages, self._one((1, 2, 2, 3, 3, 4, 5)))
        hidden = _WIDE if self._chance(0.03) else self._one(_WIDTHS)
        if name == "pyg":
            return self._pyg(data, task, layers, timeline=timeline)
        model: Plain = {"name": name, "layers": layers, "hidden": hidden, "dropout": self._one((0.0, 0.0, 0.3))}
        if name in DYNAMIC_MODELS:
            self._dynamic(model, data)
            return model
        if self._chance(0.2):
            model["input_dropout"] = 0.2
        if name != "resgcn+":
            model["norm"] = self._one(("none", "none", "layer"))
            model["residual"] = self._chance(0.3)
            model["activation"] = self._one(("relu", "relu", "elu", "leaky", "none"))
        if name in ("gat", "gatv2"):
            model["heads"] = self._heads(hidden)
            model["out_heads"] = self._one((1, 2))
            model["attention_dropout"] = self._one((0.0, 0.3))
        if name in ("gin", "gine"):
            model["train_eps"] = self._chance(0.5)
            model["mlp_norm"] = self._one(("layer", "none"))
        if name == "sage":
            model["root_weight"] = self._chance(0.7)
        if name == "resgcn+":
            model["final_norm"] = self._chance(0.5)
        return model

    def _dynamic(self, model: Plain, data: Plain) -> None:
        """Draw the options of a dynamic model."""
        name = model["name"]
        model["activation"] = self._one(("relu", "leaky", "elu"))
        if name == "tm-gcn":
            model |= {"window": self._one((1, 2, 3, 5)), "kind": self._one(WINDOWED)}
        if name != "recurrent":
            return
        spatial = self._one(SPATIAL)
        if spatial == "gine" and not data["edge_features"]:
            data["edge_features"] = 1
        temporal = self._one(TEMPORAL)
        model |= {"spatial": spatial, "temporal": temporal, "norm": self._one(("none", "layer"))}
        model["concat"] = temporal not in WINDOWED and self._chance(0.4)
        if spatial in ("gat", "gatv2"):
            model["heads"] = self._heads(model["hidden"])
        if temporal in WINDOWED:
            model["window"] = self._one((1, 2, 3, 5))

    def _heads(self, hidden: int) -> int:
        return self._one([heads for heads in (1, 2, 4, 8) if hidden % heads == 0])

    def _pyg(self, data: Plain, task: Plain, layers: int, *, timeline: bool) -> Plain:
        """Draw convolutions of PyG, whose last width is what the task reads."""
        decodes = task["name"] in ("link-prediction", "edge-classification") or task["decoder"] in ("linear", "mlp")
        return {
            "name": "pyg",
            "kinds": [self._one(PYG) for _ in range(layers)],
            "widths": [data["features"] or 2, *(self._one(_WIDTHS[1:]) for _ in range(layers))],
            "outputs": self._one((3, 8)) if decodes else data["classes"],
            "edge_features": data["edge_features"],
            "dropout": self._one((0.0, 0.3)),
            "dynamic": timeline and self._chance(0.7),
            "seed": self._random.randrange(1000),
        }

    def _exchanges(self, layout: Plain, model: Plain, *, timeline: bool) -> None:
        """Draw how rows and states cross, of the ways that the model's layers allow."""
        name = model["name"]
        if layout.get("vertex", 1) > 1:
            sums = name in SUMMING or (name == "recurrent" and model["spatial"] in ("gcn", "sage", "gin"))
            spatial = self._one(("halo", "auto", "redistribute") if sums else ("halo", "auto"))
            if spatial != "auto":
                layout["spatial"] = spatial
        if layout.get("time", 1) > 1:
            ways = ["auto"]
            windowed = name == "tm-gcn" or model.get("temporal") in WINDOWED
            if windowed or name in ("cd-gcn", "wd-gcn", "recurrent") or (name == "pyg" and model["dynamic"]):
                ways += ["carry", "redistribute", *(["halo"] if windowed else [])]
            temporal = self._one(ways)
            if temporal != "auto":
                layout["temporal"] = temporal

    def _chunks(self, layout: Plain, *, timeline: bool) -> Plain:
        """Draw chunks: exact ones, or such as read history, where one process is cut into the same chunks."""
        if not self._chance(0.35):
            return {}
        layout["chunks"] = self._one((2, 3, 4))
        if timeline:
            return {}
        if layout.get("vertex", 1) > 1 or self._chance(0.5):
            layout["history"] = "exact"
            return {}
        layout.pop("recompute", None)
        layout["history"] = {
            "start": self._one(("exact", "zero")),
            "period": self._one((1, 1, 2)),
            "blend": self._one((0.0, 0.8)),
            "shuffle": self._chance(0.7),
            "scale": self._one((1.0, 2.0)),
            "refresh": self._one((0, 0, 2)),
        }
        return {"chunks": layout["chunks"], "history": layout["history"]}

    def _sizes(self, data: Plain, layout: Plain, model: Plain) -> None:
        """Make vertices enough for the parts, and not more than a case has time for."""
        width = model.get("hidden") or max(model["widths"])
        layers = model.get("layers") or len(model["kinds"])
        steps = data.get("steps", 1)
        most = max(16, _MOST // (max(width, data["features"]) * layers * steps))
        data["vertices"] = min(data["vertices"], most)
        if self._chance(0.1):  # parts of a vertex or two
            data["vertices"] = layout.get("vertex", 1) * layout.get("chunks", 1) + self._one((0, 1, 2))
        data["vertices"] = max(data["vertices"], 6, layout.get("vertex", 1) * layout.get("chunks", 1))
        if width <= 8 and layers <= 3 and steps <= 6 and self._chance(0.4):
            data["vertices"] = _GROUPED * layout.get("vertex", 1) + self._one((0, 7, 90))
        if "steps" in data:
            split = data["by_step"] or data["targets"] == "none"
            training = max(1, steps - 3) if split else steps
            for name in ("time", "blocks"):
                if isinstance(layout.get(name), int):
                    layout[name] = min(layout[name], training)

    def _train(self, model: Plain) -> Plain:
        # Of a model of width 1 a norm leaves nothing but rounding, which Adam makes large; the loss of a wide one
        # explodes where it is not clipped.
        optimiser = "sgd" if model.get("hidden") in (1, _WIDE) else self._one(("adam", "adamw", "sgd", "sgd"))
        train: Plain = {
            "epochs": EPOCHS,
            "optimiser": optimiser,
            "lr": 0.1 if optimiser == "sgd" else 0.01,
            "clip": 1.0 if optimiser == "sgd" else None,  # without, the loss of some cases explodes
            "seed": self._random.randrange(1000),
            "precision": "float64",
            "eval_every": self._one((1, 2, EPOCHS + 1)),
            "order": self._one(("auto", "none")),
        }
        if self._chance(0.3):
            train["weight_decay"] = self._one((0.01, {"conv": 0.02, "dense": 0.001}))
        if self._chance(0.2):
            train["clip"] = 0.01
        if self._chance(0.2):
            train["lr_schedule"] = "cosine"
        return train

    def _thresholds(self, case: ExactCase) -> Plain:
        """Draw which constants are lowered: none in a quarter of the cases, otherwise some of those that are read."""
        if self._chance(0.25):
            return {}
        values: dict[str, Any] = {}
        for name, threshold in THRESHOLDS.items():
            chosen, low = self._one(threshold.values), self._chance(threshold.chance)
            if low and threshold.when(case):
                values[name] = {str(k): v for k, v in chosen.items()} if isinstance(chosen, dict) else chosen
        return values
