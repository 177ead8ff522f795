"""Probabilities of links hold near the steps that they were fitted to; far out, or after a silence, they are marked."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

import trisect
from trisect.cli.main import run_command
from trisect.train.outputs.calibration import CALIBRATION, Calibration, silence_at

DAYS, SILENT = 12, 37
TASK = {"name": "link-prediction", "eval_negatives": 5, "decoder": "dot"}


def _events(days: list[int], seed: int) -> str:
    rng = np.random.default_rng(seed)
    start = np.datetime64("2024-01-01")
    rows = [f"a{src},a{dst},{start + day}" for day in days for src, dst in rng.integers(0, 20, (12, 2))]
    return "src,dst,time\n" + "\n".join(rows) + "\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on twelve days, and rows of the day after, of a day after a silence, and of all days after for long."""
    path = tmp_path_factory.mktemp("silence")
    later = {"next": [DAYS], "silent": [DAYS + SILENT], "long": list(range(DAYS, DAYS + SILENT))}
    for name, days in {"trained": list(range(DAYS)), **later}.items():
        (path / f"{name}.csv").write_text(_events(days, len(days)))
    columns = ["--src", "src", "--dst", "dst", "--time", "time", "--period", "1d"]
    assert run_command(["data", "ingest", str(path / "trained.csv"), *columns, "-o", str(path / "graph")]) == 0
    settings = {
        "data": {"path": str(path / "graph")},
        "model": {"name": "cd-gcn", "layers": 1, "hidden": 4},
        "task": TASK,
        "train": {"epochs": 1, "precision": "float64"},
    }
    (path / "run.yaml").write_text(yaml.safe_dump(settings))
    assert run_command(["train", str(path / "run.yaml"), "--out", str(path / "run")]) == 0
    (path / "pairs.csv").write_text("src,dst\na1,a2\na3,a4\n")
    return path


def _predict(folder: Path, rows: str, *more: str) -> dict[str, np.ndarray]:
    words = ["predict", str(folder / "run"), "--data", str(folder / f"{rows}.csv"), "--out", str(folder / "p.npz")]
    assert run_command([*words, "--pairs", str(folder / "pairs.csv"), *more]) == 0
    with np.load(folder / "p.npz", allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def test_predict_names_the_distance_after_a_silence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    near = _predict(folder, "next")
    assert near["calibrated"].tolist() == [True, True]
    assert "not probabilities" not in capsys.readouterr().out
    kept = Calibration.read(folder / "run")
    assert kept is not None
    assert (kept.steps, kept.silence, kept.events) == (DAYS, 0, 12.0)
    assert 0 < kept.first <= kept.last < DAYS - 1
    far = _predict(folder, "silent")
    assert far["calibrated"].tolist() == [False, False]
    said = " ".join(capsys.readouterr().out.split())
    step = DAYS + SILENT
    assert f"Step {step} lies {step - kept.last} steps after step {kept.last}, the last one" in said
    assert f"follows {SILENT} steps with fewer than 2 events" in said
    assert "scores rank links but are not probabilities" in said


def test_steps_are_marked_one_by_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a silence probabilities hold for a while, and steps that lie farther are marked."""
    columns = _predict(folder, "long", "--since", str(DAYS))
    kept = Calibration.read(folder / "run")
    assert kept is not None
    reach = kept.steps - kept.first
    assert columns["calibrated"][::2].tolist() == [step - (DAYS - 1) <= reach for step in columns["step"][::2]]
    assert columns["calibrated"].any()
    said = " ".join(capsys.readouterr().out.split())
    assert f"(and {SILENT - reach - 1} more of the {SILENT} steps)" in said


def test_a_run_in_python_warns(folder: Path) -> None:
    run = trisect.load(folder / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run.links(["a1"], ["a2"])["calibrated"].tolist() == [True]
    later = run.on(str(folder / "silent.csv"), say=lambda sentence: None)
    with pytest.warns(UserWarning, match=rf"follows {SILENT} steps with fewer than 2 events .* not probabilities"):
        assert later.links(["a1"], ["a2"])["calibrated"].tolist() == [False]
    with pytest.warns(UserWarning, match="not probabilities"):
        assert not later.top_k(3)["calibrated"].any()


def test_a_calibration_without_the_steps_of_its_fit_is_fitted_anew(folder: Path, tmp_path: Path) -> None:
    earlier = {"slope": 1.0, "intercept": 0.0, "pairs": 4, "positives": 2}
    (tmp_path / CALIBRATION).write_text(json.dumps(earlier))
    assert Calibration.read(tmp_path) is None
    kept = Calibration(1.0, 0.0, 4, 2, 8, 9, 12, 1, 30.0)
    kept.write(tmp_path)
    assert Calibration.read(tmp_path) == kept
    plain = json.loads((tmp_path / CALIBRATION).read_text())
    del plain["events"]
    (tmp_path / CALIBRATION).write_text(json.dumps(plain))
    assert Calibration.read(tmp_path) == replace(kept, events=0.0)


def test_a_few_events_are_a_silence_where_there_were_many() -> None:
    counts = np.array([40, 50, 60, 50, 40, 50] + 5 * [1])
    fitted = Calibration(1.0, 0.0, 9, 3, first=3, last=5, steps=6, silence=0, events=50.0)
    marked = [step for step in range(11) if fitted.distance(step, counts, continues=False) is not None]
    assert marked == [8, 9, 10]
    assert "follows 5 steps with fewer than 5 events" in str(fitted.distance(10, counts, continues=False))
    known = replace(fitted, events=0.0)  # of a run whose usual number of events was not kept
    assert known.distance(10, counts, continues=False) is None


def test_a_silence_counts_as_long_as_it_lasted() -> None:
    counts = np.array([4, 0, 0, 0, 1, 1, 1, 1, 0, 2])
    assert [silence_at(counts, step) for step in range(10)] == [0, 1, 2, 3, 3, 3, 3, 0, 1, 1]
    weekends = np.array([1, 1, 1, 1, 1, 0, 0] * 6)
    fitted = Calibration(1.0, 0.0, 9, 3, first=28, last=34, steps=42, silence=2)
    assert all(fitted.distance(step, weekends, continues=True) is None for step in range(14, 42))
    assert all(fitted.distance(step, weekends, continues=True) is not None for step in range(14))  # too early
    assert fitted.distance(0, weekends, continues=False) is None
    holiday = np.append(weekends, [1] * 3 + [0] * 10 + [1] * 12)
    marked = [step for step in range(len(holiday)) if fitted.distance(step, holiday, continues=False) is not None]
    assert marked == list(range(49, 65))
    # a timeline that stands alone has no distance to the steps of the fit; one that continues has
    assert fitted.distance(90, np.ones(91), continues=False) is None
    assert fitted.distance(90, np.ones(91), continues=True) is not None
    assert Calibration().distance(90, np.zeros(91), continues=True) is None
