"""`torchrun … -m trisect train` on hosts that share no file system: the files of a run as on one that all share.

The second host runs in a mount namespace of its own, with a file system of its own over the folder that holds --out.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CONFIG = """
data: {generate: community, vertices: 301, classes: 3, features: 9, per_class: 10}
model: {name: gcnii, layers: 3, hidden: 7, dropout: 0.3}
task: node-classification
train: {epochs: 5, lr: 0.01, optimiser: adamw, eval_every: 2, checkpoint_every: 2, timeout: 60}
"""
FAULTS = Path(__file__).resolve().parents[1] / "ranks" / "faults"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def mounts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip where a process may not have a file system of its own."""
    probe = shlex.quote(str(tmp_path_factory.mktemp("probe")))
    unshare = shutil.which("unshare")
    command = [str(unshare), "--mount", "sh", "-c", f"mount -t tmpfs none {probe}"]
    if unshare is None or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("unshare --mount with a tmpfs is not allowed here")


def two_hosts(
    folder: Path, *words: str, ranks: int = 1, restarts: int = 0, faults: list[dict[str, Any]] | None = None
) -> str:
    """Run `trisect train` on two hosts, of which the second has an empty run directory of its own; what it says."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = (
        f"--nnodes 2 --nproc-per-node {ranks} --master-addr 127.0.0.1 --master-port {port} --max-restarts {restarts}"
    )
    agent = [sys.executable, "-m", "torch.distributed.run", *place.split()]
    for name in ("tmp", "out"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "c.yaml").write_text(CONFIG)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(folder / "tmp"),
        "PYTHONPATH": os.pathsep.join((str(FAULTS), *filter(None, [os.environ.get("PYTHONPATH")]))),
        "TRISECT_TEST_FAULTS": json.dumps(faults or []),
    }
    out = shlex.quote(str(folder / "out"))
    # what lies there from another day is no sign that the run directory is shared
    stale = f"mount -t tmpfs none {out} && mkdir -p {out}/run"
    if "--resume" in words:
        stale += f"/checkpoints/epoch-000009 && touch {out}/run/config.yaml"
    commands = [[*agent, "--node-rank", str(k), "-m", "trisect", "train", "c.yaml", *words] for k in range(2)]
    commands[1] = ["unshare", "--mount", "sh", "-c", f'{stale} && exec "$@"', "sh", *commands[1]]
    hosts = [
        subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for command in commands
    ]
    try:
        said = [host.communicate(timeout=240) for host in hosts]
    finally:
        for host in hosts:
            host.kill()
            host.wait()
    assert [host.returncode for host in hosts] == [0, 0], said
    assert not list((folder / "tmp").glob("*trisect*"))
    return said[0][0]


@functools.cache
def _one_file_system(folder: Path, layout: str) -> Path:
    (folder / "c.yaml").write_text(CONFIG)
    command = [sys.executable, "-m", "trisect", "train", "c.yaml", "--out", layout, "--layout", layout]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "files to rank 0" not in done.stdout
    return folder / layout


@pytest.fixture(scope="module")
def one_file_system(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Gives, by layout, the run directory of the same ranks where all of them see it."""
    return functools.partial(_one_file_system, tmp_path_factory.mktemp("shared"))


def require_same_run(one: Path, two: Path, *, events: bool = True) -> None:
    """Compare checkpoints byte by byte, all that was measured, and what each rank did in each epoch."""
    files = [sorted(path.relative_to(run) for path in run.glob("checkpoints/epoch-??????/*")) for run in (one, two)]
    assert files[0] == files[1]
    assert len(files[0]) >= 6
    for file in files[0]:
        assert (one / file).read_bytes() == (two / file).read_bytes(), file
    assert lines(one / "metrics.jsonl") == lines(two / "metrics.jsonl")
    assert {path.name for path in one.glob("*")} == {path.name for path in two.glob("*")}
    names = {path.name for path in one.glob("events/*")}
    assert names == {path.name for path in two.glob("events/*")}
    for name in names if events else ():
        assert lines(one / "events" / name) == lines(two / "events" / name), name
    first, second = (json.loads((run / "summary.json").read_text()) for run in (one, two))
    for key in ("loss", "metrics", "best_epoch", "epochs", "parameters", "communication"):
        assert first[key] == second[key]


def lines(path: Path) -> list[dict[str, Any]]:
    """Give the records of a file without their times."""
    times = ("seconds", "start")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in record.items() if key not in times} for record in records]


@pytest.mark.parametrize(("layout", "ranks"), [("layer=2", 1), ("vertex=2,layer=2", 2)])
def test_a_run_is_the_one_of_a_shared_file_system(
    tmp_path: Path, one_file_system: Callable[[str], Path], layout: str, ranks: int
) -> None:
    shared = one_file_system(layout)
    said = two_hosts(tmp_path, "--out", "out/run", "--layout", layout, ranks=ranks)
    who = "Rank 1 does not see" if ranks == 1 else "Ranks 2, 3 do not see"
    assert f"{who} {tmp_path}/out/run, and hand" in said.replace("\n", " ")
    require_same_run(tmp_path / "out" / "run", shared)
    name = "rank-00001.safetensors"
    shard = sorted(shared.glob(f"checkpoints/epoch-*/{name}"))[-1]
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(AssertionError, match=name):  # the comparison can fail
        require_same_run(tmp_path / "out" / "run", shared)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_run_goes_on_to_the_same_bytes(tmp_path: Path, one_file_system: Callable[[str], Path], damaged: bool) -> None:
    shared = one_file_system("vertex=2")
    words = ("--out", "out/run", "--layout", "vertex=2")
    run = tmp_path / "out" / "run"
    two_hosts(tmp_path, *words, "--set", "train.epochs=4")
    if damaged:
        shard = run / "checkpoints" / "epoch-000004" / "rank-00001.safetensors"
        shard.write_bytes(shard.read_bytes()[:-1])
    said = two_hosts(tmp_path, *words, "--resume")
    assert f"Continuing after epoch {2 if damaged else 4}." in said
    assert ("Continuing from epoch-000002 instead" in said.replace("\n", " ")) == damaged
    require_same_run(run, shared, events=False)  # the first command has evaluated its last epoch once more
    assert {event["epoch"] for event in lines(run / "events" / "rank-1.jsonl")} == {1, 2, 3, 4, 5}


def test_a_killed_rank_comes_again(tmp_path: Path, one_file_system: Callable[[str], Path]) -> None:
    shared = one_file_system("vertex=2")
    fault = {"rank": 1, "epoch": 4, "kind": "SIGKILL", "fired": str(tmp_path / "fired")}
    said = two_hosts(tmp_path, "--out", "out/run", "--layout", "vertex=2", restarts=2, faults=[fault])
    assert (tmp_path / "fired").exists()
    # the checkpoint of epoch 2 may still have been under way
    assert "Continuing after epoch 2." in said or "There is no checkpoint in" in said.replace("\n", " ")
    path = tmp_path / "out" / "run" / "events" / "rank-0.jsonl"
    kept = [line for line in path.read_text().splitlines() if '"restart"' not in line]
    assert {"name": "restart", "count": 1} in lines(path)
    path.write_text("".join(f"{line}\n" for line in kept))
    require_same_run(tmp_path / "out" / "run", shared)
