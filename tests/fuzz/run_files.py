"""Cases of what a run directory holds: its metrics, events, summary and plan as the report reads them, and checkpoints
as `--resume` does. Each file is damaged, or says what nobody meant, with hashes that fit."""

from __future__ import annotations

import copy
import json
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from trisect.config import TrainOptions, parse_config
from trisect.graph.graph import Graph
from trisect.nn.models.source import NamedModel
from trisect.report import render
from trisect.report.watch.follow import Follower
from trisect.tasks.curves import count_classes, summarise
from trisect.train.loop import Trainer
from trisect.train.outputs.calibration import Calibration
from trisect.train.recorders import NoRecorder
from trisect.train.run.checkpoint import Checkpoints, Shard, write_shard
from trisect.train.run.digest import require_same_data
from trisect.train.run.manifest import manifest_hash
from trisect.train.run.recorder import RunRecorder
from trisect.train.run.run_directory import RunDirectory
from trisect.train.setup import Setup

Case = Callable[[], Any]
Damage = Callable[[bytes, random.Random], bytes]

ODD: list[Any] = [
    None,
    -1,
    0,
    3,
    2**40,
    10**400,
    1.5,
    "x",
    "<script>",
    "NaN",
    [],
    {},
    True,
    [3],
    [-1],
    [None],
    float("nan"),
    float("inf"),
    1e308,
    -1e308,
    5e-324,
    [[[]]],
    {"a": {"b": 1}},
    "0F0",
    "1WbF0<0",
    "é" * 400,
]
CONFIG = {
    "data": {"generate": "community"},
    "model": {"name": "gcn", "layers": 2, "hidden": 8},
    "task": "node-classification",
}
SUMMARY = {
    "version": "0.1.0",
    "layout": {"time": 1, "layer": 2, "vertex": 1, "chunks": 4, "history": {"blend": 0.5}},
    "world": 2,
    "epochs": 3,
    "best_epoch": 2,
    "monitor": "val.map",
    "loss": [3.0, 2.0, 1.0],
    "seconds_per_epoch": {"best": 0.1, "median": 0.25},
    "metrics": {"train": {}, "val": {"loss": 1.0, "map": 0.5, "per_step": [1.0]}, "test": {"map": 0.6, "auc": 0.7}},
    "baselines": {"test": {"edgebank": {"map": 0.4, "auc": 0.5}, "recency": {"map": 0.5, "auc": 0.9}}},
    "communication": {
        "bytes_per_epoch": 2048,
        "by_axis": {"vertex": 0, "layer": 2048, "time": 0, "weights": 0},
        "formula_bytes_per_epoch": 2048,
    },
    "transfer": {"full_bytes": 1000, "sent_bytes": 250},
    "memory": {"peak_rss_bytes": [3 << 20, 2 << 20], "peak_pss_bytes": [1 << 20, 2 << 20]},
    "staleness": {
        "chunks": 4,
        "historical_reads": 0.3,
        "drift": 0.1,
        "loss": {"epoch": 2, "exact": 1.0, "stale": 1.5},
        "checks": 1,
        "stepped_in": [{"epoch": 2, "why": "x", "back_to": 1, "then": "y"}],
    },
    "plan": {"seconds_per_epoch": None, "bytes_per_epoch": 2048, "memory_bytes": None},
}


CALIBRATION = Calibration(1.5, -0.2, 40, 7)


def changed(plain: Any, rng: random.Random) -> Any:
    """A copy in which one value, anywhere, is another, or is gone."""
    plain = copy.deepcopy(plain)
    target = plain
    while True:
        keys: list[Any] = sorted(target) if isinstance(target, dict) else list(range(len(target)))
        if not keys:
            return rng.choice(ODD)
        key = rng.choice(keys)
        inner = target[key]
        if isinstance(inner, (dict, list)) and inner and rng.random() < 0.7:
            target = inner
            continue
        if rng.random() < 0.15:
            del target[key]
        else:
            target[key] = copy.deepcopy(rng.choice(ODD))
        return plain


def changed_json(content: bytes, damage: Damage, rng: random.Random) -> bytes:
    """A file of JSON lines, or one object, that was damaged or in which a value was replaced."""
    if rng.random() < 0.3:
        return damage(content, rng)
    try:
        lines = [json.loads(line) for line in content.splitlines()]
    except ValueError:
        return json.dumps(changed(json.loads(content), rng)).encode()
    number = rng.randrange(len(lines))
    lines[number] = changed(lines[number], rng)
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def finished_run(path: Path) -> RunDirectory:
    """A run directory of two ranks, as training leaves it."""
    directory = RunDirectory.create(path, parse_config(CONFIG))
    for rank, names in enumerate((["0F0", "0PbF0>1", "0WbB0<1", "0B0"], ["1WbF0<0", "1F0", "1B0", "1PbB0>0"])):
        recorder = RunRecorder(directory, rank=rank)
        for epoch in (1, 2, 3):
            for number, name in enumerate(names):
                recorder.event(name, 10.0 * epoch + number, 0.5, epoch=epoch)
            if rank == 0:
                splits = {"val": {"map": epoch / 4, "loss": 1.0}, "test": {"map": 0.5}}
                recorder.epoch({"epoch": epoch, "loss": 1 / epoch, "lr": 0.1, "seconds": 0.2, **splits})
        recorder.close()
    directory.write_plan({"stages": [[0, 0], [1, 1]], "layers": [{"across": "none"}] * 2, "rows": [3]})
    numbers = torch.Generator().manual_seed(1)
    logits, labels = torch.randn(40, 3, generator=numbers), torch.randint(3, (40,), generator=numbers)
    scores = summarise(count_classes(logits, labels))
    directory.write_summary(SUMMARY, {"val": scores, "test": scores, "classes": ["a", "b", "c"]})
    return directory


