"""The configurations in examples/accuracy: they are sound (fast), and they reach their goals (slow)."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from trisect.cli.main import run_command
from trisect.config import load_config
from trisect.train.from_config import resolve

ROOT = Path(__file__).resolve().parents[2]


def load_benchmark() -> ModuleType:
    name = "benchmarks_accuracy"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / "accuracy.py")
        assert spec is not None
        assert spec.loader is not None
        # dataclasses look their module up here
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


benchmark = load_benchmark()


def outcome(values: tuple[float, ...], goal: float | None, measure: str = "accuracy"):
    return benchmark.Outcome("case", measure, values, goal, None, (1,) * len(values), 1.0)


@pytest.mark.parametrize("case", benchmark.find_cases([]), ids=lambda case: case.name)
def test_configuration_is_sound(case):
    config = resolve(load_config(case.config, case.settings(1)))
    assert config.train.seed == 1
    assert not case.splits or config.data.options["split"] == 1
    assert config.data.directory is None
    assert config.train.monitor is None or config.train.monitor.startswith("val.")


def test_every_case_has_a_configuration():
    assert [name for name, case in benchmark.CASES.items() if not case.config.is_file()] == []


def test_goal_is_of_the_mean():
    assert outcome((0.80, 0.82), 0.81).reached
    assert not outcome((0.80, 0.81), 0.81).reached
    assert outcome((0.1,), None).reached
    assert outcome((0.80, 0.81), 0.81, "mse").reached
    assert not outcome((0.80, 0.83), 0.81, "mse").reached


def test_table_tells_a_missed_goal():
    text = benchmark.table([outcome((0.8, 0.9), 0.84), outcome((0.8, 0.9), 0.86)])
    assert [line.split("|")[7].strip() for line in text.splitlines()[2:]] == ["yes", "NO"]
    assert "0.8500 ± 0.0707" in text


def test_unknown_configuration_is_named():
    with pytest.raises(SystemExit, match="no configuration cora-gnc"):
        benchmark.find_cases(["cora-gnc"])


def test_only_the_very_same_finished_run_is_reused(tmp_path):
    case = benchmark.CASES["cora-gcn"]
    settings = resolve(load_config(case.config, case.settings(1)), tmp_path).resolved()
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    assert not benchmark.finished(case, 1, tmp_path)  # it still runs
    (tmp_path / "summary.json").write_text("{}")
    assert benchmark.finished(case, 1, tmp_path)
    assert not benchmark.finished(case, 2, tmp_path)
    assert not benchmark.finished(benchmark.CASES["cora-gcnii"], 1, tmp_path)


def test_a_run_that_was_interrupted_goes_on(tmp_path, monkeypatch):
    data = {"generate": "community", "vertices": 60, "classes": 3, "features": 4, "per_class": 5}
    config = {"data": data, "model": {"name": "gcn", "hidden": 4}, "task": "node-classification"}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump({**config, "train": {"epochs": 3, "checkpoint_every": 1}}))
    monkeypatch.setattr(benchmark, "CONFIGS", tmp_path)
    case, out = benchmark.Case("small", ()), tmp_path / "run"
    assert run_command([*benchmark.command(case, 1, None, out), "--set", "train.epochs=2"]) == 0
    (out / "summary.json").unlink()
    begun = (out / "metrics.jsonl").read_text()
    benchmark.train(case, 1, None, out)
    assert benchmark.finished(case, 1, out)
    assert (out / "metrics.jsonl").read_text().startswith(begun)  # with the seconds that those epochs took


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("case", benchmark.CASES.values(), ids=lambda case: case.name)
def test_accuracy(case, shared_data, tmp_path):
    for found in benchmark.run_case(case, 3, str(shared_data), tmp_path):
        assert found.reached, benchmark.table([found])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_untrained_model_misses_the_goal(shared_data, tmp_path, monkeypatch):
    case = benchmark.CASES["cora-gcn"]
    settings = benchmark.Case.settings
    monkeypatch.setattr(benchmark.Case, "settings", lambda self, seed: [*settings(self, seed), "train.epochs=1"])
    (found,) = benchmark.run_case(case, 3, str(shared_data), tmp_path)
    assert found.epochs == (1, 1, 1)
    assert not found.reached
