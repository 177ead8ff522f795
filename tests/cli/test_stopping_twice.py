"""Whoever asks a command to end more than once gets the same end, however late the last time is."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

# A child asks again and again until its parent is gone, also when the interpreter has given up its handlers.
HAMMER = """
import os, time
while os.getppid() == {parent}:
    os.kill({parent}, {number})
    time.sleep(0.0002)
"""
PROGRAM = """
import os, subprocess, sys
from trisect.cli import requests
requests.end_on_request()
hammer = {hammer!r}.format(parent=os.getpid(), number={number})
try:
    child = subprocess.Popen([sys.executable, "-S", "-c", hammer])
    child.wait()
except KeyboardInterrupt:
    code = requests.stop_code()
if {quietly}:
    requests.end_undisturbed()
sys.exit(code)
"""


def ended(number: signal.Signals, *, quietly: bool) -> int:
    program = PROGRAM.format(hammer=HAMMER, number=int(number), quietly=quietly)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60).returncode


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_request_during_the_end_of_the_interpreter(number: signal.Signals, code: int) -> None:
    assert [ended(number, quietly=True) for _ in range(3)] == [code] * 3
    # without it the last requests kill the interpreter; when exactly they come is chance
    assert any(ended(number, quietly=False) == -number for _ in range(20))
