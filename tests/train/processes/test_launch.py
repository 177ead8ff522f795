from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trisect.comm.world import world_from_environment
from trisect.errors import FaultError, LayoutError, RunError, StoppedError, TrisectError
from trisect.ops import memory
from trisect.train.processes.faults import Phase
from trisect.train.processes.launch import launch, require_room


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_each_rank_knows_its_place(tmp_path: Path) -> None:
    code = (
        "import os, pathlib;"
        f"pathlib.Path({str(tmp_path)!r}, os.environ['RANK']).write_text("
        "' '.join(os.environ[k] for k in ('WORLD_SIZE', 'LOCAL_RANK', 'OMP_NUM_THREADS')))"
    )
    launch(python(code), 3, threads=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]
    assert (tmp_path / "1").read_text() == "3 1 2"


def test_a_killed_rank_is_named_and_ends_the_others() -> None:
    code = (
        "import os, signal, time;os.kill(os.getpid(), signal.SIGKILL) if os.environ['RANK'] == '1' else time.sleep(600)"
    )
    with pytest.raises(RunError, match=r"rank 1 was ended by signal 9 \(SIGKILL\)"):
        launch(python(code), 3)


def test_the_culprit_is_named_not_the_rank_that_lost_it() -> None:
    # rank 0 notices first that rank 1 is gone, and ends before it does
    code = (
        "import os, time, sys\n"
        "import json, pathlib\n"
        "rank = int(os.environ['RANK'])\n"
        "folder = pathlib.Path(os.environ['TRISECT_FAILURES'])\n"
        "message = 'lost rank 1' if rank == 0 else 'out of memory'\n"
        "note = {'rank': rank, 'time': time.time(), 'message': message, 'of_peer': rank == 0}\n"
        "(folder / f'rank-{rank}.json').write_text(json.dumps(note))\n"
        "time.sleep(0.5 * (1 + rank))\n"
        "sys.exit(1)\n"
    )
    with pytest.raises(RunError, match="rank 1: out of memory"):
        launch(python(code), 2)


@pytest.mark.parametrize(("asked", "kind"), [(True, StoppedError), (False, FaultError)])
def test_a_request_is_not_forgotten_where_another_rank_is_lost(asked: bool, kind: type[TrisectError]) -> None:
    # rank 1 is asked to end, and rank 0 is killed before they could stop together
    program = (
        "import os, pathlib, signal, time\n"
        "from trisect.train.processes.faults import tell_request\n"
        "from trisect.train.processes.stopping import heeding_requests\n"
        "rank, folder = int(os.environ['RANK']), pathlib.Path(os.environ['TRISECT_FAILURES'])\n"
        "with heeding_requests(60, lambda: tell_request(rank)):\n"
        f"    if rank == 1 and {asked}: os.kill(os.getpid(), signal.SIGTERM)\n"
        f"    while rank == 1 or ({asked} and not list(folder.glob('rank-1.asked'))): time.sleep(0.1)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with pytest.raises(kind):
        launch(python(program), 2)


def test_a_rank_that_is_asked_before_it_heeds_requests_was_asked() -> None:
    code = (
        "import os, signal, time; time.sleep(60) if os.environ['RANK'] == '0' else os.kill(os.getpid(), signal.SIGTERM)"
    )
    with pytest.raises(StoppedError):
        launch(python(code), 2)


def test_a_world_alone_is_none() -> None:
    assert world_from_environment({}) is None
    world = world_from_environment({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"})
    assert world is not None
    assert (world.rank, world.size, world.local_rank, world.local_size) == (3, 8, 1, 2)


def test_room_is_what_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRISECT_MEMORY", "256MiB")
    monkeypatch.setattr(memory, "_free_bytes", lambda device: 1000 << 20)
    require_room(6)
    with pytest.raises(LayoutError, match=r"needs 7 ranks, and this machine has 1000 MiB .*; use at most 6 ranks, or"):
        require_room(7)


@pytest.mark.parametrize(("free", "remedy"), [(299, "use one rank, or"), (100, "end other programs, or")])
def test_a_machine_without_room_is_not_told_to_use_none(
    monkeypatch: pytest.MonkeyPatch, free: int, remedy: str
) -> None:
    monkeypatch.setattr(memory, "_free_bytes", lambda device: free << 20)
    with pytest.raises(LayoutError, match=f"has {free} MiB .*; {remedy}"):
        require_room(2)


def test_a_rank_that_stalls_before_the_first_epoch_is_named() -> None:
    code = (
        "import os, pathlib, time\n"
        "rank = os.environ['RANK']\n"
        "phase = '1' if rank == '1' else '2'\n"
        "pathlib.Path(os.environ['TRISECT_FAILURES'], f'rank-{rank}.phase').write_text(phase)\n"
        "time.sleep(600)\n"
    )
    with pytest.raises(RunError, match=r"rank 1 has stalled before the first epoch, 1 s behind the others"):
        launch(python(code), 3, startup=1.0)


def test_ranks_that_cannot_meet_name_the_first() -> None:
    code = (
        "import os, pathlib, time\n"
        "phase = pathlib.Path(os.environ['TRISECT_FAILURES'], f\"rank-{os.environ['RANK']}.phase\")\n"
        f"phase.write_text('{Phase.MEETS}'); time.sleep(600)\n"
    )
    with pytest.raises(RunError, match=r"rank 0 has stalled before the first epoch, 1 s behind the others"):
        launch(python(code), 3, startup=1.0)


def test_ranks_that_are_equally_far_may_take_their_time() -> None:
    code = (
        "import os, pathlib, time\n"
        "phase = pathlib.Path(os.environ['TRISECT_FAILURES'], f\"rank-{os.environ['RANK']}.phase\")\n"
        f"phase.write_text('{Phase.JOINED}'); time.sleep(2.0); phase.write_text('{Phase.READY}')\n"
        "time.sleep(2.0 if os.environ['RANK'] == '1' else 0.0)\n"
    )
    launch(python(code), 2, startup=1.0)


@pytest.mark.parametrize("code", [0, 3])
def test_a_rank_that_ends_itself_is_named(code: int) -> None:
    program = (
        "import sys, time\n"
        "from trisect.comm.world import world_from_environment\n"
        "from trisect.train.processes.faults import be_rank\n"
        "world = world_from_environment()\n"
        "with be_rank(world):\n"
        f"    sys.exit({code}) if world.rank == 1 else time.sleep(600)\n"
    )
    with pytest.raises(RunError, match=rf"rank 1: something in it ended the process \(SystemExit: {code}\)"):
        launch(python(program), 2)
