"""`calibrate`: what this machine can do, measured in about a minute: `trisect plan --calibrate`.

One rank that is started as that of a run measures rates and kinds of layers (`rank`); then ranks that share the cores
are trained for a few epochs (`sharing`). All of it is repeated (`timed`), and what others took of the cores meanwhile
is counted (`others`): a calibration that was disturbed says so, now and in every plan that rests on it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from trisect.comm.cores import usable_cores
from trisect.ops.memory import free_bytes
from trisect.plan.cluster import DISTURBED, MEASURED, Cluster, Device, Link
from trisect.train.machine.others import Others
from trisect.train.machine.rank import MOST_RANKS
from trisect.train.machine.sharing import measure_sharing
from trisect.train.memory_check import VARIABLE
from trisect.train.processes.launch import launch

Say = Callable[[str], None]

# until a rank that waited has a core again: twice as many ranks as cores, on Linux, were from 2.0 to 2.3 ms
TURN = 2.1e-3
# of an emulated or a real network nothing is measured here: what a gigabit carries
BETWEEN = Link(bandwidth=1.18e8, latency=1e-4, message=1e-4)
_LOOK = 0.4  # seconds for which others are watched before anything is measured
# what others may take, before and meanwhile: a share of the cores, and no more than so many, since all threads of a
# loop wait for the one whose core is shared
_BUSY, _DISTURBED, _CORES = 0.15, 0.05, 0.5
_DOUBTFUL = 0.1  # share of the measurements whose shortest time may not be reached twice
_CHANGED = 1.3  # times as fast as in an earlier calibration, or as slow
_WIDE = 256  # bytes of a row that is gathered
_AGAIN = "plans from this are doubtful; calibrate again when the machine is quiet."


def calibrate(say: Say = lambda sentence: None, earlier: Cluster | None = None) -> Cluster:
    """Measure this machine, and give it as a cluster of one host.

    Args:
        earlier: what it was when it was measured before, with which it is compared.
    """
    with _unchecked():
        return _calibrate(say, earlier)


@contextmanager
def _unchecked() -> Iterator[None]:
    """Do not compare what is trained inside with the free memory: it is small, and comparing takes as long."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "0"
    try:
        yield
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before


def _calibrate(say: Say, earlier: Cluster | None) -> Cluster:
    cores = usable_cores()
    _look_around(say, cores)
    watch, begin = Others(), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="trisect-calibrate-") as folder:
        launch([sys.executable, "-m", "trisect.train.machine.rank", folder], 1, folders=[])
        measured = json.loads(Path(folder, "0.json").read_text())
    single, alone, doubt = (measured.pop(key) for key in ("single", "alone", "doubt"))
    device = Device(**measured, memory=free_bytes(torch.device("cpu"), bounded=False))
    inside, share = Link(bandwidth=4e9, latency=1e-6, message=2e-5, copies=True), {1: 1.0}
    cluster = Cluster("this machine", device, inside, BETWEEN, devices=cores, shares=share, source=MEASURED)
    if cores > 1:
        ranks = min(cores, MOST_RANKS)
        sharing = measure_sharing(cluster, ranks, alone, single)
        inside = replace(inside, bandwidth=sharing.bandwidth, message=sharing.message, latency=sharing.latency)
        shares = {**share, ranks: sharing.share}
        device = replace(device, turn=TURN, joined=sharing.joined, stale=sharing.stale)
        cluster = replace(cluster, device=device, inside=inside, shares=shares, single=max(single, sharing.share))
        doubt = max(doubt, sharing.doubt)
    say(f"Measured in {time.perf_counter() - begin:.0f} s: {_describe(device, inside, cluster.shares)}")
    doubts = list(_disturbances(watch.cores(), cores, doubt))
    for sentence in doubts:
        say(sentence)
    if earlier is not None and (changed := changes(cluster, earlier)):
        say(
            f"Since it was calibrated before, this machine has changed: {', '.join(changed)}. Something slows it down "
            "at times, or it is a virtual one that moved; plans hold for the machine as it was measured last."
        )
    return replace(cluster, source=DISTURBED if doubts else MEASURED)


def others_now() -> float | None:
    """Return how many cores others use now; None where the system does not tell."""
    watch = Others()
    time.sleep(_LOOK)
    return watch.cores()


def is_busy(taken: float | None, cores: int) -> bool:
    """Whether others take so much of the cores that what is measured now says little."""
    return taken is not None and taken > min(_BUSY * cores, _CORES)


def _look_around(say: Say, cores: int) -> None:
    """Print what may disturb the measurements, before there are any."""
    taken = others_now()
    if taken is None:
        say(
            "This system does not tell what others take of the cores; end other programs before, and calibrate twice "
            "to see whether both say the same."
        )
    elif is_busy(taken, cores):
        say(
            f"Other programs use {taken:.1f} of {cores} cores now: measuring takes longer, and finds this machine "
            "slower than it is; end them and calibrate again."
        )


def _disturbances(taken: float | None, cores: int, doubt: float) -> Iterator[str]:
    """Say what makes a calibration doubtful: the cores that others took, and times that were not reached twice."""
    if taken is not None and taken > min(_DISTURBED * cores, _CORES):
        yield (
            f"Others took {taken:.1f} of {cores} cores meanwhile (programs, or the host of a virtual machine): {_AGAIN}"
        )
    if doubt > _DOUBTFUL:
        yield f"Others disturbed {doubt:.0%} of the measurements, whose shortest time was not reached twice: {_AGAIN}"


def changes(now: Cluster, earlier: Cluster) -> list[str]:
    """Say what is much faster or slower than it was: products, gathers, elementwise work, calls, ranks together."""
    new, old = now.device, earlier.device
    ranks = max(now.shares)
    speeds = {
        "products": (new.flops, old.flops),
        "gathers": (new.gather_rate(_WIDE, 1e12), old.gather_rate(_WIDE, 1e12)),
        "elementwise work": (new.elementwise, old.elementwise),
        "half a layer": (1.0 / max(new.half, 1e-9), 1.0 / max(old.half, 1e-9)),
        f"each of {ranks} ranks": (now.share(ranks), earlier.share(ranks)),
    }
    ratios = {name: after / before for name, (after, before) in speeds.items()}
    far = {name: ratio for name, ratio in ratios.items() if max(ratio, 1.0 / ratio) > _CHANGED}
    return [f"{name} {ratio:.1f} times as fast" for name, ratio in far.items()]


def _describe(device: Device, inside: Link, share: Mapping[int, float]) -> str:
    narrow, wide = min(device.gather), max(device.gather)
    text = (
        f"products {device.flops / 1e9:.0f} GFLOP/s, gathers {device.gather[narrow] / 1e9:.1f} to "
        f"{device.gather[wide] / 1e9:.1f} GB/s, elementwise {device.elementwise / 1e9:.1f} GB/s, half a layer "
        f"{device.half * 1e6:.0f} us, between ranks {inside.bandwidth / 1e9:.1f} GB/s and {inside.message * 1e6:.0f} "
        "us a message"
    )
    if max(share) > 1:
        text += f"; each of {max(share)} ranks runs at {share[max(share)]:.2f} of the speed of one"
    return text + "."