def report_of(name: str, damage: Damage) -> Callable[[Path, random.Random], Iterator[Case]]:
    """Cases of one file of a run directory, read by the report."""

    def cases(folder: Path, rng: random.Random) -> Iterator[Case]:
        directory = finished_run(folder / "run")
        path = directory.path / name
        content = path.read_bytes()
        while True:
            path.write_bytes(changed_json(content, damage, rng))
            yield lambda: render(RunDirectory.reopen(directory.path))

    return cases


def watch_cases(damage: Damage) -> Callable[[Path, random.Random], Iterator[Case]]:
    """Cases of a run that is watched as it goes on."""

    def cases(folder: Path, rng: random.Random) -> Iterator[Case]:
        directory = finished_run(folder / "run")
        contents = {name: (directory.path / name).read_bytes() for name in ("metrics.jsonl", "summary.json")}

        def look() -> None:
            follower = Follower(directory.path)
            follower.look()
            json.dumps(follower.records)

        while True:
            for name, content in contents.items():
                (directory.path / name).write_bytes(changed_json(content, damage, rng))
            yield look

    return cases


def calibration_cases(damage: Damage) -> Callable[[Path, random.Random], Iterator[Case]]:
    """Cases of the probabilities that a run directory keeps."""

    def cases(folder: Path, rng: random.Random) -> Iterator[Case]:
        CALIBRATION.write(folder)
        path = folder / "calibration.json"
        content = path.read_bytes()

        def use() -> None:
            kept = Calibration.read(folder)
            if kept is None:  # it does not say which steps it was fitted to, and is fitted anew
                return
            probabilities = kept(torch.linspace(-3, 3, 7))
            assert bool(((probabilities >= 0) & (probabilities <= 1)).all())

        while True:
            path.write_bytes(changed_json(content, damage, rng))
            yield use

    return cases


def _trainer() -> Trainer:
    graph = Graph.generate("community", vertices=12, classes=2, features=3, per_class=2, seed=1)
    model = NamedModel("gcn", {"layers": 2, "hidden": 4}, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        setup = Setup.of(model, graph, "node-classification", TrainOptions(epochs=20))
    return Trainer(setup, setup_options(), NoRecorder())


def setup_options() -> TrainOptions:
    """The options of the run whose checkpoints are read."""
    return TrainOptions(epochs=20)


def _other_tensor(value: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """A tensor of another type, shape or size of numbers."""
    kind = rng.randrange(4)
    if kind == 0:
        return value.to(rng.choice([torch.float64, torch.int64, torch.bool, torch.bfloat16, torch.uint8]))
    if kind == 1:
        return value.flatten()[: rng.randrange(3)]
    if kind == 2:
        return value * rng.choice([float("nan"), float("inf"), 1e38, -1.0])
    return value[None]


def checkpoint_cases(damage: Damage) -> Callable[[Path, random.Random], Iterator[Case]]:
    """Cases of a checkpoint: bytes of its files, its manifest, its meta, and its tensors, with hashes that fit."""

    def cases(folder: Path, rng: random.Random) -> Iterator[Case]:
        trainer = _trainer()
        trainer.train_epoch(1)
        trainer.done, trainer.loss = 1, [1.0]
        tensors, meta = trainer.state_tensors(), {**trainer.state_meta(), "data": "0" * 64}
        meta["guard"] = {
            **dict.fromkeys(("level", "alarms", "good_epoch"), 0),
            "began": 1,
            "checks": [{"epoch": 1, "exact": 1.0, "stale": 1.0}],
            "actions": [{"epoch": 1, "why": "x", "back_to": 0, "then": "y"}],
        }
        checkpoints = Checkpoints(folder / "checkpoints", run="run")

        def write(tensors: dict[str, torch.Tensor]) -> Path:
            draft = checkpoints.draft(1)
            shard = Shard.from_plain(write_shard(draft, 0, tensors).plain())
            checkpoints.commit(draft, [shard], meta, epoch=1, best=True)
            return checkpoints.paths()[-1]

        path = write(tensors)
        manifest, shard = path / "manifest.json", path / "rank-00000.safetensors"
        contents = {file: file.read_bytes() for file in (manifest, shard)}
        while True:
            for file, content in contents.items():
                file.write_bytes(content)
            kind = rng.randrange(5)
            if kind == 0:
                victim = rng.choice([manifest, shard])
                victim.write_bytes(damage(contents[victim], rng))
            elif kind == 1:  # the tensors are others, and everything fits together
                name = rng.choice(sorted(tensors))
                others = {**tensors, name: _other_tensor(tensors[name], rng)}
                if rng.random() < 0.3:
                    others[rng.choice(["optimiser.x", "best.model.y", "program.z", name + "s"])] = others.pop(name)
                write(others)
            else:
                plain = json.loads(contents[manifest])
                if kind == 2:
                    plain = changed(plain, rng)
                else:
                    plain["meta"] = changed(plain["meta"], rng)
                if isinstance(plain, dict):
                    plain["sha256"] = manifest_hash(plain)
                manifest.write_text(json.dumps(plain))

            def resume() -> None:
                read = checkpoints.read(path)
                require_same_data(read.meta, "0" * 64, folder)
                trainer.load(read.tensors, read.meta)
                trainer.train_epoch(trainer.done + 1)
                json.dumps(trainer.state_meta())

            yield resume

    return cases
