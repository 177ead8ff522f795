"""Ranks that are forks of their launcher, which has loaded torch already: they start in a tenth of the time.

A test that starts ranks hundreds of times asks for it by `TRISECT_TEST_FORK`. All else is as the library does it: each
rank is a child of the launcher, in a session of its own, with the environment, standard streams and descriptors that it
would have been started with.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any


class Forked(subprocess.Popen):  # type: ignore[type-arg]
    """A rank, to be polled, killed and waited for as any other process."""

    begun: Callable[[], None]  # told in the rank, when its environment is there

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        stdin: IO[bytes],
        stdout: int | None,
        stderr: IO[bytes] | None,
        pass_fds: Sequence[int],
        start_new_session: bool,
    ) -> None:
        assert list(command[1:3]) == ["-m", "trisect.train.worker"]
        self.args, self.returncode = command, None
        self.stdin = self.stdout = self.stderr = None
        self._child_created, self._waitpid_lock, self._sigint_wait_secs = True, threading.Lock(), 0.25
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _be_rank(command, env, stdin, stdout, stderr, pass_fds)
            except BaseException:
                traceback.print_exc()
            os._exit(1)


def _be_rank(
    command: Sequence[str],
    env: Mapping[str, str],
    stdin: IO[bytes],
    stdout: int | None,
    stderr: IO[bytes] | None,
    pass_fds: Sequence[int],
) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    os.dup2(stdin.fileno(), 0)
    if stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if stderr is not None:
        os.dup2(stderr.fileno(), 2)
    kept = {0, 1, 2, *pass_fds}
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor not in kept:
            try:
                os.close(descriptor)
            except OSError:
                continue
    os.environ.clear()
    os.environ.update(env)
    Forked.begun()
    sys.stdin, sys.argv = open(0, closefd=False), list(command[2:])  # noqa: SIM115
    from trisect.train.worker import main

    main(Path(command[3]))


def change_launch(module: Any) -> None:
    """Let our launcher fork its ranks."""

    class Processes:
        Popen, DEVNULL = Forked, subprocess.DEVNULL

    module.subprocess = Processes
