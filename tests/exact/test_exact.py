"""A minute of drawn cases, and that what is wrong is noticed and can be repeated; `make exact` draws on."""

from __future__ import annotations

import copy
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "ranks"))

from compared_runs import differences
from drawn_cases import draw
from exact_case import ExactCase
from native_level import native_level
from noted import CONSULTED, noted
from rank_work import Outcome
from thresholds import THRESHOLDS, lowered

from exact import compare, drawn, named
from trisect.config.names import MODELS, TASKS

ROOT = Path(__file__).parents[2]
SEED = 2026
# the first ones, and others that together read every constant of `THRESHOLDS` while it is lowered
CASES = (*range(30), 37, 106, 119, 176, 200, 244, 297, 317, 339, 382)
HALO = ExactCase.parse(
    '{"cut": "turn", "data": {"classes": 3, "degree": 2.0, "duplicates": false, "edge_features": 0, "features": 3,'
    ' "hub": false, "isolated": 0.0, "loops": false, "masks": true, "merge": "mean", "missing": 0.0, "near": false,'
    ' "seed": 4, "targets": "classes", "undirected": true, "untrained": false, "vertices": 12, "weights": false},'
    ' "layout": {"spatial": "halo", "vertex": 2}, "model": {"hidden": 4, "layers": 2, "name": "gcn"},'
    ' "task": {"name": "node-classification"}, "train": {"epochs": 3, "lr": 0.1, "optimiser": "sgd",'
    ' "precision": "float64", "seed": 1}}'
)


