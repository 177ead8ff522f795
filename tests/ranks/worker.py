"""One rank of a distributed test: `python worker.py CASES.json RESULTS_DIR` under RANK, WORLD_SIZE, MASTER_ADDR/PORT,
and of rank 0 the listening socket.

Runs every case of the list in one world, and writes for each what this rank found. With a third argument, the size of
the world, all its ranks, as forks of this process: torch is then loaded once. This process is then their launcher: it
calls a module's `prepare` for each case, which writes the job and the shards that the ranks read.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from limits import limits
from noted import CONSULTED

from trisect.comm.local import mailbox
from trisect.comm.world import LISTENER

torch.set_num_threads(1)


def main() -> None:
    cases = json.loads(Path(sys.argv[1]).read_text())
    results = []
    for number, case in enumerate(cases):
        module = importlib.import_module(case.get("module", "static_cases"))
        # messages of tests are small; all of them are to go the way of large ones
        mailbox.SMALLEST = case.get("smallest", 1)
        print(case, flush=True)  # to the log of the rank, which is shown where it fails
        run = getattr(module, case["run"])
        CONSULTED.clear()
        with limits(case.get("limits")), spoilt_everywhere(case):
            result = run(case, case_folder(number)) if hasattr(module, "prepare") else run(case)
        if case.get("limits"):
            result["consulted"] = sorted(CONSULTED)
        results.append(result)
    rank = os.environ["RANK"]
    Path(sys.argv[2], f"rank-{rank}.json").write_text(json.dumps(results))
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def spoilt_everywhere(case: dict[str, Any]) -> AbstractContextManager[None]:
    """Spoil what a rank does and what it is compared with, where the case asks for that."""
    if "spoil" not in case:
        return nullcontext()
    from run_cases import broken

    return broken(case["spoil"])


def case_folder(number: int) -> Path:
    """Give where the launcher puts the job and the shards of a case."""
    return Path(sys.argv[2], f"case-{number}")


def fork(world: int) -> int:
    """Start a fork for each rank; one that fails ends the others. What a rank prints goes to rank-R.log."""
    for number, case in enumerate(json.loads(Path(sys.argv[1]).read_text())):
        module = importlib.import_module(case.get("module", "static_cases"))
        if hasattr(module, "prepare"):
            with limits(case.get("limits")):
                module.prepare(case, case_folder(number))
    ranks = {}
    for rank in range(world):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
                if rank > 0:  # the meeting ends with rank 0
                    os.close(int(os.environ.pop(LISTENER)))
                log = os.open(Path(sys.argv[2], f"rank-{rank}.log"), os.O_WRONLY | os.O_CREAT)
                os.dup2(log, 1)
                os.dup2(log, 2)
                main()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        ranks[child] = rank
    os.close(int(os.environ.pop(LISTENER)))
    failed = 0
    while ranks:
        child, status = os.wait()
        ranks.pop(child)
        if status != 0 and not failed:
            failed = 1
            for other in ranks:
                os.kill(other, signal.SIGTERM)
    return failed


if __name__ == "__main__":
    if len(sys.argv) > 3:
        sys.exit(fork(int(sys.argv[3])))
    main()
