"""One rank of a distributed test: `python worker.py CASES.json RESULTS_DIR` under RANK, WORLD_SIZE, MASTER_ADDR/PORT.

Runs every case of the list in one world, and writes for each what this rank found.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch

torch.set_num_threads(1)


def main() -> None:
    cases = json.loads(Path(sys.argv[1]).read_text())
    results = []
    for case in cases:
        module = importlib.import_module(case.get("module", "static_cases"))
        results.append(getattr(module, case["run"])(case))
    rank = os.environ["RANK"]
    Path(sys.argv[2], f"rank-{rank}.json").write_text(json.dumps(results))
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