def exact(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, whose forks inherit nothing of this one."""
    command = [sys.executable, str(ROOT / "tests" / "exact" / "exact.py"), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)


@pytest.mark.timeout(1200)
def test_drawn_cases_equal_one_process() -> None:
    ended = exact("--patience", "400", *(word for number in CASES for word in ("--case", f"{SEED}:{number}")))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"cases equal    {len(CASES)}," in ended.stdout
    assert f"thresholds     {len(THRESHOLDS)} of {len(THRESHOLDS)} read" in ended.stdout, ended.stdout


@pytest.mark.timeout(600)
def test_cases_that_failed_once_equal_one_process() -> None:
    """`found_cases.jsonl`: layers that read the halo rows of a step themselves (gat, gatv2, gine, PyG), which had those
    of other rows; blocks of one step that are computed again, where a small halo was written over saved rows; and
    redistributed steps with recompute, where a rank without steps sent gradients after rows instead of before; and rows
    gathered for a function on a rank without steps, which had no gradient where those of others had one."""
    texts = (Path(__file__).parent / "found_cases.jsonl").read_text().splitlines()
    ended = exact("--patience", "300", *(word for text in texts for word in ("--case", text)))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"cases equal    {len(texts)}," in ended.stdout


@pytest.mark.timeout(600)
def test_spoilt_ranks_are_noticed_and_repeated() -> None:
    """Wrong rows, a rank that dies and one that hangs: each fails, and the case after them is trained all the same."""
    texts = [replace(HALO, spoil=spoil).text() for spoil in ("swap", "exit", "hang", "")]
    ended = exact("--patience", "20", *(word for text in texts for word in ("--case", text)))
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "cases equal    1," in ended.stdout
    assert "cases failed   3\n" in ended.stdout
    assert "parameters differ" in ended.stdout
    assert "rank 1 failed: the process died" in ended.stdout
    assert "no answer" in ended.stdout
    repeated = [line for line in ended.stdout.splitlines() if line.startswith("python tests/exact/exact.py")]
    assert [shlex.split(line)[-1] for line in repeated] == texts[:3]
    words = shlex.split(repeated[0])[2:]
    again = exact(*words)
    assert again.returncode == 1
    told = [line for line in ended.stdout.splitlines() if line.startswith("    loss.")]
    assert told
    assert told == [line for line in again.stdout.splitlines() if line.startswith("    loss.")]


@pytest.mark.timeout(600)
def test_a_fault_that_one_process_has_too_is_noticed_behind_a_threshold() -> None:
    """One process takes the library's own constants, and so another path than ranks whose constants are lowered."""
    spoilt = replace(HALO, model={"hidden": 4, "layers": 2, "name": "gin", "train_eps": True}, spoil="pooled")
    reached = replace(spoilt, thresholds={"ops.memory.SMALLEST": 0})
    ended = exact("--patience", "60", "--case", spoilt.text(), "--case", reached.text())
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "cases equal    1," in ended.stdout
    assert "cases failed   1\n" in ended.stdout
    repeated = [line for line in ended.stdout.splitlines() if line.startswith("python tests/exact/exact.py")]
    assert [shlex.split(line)[-1] for line in repeated] == [reached.text()]


def test_a_case_that_is_refused_is_not_equal() -> None:
    ended = exact("--case", replace(HALO, layout={"vertex": 2, "chunks": 20}).text())
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert "more than the graph's 12 vertices" in ended.stdout


def outcome() -> Outcome:
    """What a process of a case with three vertices and two steps might have found."""
    rows = [("value", 0, np.arange(3), np.arange(6.0).reshape(2, 3, 1))]
    return Outcome(
        loss=[0.5, 0.25],
        epochs=[{"epoch": 1, "val": {"loss": 0.5}}],
        metrics={"test": {"auc": 0.75, "per_step": [0.5, float("nan")]}},
        baselines={"test": {"mean": {"auc": 0.5}}},
        communication={"bytes_per_epoch": 96, "formula_bytes_per_epoch": 96},
        formula={"vertex/halo": 64, "weights/reduce": 32},
        parameters={"model.weight": np.array([1.0, -2.0]), "model.bias": np.array([0.0])},
        rows=rows,
    )


def _parameter(found: Outcome) -> None:
    found.parameters["model.bias"][0] += 1e-9


def _missing(found: Outcome) -> None:
    del found.parameters["model.bias"]


def _loss(found: Outcome) -> None:
    found.loss[1] *= 1 + 1e-8


def _nan(found: Outcome) -> None:
    found.loss[0] = float("nan")


def _metric(found: Outcome) -> None:
    found.metrics["test"]["auc"] += 1e-9


def _epoch(found: Outcome) -> None:
    found.epochs[0]["val"]["loss"] = 0.4


def _rule(found: Outcome) -> None:
    found.baselines["test"] = {}


def _ledger(found: Outcome) -> None:
    found.communication["bytes_per_epoch"] += 8


def _kind(found: Outcome) -> None:
    found.sent = {"vertex/halo": 32, "time/halo": 32, "weights/reduce": 32}


def _predicted(found: Outcome) -> None:
    found.rows[0][3][1, 2, 0] += 1e-6


def _unpredicted(found: Outcome) -> None:
    name, first, vertices, values = found.rows[0]
    found.rows[0] = (name, first, vertices[:2], values[:, :2])


def _failed(found: Outcome) -> None:
    found.failed = "RuntimeError: internal error"


def _refused(found: Outcome) -> None:
    found.refused = "LayoutError: use fewer parts."


WRONG: dict[Callable[[Outcome], None], str] = {
    _parameter: "1 of 2 parameters differ, model.bias by 1.0e-09 (ranks [1])",
    _missing: "parameters ['model.bias'] are not on both sides (ranks [1])",
    _loss: "loss.1 is 0.2500000025, and 0.25 in one process (ranks [1])",
    _nan: "loss.0 is nan, and 0.5 in one process (ranks [1])",
    _metric: "metrics.test.auc is 0.750000001, and 0.75 in one process",
    _epoch: "epochs.0.val.loss is 0.4, and 0.5 in one process",
    _rule: "baselines.test has [], and one process ['mean']",
    _ledger: "the ledger has 104 bytes an epoch, and the formula 96",
    _kind: "the ledger has 32 bytes of time/halo, and the formula 0; 32 bytes of vertex/halo, and the formula 64",
    _predicted: "rank 1 predicts value of steps from 0, which differs by 2.0e-07",
    _unpredicted: "no rank predicts value of 2 of 6 rows",
    _failed: "rank 1 failed: RuntimeError: internal error",
    _refused: "ranks [1] alone refuse it: LayoutError: use fewer parts.",
}


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__.lstrip("_"))
def test_the_comparison_can_fail(wrong: Callable[[Outcome], None]) -> None:
    ranks = [outcome(), outcome()]
    ranks[0].sent = dict(ranks[0].formula)
    assert differences(HALO, outcome(), ranks) == []
    wrong(ranks[1])
    if wrong in (_metric, _epoch, _rule, _ledger):  # which rank 0 alone tells
        ranks.reverse()
    if wrong is _kind:
        ranks[0].sent = {}
    if wrong is _unpredicted:
        ranks = ranks[1:]
        ranks[0].sent = dict(ranks[0].formula)
    assert differences(HALO, outcome(), ranks) == [WRONG[wrong]]


