"""What ranks that share a host's cores take from each other: the numbers with which the simulated epoch of a reference
is as long as the real one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from trisect.layout import Layout, parse_layout
from trisect.plan.build import schedule_of
from trisect.plan.cluster import Cluster
from trisect.plan.timing import epoch_seconds
from trisect.schedule.action import Verb
from trisect.train.machine.reference import Reference, sample_graph, sample_timeline
from trisect.train.machine.timed import Timed, settle

_EPOCHS = 6
_HALVINGS = 12
_SLOWEST, _SLOWEST_BYTE = 2e-3, 4e-9  # seconds of a message, and of each of its bytes


@dataclass(frozen=True)
class Sharing:
    """What ranks that share a host's cores take from each other.

    Attributes:
        share: of a lone rank's speed that each of the ranks has.
        bandwidth: bytes a second that a rank hands to another, with what the other has to do to read them there.
        message: seconds that each post or wait costs; `latency`: seconds until a message is there, beyond that.
        stale: seconds that half a layer costs besides, in a chunk that reads history.
        joined: bytes that a rank takes besides, since it is one of several.
        doubt: the share of the measurements whose shortest time was not reached twice.
    """

    share: float
    bandwidth: float
    message: float
    latency: float
    stale: float
    joined: int
    doubt: float


def measure_sharing(cluster: Cluster, ranks: int, alone: int, single: float) -> Sharing:
    """Train with several ranks, each of which has its share of the host's cores.

    Args:
        alone: bytes that one rank takes by itself, on a static graph of next to nothing.
        single: the share of a lone rank's speed that it has with as many threads as one of the ranks.
    """
    references = _references(ranks)
    # one rank and several in turn, since it is their ratio that counts
    in_turn = {"idle": ["idle"], "beside": ["beside", "alone"], "parts": ["parts"], "stages": ["stages"]}
    times = settle(
        {name: partial(_timed, [references[each] for each in together]) for name, together in in_turn.items()}
    )

    def fitted(name: str, with_number: Callable[[float], Cluster], least: float, most: float, seconds: float) -> float:
        return fitting(references[name], with_number, least, most, seconds)

    message = _posting(times["idle"]) / waits_of(references["idle"])
    cluster = replace(cluster, inside=replace(cluster.inside, message=message), shares={1: 1.0, ranks: single})
    latency = fitted("idle", partial(with_latency, cluster), 0.0, _SLOWEST, times["idle"].epoch)
    cluster = with_latency(cluster, latency)
    # of the time that the simulation gives one rank, whatever that is
    slower = statistics.median(several.epoch / one.epoch for several, one in times.runs["beside"])
    wanted = slower * _simulated(references["alone"], cluster)
    share = 1.0 / fitted("beside", partial(_with_slower, cluster, ranks), 1.0, 2.0 * ranks, wanted)
    cluster = replace(cluster, shares={1: 1.0, ranks: share}, single=max(share, single))
    a_byte = fitted("parts", partial(_with_seconds_a_byte, cluster), 1e-11, _SLOWEST_BYTE, times["parts"].epoch)
    cluster = _with_seconds_a_byte(cluster, a_byte)
    stale = fitted("stages", partial(_with_stale, cluster), 0.0, _SLOWEST, times["stages"].epoch)
    joined = max(0, times["idle"].memory - alone)
    return Sharing(share, 1.0 / a_byte, message, latency, stale, joined, times.doubt)


def _references(ranks: int) -> dict[str, Reference]:
    even = f"vertex={ranks}"
    deep = {"layers": 8, "hidden": 64}
    timeline = sample_timeline(3.0, 32, 16_000, steps=max(10, 3 * ranks))
    alone = Reference("gcnii", {"layers": 3, "hidden": 32}, timeline, epochs=_EPOCHS)
    return {
        # ranks that send next to nothing: what is left of a post is Python, and of the epoch what a message needs
        "idle": Reference("gcn", {"layers": 8, "hidden": 4}, sample_graph(4.0, 8, 512), layout=even),
        # ranks that exchange next to nothing, beside one that does all of it
        "alone": alone,
        "beside": replace(alone, layout=f"time={ranks}"),
        # ranks that read many rows of each other
        "parts": Reference("gcnii", deep, sample_graph(10.0, 64, 40_000), layout=even, epochs=_EPOCHS),
        # stages that chunks go through
        "stages": Reference(
            "gcnii", deep, sample_graph(4.0, 64, 16_000), layout=f"layer={ranks},chunks={4 * ranks}", epochs=_EPOCHS
        ),
    }


def _timed(references: Sequence[Reference]) -> list[Timed]:
    return [reference.timed() for reference in references]


def _with_slower(cluster: Cluster, ranks: int, times: float) -> Cluster:
    return replace(cluster, shares={1: 1.0, ranks: 1.0 / times})


def _with_seconds_a_byte(cluster: Cluster, seconds: float) -> Cluster:
    return replace(cluster, inside=replace(cluster.inside, bandwidth=1.0 / seconds))


def _with_stale(cluster: Cluster, seconds: float) -> Cluster:
    return replace(cluster, device=replace(cluster.device, stale=seconds))


def with_latency(cluster: Cluster, seconds: float) -> Cluster:
    """Give a cluster whose ranks have a message so many seconds after it was sent."""
    return replace(cluster, inside=replace(cluster.inside, latency=seconds))


def fitting(
    reference: Reference, with_number: Callable[[float], Cluster], least: float, most: float, seconds: float
) -> float:
    """Give the number, between two bounds, with which the simulated epoch takes so many seconds.

    Args:
        with_number: gives the cluster; the epoch grows with the number.
    """
    workload = reference.workload()
    plan = workload.plan(parse_layout(reference.layout))
    for _ in range(_HALVINGS):
        middle = (least + most) / 2
        if epoch_seconds(workload, plan, with_number(middle)).total < seconds:
            least = middle
        else:
            most = middle
    return (least + most) / 2


def _simulated(reference: Reference, cluster: Cluster) -> float:
    workload = reference.workload()
    return epoch_seconds(workload, workload.plan(Layout()), cluster).total


def _posting(timed: Timed) -> float:
    return statistics.mean(rank["P"] for rank in timed.ranks)


def waits_of(reference: Reference) -> int:
    """Say how often a rank waits for others in an epoch."""
    actions = schedule_of(reference.workload().plan(parse_layout(reference.layout))).ranks[0]
    return sum(action.verb is Verb.WAIT for action in actions)
