"""Ranks for tests: forks of one process that has torch loaded and has computed nothing.

A test calls `on_ranks(__file__, "function", "vertex=2", …)`; `function(mesh, …)` of that file runs on every rank.
"""

from __future__ import annotations

import atexit
import importlib.util
import multiprocessing
import os
import pickle
import socket
import subprocess
import sys
import time
import traceback
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

_server: subprocess.Popen[bytes] | None = None


class RanksFailedError(AssertionError):
    """One rank at least raised, died or did not end."""


def on_ranks(file: str, function: str, layout: str, *arguments: Any, seconds: float = 60.0) -> list[Any]:
    """Return what `function(mesh, *arguments)` of a file gave on each rank of a layout.

    Args:
        file: of the caller; it is loaded by the server, which has no fixtures.
        seconds: after which ranks are ended.
    """
    global _server
    if _server is None or _server.poll() is not None:
        command = [sys.executable, __file__]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        _server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        atexit.register(_server.kill)
    assert _server.stdin is not None
    assert _server.stdout is not None
    pickle.dump((file, function, layout, arguments, seconds), _server.stdin)
    _server.stdin.flush()
    failed, results = pickle.load(_server.stdout)
    if failed:
        raise RanksFailedError("\n".join(failed))
    return [pickle.loads(result) for result in results]


def _serve() -> None:
    import torch
    import torch.distributed

    import trisect.comm.mesh
    import trisect.views.view  # noqa: F401

    torch.set_num_threads(1)
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what ranks print goes where errors go
    while True:
        try:
            request = pickle.load(requests)
        except EOFError:
            return
        pickle.dump(_answer(*request), answers)
        answers.flush()


def _answer(file: str, function: str, layout: str, arguments: tuple[Any, ...], seconds: float) -> Any:
    from trisect.layout import parse_layout

    world = parse_layout(layout).world
    fork = multiprocessing.get_context("fork")
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        pipes, ranks = [], []
        for rank in range(world):
            near, far = fork.Pipe()
            target = (far, rank, world, listener.fileno(), listener.getsockname()[1], file, function, layout, arguments)
            process = fork.Process(target=_rank, args=target, daemon=True)
            process.start()
            far.close()
            pipes.append(near)
            ranks.append(process)
    results: list[Any] = [None] * world
    failed, open_pipes, end = [], {pipe: rank for rank, pipe in enumerate(pipes)}, time.monotonic() + seconds
    while open_pipes:
        ready = wait(list(open_pipes), max(0.0, end - time.monotonic()))
        if not ready:
            failed += [f"rank {rank}: no answer after {seconds} s" for rank in open_pipes.values()]
            break
        for pipe in ready:
            rank = open_pipes.pop(pipe)  # type: ignore[arg-type]
            try:
                good, result = pipe.recv()  # type: ignore[union-attr]
            except EOFError:
                good, result = False, "died"
            if good:
                results[rank] = result
            else:
                failed.append(f"rank {rank}: {result}")
                end = min(end, time.monotonic() + 5.0)
    for process in ranks:
        process.join(0.0 if failed else 5.0)
        process.kill()
        process.join()
    return failed, results


def _rank(
    pipe: Any,
    rank: int,
    world: int,
    listener: int,
    port: int,
    file: str,
    function: str,
    layout: str,
    arguments: tuple[Any, ...],
) -> None:
    from trisect.comm.world import LISTENER

    meeting = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in meeting.items()}, MASTER_ADDR="127.0.0.1")
    if rank == 0:
        os.environ[LISTENER] = str(listener)
    try:
        import torch

        from trisect.comm.mesh import connect, disconnect
        from trisect.layout import parse_layout

        torch.manual_seed(0)
        mesh = connect(parse_layout(layout), torch.device("cpu"), 30.0)
        specification = importlib.util.spec_from_file_location(Path(file).stem, file)
        assert specification is not None
        assert specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        sys.path.insert(0, str(Path(file).parent))
        specification.loader.exec_module(module)
        result = getattr(module, function)(mesh, *arguments)
        pipe.send((True, pickle.dumps(result)))  # as bytes: tensors would be shared with a process that ends
        disconnect()
    except BaseException:
        pipe.send((False, traceback.format_exc()))
    pipe.close()
    os._exit(0)


if __name__ == "__main__":
    _serve()