def test_what_one_process_refuses_ranks_must_refuse() -> None:
    alone = outcome()
    _refused(alone)
    assert differences(HALO, alone, [outcome()]) == [
        "one process refuses it, and ranks do not: LayoutError: use fewer parts."
    ]
    assert differences(HALO, alone, [copy.deepcopy(alone)]) == []


class OneIsWrong:
    """A pool that trains nothing, and finds one of the cases wrong and one refused."""

    def __init__(self, wrong: ExactCase, refused: ExactCase) -> None:
        self._wrong, self._refused = wrong, refused

    def run(self, case: ExactCase) -> tuple[Outcome, list[Outcome]]:
        alone, ranks = outcome(), [outcome() for _ in range(case.ranks)]
        ranks[0].sent = dict(alone.formula)
        if case == self._wrong:
            _loss(ranks[0])
        if case == self._refused:
            for found in (alone, *ranks):
                _refused(found)
        return alone, ranks


def test_the_printed_command_names_the_case(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = draw(3, 6)
    cases = [next(source) for source in [drawn(3)] for _ in range(10)]
    tally = compare(cases, OneIsWrong(wrong, draw(3, 8)))
    assert (tally.equal, tally.failed, sum(tally.refused.values())) == (8, ["3:6"], 1)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("python "))
    assert line == "python tests/exact/exact.py --case 3:6"
    assert named(shlex.split(line)[-1]) == ("3:6", wrong)
    assert "cases refused  1 (10.0% of those drawn)" in list(tally.lines())


def test_a_seed_draws_every_model_task_and_cut() -> None:
    cases = [draw(4, number) for number in range(600)]
    assert cases == [draw(4, number) for number in range(600)]
    assert cases[0] != draw(5, 0)
    assert {case.model["name"] for case in cases} == {*MODELS, "pyg"}
    assert {case.task["name"] for case in cases} == set(TASKS)
    assert {name for case in cases for name in case.thresholds} == set(THRESHOLDS)
    assert {case.native for case in cases} == {"", "0", "base"}
    assert {case.threads for case in cases} == {1, 2}
    assert any(case.prefetch for case in cases)
    assert any(case.data["vertices"] >= 1100 * case.layout.get("vertex", 1) for case in cases)
    assert any(case.model.get("hidden") == 600 for case in cases)
    assert {case.ranks for case in cases} >= {2, 3, 4, 6, 8}
    assert max(case.ranks for case in cases) == 8
    assert {case.layout.get("temporal") for case in cases} == {None, "carry", "redistribute", "halo"}
    assert {case.layout.get("spatial") for case in cases} == {None, "halo", "redistribute"}
    for case in cases[:50]:
        assert ExactCase.parse(case.text()) == case


def test_kernels_are_chosen_in_a_living_process() -> None:
    from trisect.native import library

    if not library.available():
        pytest.skip("there are no kernels to choose from")
    chosen, load = library.level(), library.Kernel("trisect_load", library.POINTER, returns=library.UINT32)
    number = np.array([7], np.uint32)
    for level in ("base", "0", ""):
        with native_level(level):
            assert library.available() == (level != "0")
            assert library.level() == {"0": "none", "": chosen}.get(level, level)
            if library.available():
                assert load(number.ctypes.data) == 7
            else:
                with pytest.raises(RuntimeError, match="without the native library"):
                    load(number.ctypes.data)
    assert library.level() == chosen


def test_what_is_read_of_a_constant_is_noted() -> None:
    for read in (lambda x: x >= 3, lambda x: x < 3, lambda x: 7 // x, lambda x: 2 + x, lambda x: 3 * x):
        for value in (2, 2.0):
            CONSULTED.clear()
            assert read(noted("constant", value)) == read(value)
            assert list(CONSULTED) == ["constant"]
    CONSULTED.clear()
    table = noted("constant", {2: 1.0})
    assert not CONSULTED
    assert table[2] == 1.0
    assert list(CONSULTED) == ["constant"]


def test_thresholds_are_set_and_set_back() -> None:
    """Each is a constant that the library has; a typing error would otherwise set nothing."""
    import trisect.ops.spmm.grouping as grouping
    from trisect.views import halo

    before = halo.OVERLAP_ROWS
    with lowered({name: threshold.values[0] for name, threshold in THRESHOLDS.items()}):
        assert halo.OVERLAP_ROWS == 1
        assert grouping._WIDEST[2] == 4096
    assert before == halo.OVERLAP_ROWS
