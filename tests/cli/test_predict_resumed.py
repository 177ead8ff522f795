"""`predict --since` of recurrent models begins with a kept state, and gives what the run from step 0 gives."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from trisect.cli.main import run_command
from trisect.train.run.digest import digest_arrays

STEPS, LATER, VERTICES, NEW = 6, 4, 20, 3
MODELS = {
    "cd-gcn": {"name": "cd-gcn", "layers": 2, "hidden": 4},
    "gru": {"name": "recurrent", "layers": 2, "hidden": 4, "spatial": "gatv2", "temporal": "gru"},
    "evolvegcn-o": {"name": "evolvegcn-o", "layers": 2, "hidden": 4},
    "evolvegcn-h": {"name": "evolvegcn-h", "layers": 2, "hidden": 4},
}


def _events(path: Path, steps: range, vertices: int) -> None:
    rng = np.random.default_rng(steps.start)
    rows = [
        f"v{a},v{b},{step * 10 + k},{rng.random():.3f}"
        for step in steps
        for k in range(9)
        for a, b in rng.integers(0, vertices, (2, 2))
    ]
    path.write_text("\n".join(["src,dst,time,amount", *rows, ""]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("resumed")
    vertices = [f"v{k},{np.sin(k):.3f},{'yes' if k % 3 else 'no'}" for k in range(VERTICES + NEW)]
    (path / "vertices.csv").write_text("\n".join(["id,size,label", *vertices[:VERTICES], ""]))
    (path / "new-vertices.csv").write_text("\n".join(["id,size,label", *vertices[VERTICES:], ""]))
    _events(path / "past.csv", range(STEPS), VERTICES)
    _events(path / "later.csv", range(STEPS, STEPS + LATER), VERTICES)
    _events(path / "grown.csv", range(STEPS, STEPS + LATER), VERTICES + NEW)
    lines = (path / "grown.csv").read_text().splitlines(keepends=True)
    (path / "some.csv").write_text("".join(lines[: 1 + 18 * 2]))
    ingest = ["--src", "src", "--dst", "dst", "--time", "time", "--period", "10", "--edge-features", "amount"]
    ingest += ["--vertices", str(path / "vertices.csv"), "--id", "id", "--label-column", "label"]
    assert run_command(["data", "ingest", str(path / "past.csv"), *ingest, "-o", str(path / "graph")]) == 0
    for name, model in MODELS.items():
        settings = {
            "data": {"path": str(path / "graph")},
            "model": model,
            "task": {"name": "node-classification", "at": "every"},
            "train": {"epochs": 2, "lr": 0.05, "precision": "float64"},
        }
        (path / f"{name}.yaml").write_text(yaml.safe_dump(settings))
        assert run_command(["train", str(path / f"{name}.yaml"), "--out", str(path / name)]) == 0
    return path


def _predict(folder: Path, run: str, *arguments: str) -> dict[str, np.ndarray]:
    assert run_command(["predict", str(folder / run), "--out", str(folder / "p.npz"), *arguments]) == 0
    with np.load(folder / "p.npz", allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _grown(folder: Path, table: str = "grown") -> list[str]:
    return ["--data", str(folder / f"{table}.csv"), "--vertices", str(folder / "new-vertices.csv")]


def _kept(folder: Path, run: str) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in (folder / run / "state").glob("*.safetensors"))


def _agree(part: dict[str, np.ndarray], whole: dict[str, np.ndarray], since: int) -> bool:
    assert part["step"].tolist() == list(range(since, STEPS + LATER))
    return all(
        np.allclose(part[name], whole[name][since:], rtol=1e-10, atol=1e-12) for name in ("embedding", "probability")
    )


@pytest.mark.parametrize("run", MODELS)
def test_later_steps_begin_with_the_state_that_was_kept(
    folder: Path, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(folder / run / "state", ignore_errors=True)
    later = ["--data", str(folder / "later.csv")]
    whole = _predict(folder, run, *later, "--steps", "all")
    shutil.rmtree(folder / run / "state")
    _predict(folder, run)
    assert "Runs from step 0: no state is kept yet." in capsys.readouterr().out
    assert _kept(folder, run) == [STEPS - 1]
    assert _agree(_predict(folder, run, *later, "--since", str(STEPS)), whole, STEPS)
    assert f"Begins at step {STEPS - 1} with the state" in capsys.readouterr().out
    assert _kept(folder, run) == [STEPS - 1, STEPS + LATER - 1]
    assert _agree(_predict(folder, run, *later), whole, STEPS + LATER - 1)
    assert f"Begins at step {STEPS + LATER - 1} with" in capsys.readouterr().out


def _exchange_states(folder: Path, run: str) -> None:
    """Give the file of the trained steps the state of another step."""
    first, other = sorted((folder / run / "state").glob("*.safetensors"), key=lambda p: int(p.name.split("-")[1]))
    with safe_open(first, "pt") as file:
        meta = file.metadata()
    tensors = {name: tensor[:VERTICES] for name, tensor in load_file(other).items()}
    save_file(tensors, first, meta | {"content": digest_arrays(tensors)})
    other.unlink()


@pytest.mark.parametrize("layout", ["vertex=1", "vertex=2", "layer=2", "time=2"])
def test_under_a_cut_and_with_new_vertices(folder: Path, layout: str, capsys: pytest.CaptureFixture[str]) -> None:
    run, since = "cd-gcn", ["--since", str(STEPS), "--layout", layout]
    shutil.rmtree(folder / run / "state", ignore_errors=True)
    whole = _predict(folder, run, *_grown(folder), "--steps", "all")
    shutil.rmtree(folder / run / "state")
    _predict(folder, run, "--layout", layout)
    capsys.readouterr()
    assert _agree(_predict(folder, run, *_grown(folder), *since), whole, STEPS)
    said = capsys.readouterr().out
    if layout == "time=2":
        assert "Runs from step 0: states are kept and used where time is not cut" in said
        return
    assert f"Begins at step {STEPS - 1}" in said
    # a state of another step is no substitute
    _exchange_states(folder, run)
    assert not _agree(_predict(folder, run, *_grown(folder), *since), whole, STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["vertex=2", "layer=2", "vertex=2,layer=2"])
@pytest.mark.parametrize("run", ["gru", "evolvegcn-o", "evolvegcn-h"])
def test_every_state_under_cuts(folder: Path, run: str, layout: str, capsys: pytest.CaptureFixture[str]) -> None:
    later = ["--data", str(folder / "later.csv")]
    shutil.rmtree(folder / run / "state", ignore_errors=True)
    whole = _predict(folder, run, *later, "--steps", "all")
    shutil.rmtree(folder / run / "state")
    _predict(folder, run, "--layout", layout)
    capsys.readouterr()
    assert _agree(_predict(folder, run, *later, "--since", str(STEPS), "--layout", layout), whole, STEPS)
    assert f"Begins at step {STEPS - 1}" in capsys.readouterr().out


@pytest.mark.slow
def test_parts_whose_boundary_is_computed_apart(tmp_path: Path) -> None:
    settings = {
        "data": {"generate": "evolving", "vertices": 6000, "steps": 6},
        "model": MODELS["cd-gcn"],
        "task": {"name": "link-prediction", "eval_negatives": 2},
        "train": {"epochs": 1, "precision": "float64"},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(settings))
    assert run_command(["train", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "run")]) == 0
    whole = _predict(tmp_path, "run", "--layout", "vertex=2")["embedding"]
    assert _kept(tmp_path, "run") == [5]
    resumed = _predict(tmp_path, "run", "--layout", "vertex=2")["embedding"]
    np.testing.assert_allclose(resumed, whole, rtol=1e-10, atol=1e-12)
    alone = _predict(tmp_path, "run", "--layout", "vertex=1")["embedding"]
    np.testing.assert_allclose(alone, whole, rtol=1e-10, atol=1e-12)
    assert not np.allclose(whole[:, 1:], whole[:, :-1], rtol=1e-3)


def test_new_vertices_have_the_state_of_their_own_features(folder: Path) -> None:
    run = "gru"
    shutil.rmtree(folder / run / "state", ignore_errors=True)
    whole = _predict(folder, run, *_grown(folder), "--steps", "all")
    shutil.rmtree(folder / run / "state")
    _predict(folder, run)
    assert _agree(_predict(folder, run, *_grown(folder), "--since", str(STEPS)), whole, STEPS)


def test_a_state_that_does_not_fit_is_not_used(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = "evolvegcn-h"
    shutil.rmtree(folder / run / "state", ignore_errors=True)
    whole = _predict(folder, run, *_grown(folder), "--steps", "all")
    shutil.rmtree(folder / run / "state")
    _predict(folder, run)
    assert _agree(_predict(folder, run, *_grown(folder), "--since", str(STEPS)), whole, STEPS)
    assert f"{NEW} new vertices take part" in capsys.readouterr().out

    run = "cd-gcn"
    shutil.rmtree(folder / run / "state", ignore_errors=True)
    _predict(folder, run, *_grown(folder, "some"))  # two of the later steps, the second of which may be cut off
    assert _kept(folder, run) == [STEPS + 1]
    _predict(folder, run, "--data", str(folder / "later.csv"), "--since", str(STEPS + 2))
    assert f"the data before step {STEPS + 1} are not those of the kept state" in capsys.readouterr().out
    _predict(folder, run, *_grown(folder), "--since", str(STEPS))
    assert f"no state is kept of a step up to {STEPS}" in capsys.readouterr().out
    _predict(folder, run, *_grown(folder), "--since", str(STEPS + 2))
    assert f"Begins at step {STEPS + 1}" in capsys.readouterr().out
    for path in (folder / run / "state").iterdir():
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    _predict(folder, run, *_grown(folder), "--since", str(STEPS + 2))
    assert "is damaged" in capsys.readouterr().out
