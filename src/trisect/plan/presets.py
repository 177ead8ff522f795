"""Clusters that are known by name: data sheets and a guess of what layers reach of them, nothing measured here.

A GPU's gather reaches about the bandwidth of its memory for wide rows and less for narrow ones, since a transaction
moves 32 bytes at least; dense products of the sizes of graph models reach about half of the peak.
"""

from __future__ import annotations

from pathlib import Path

from trisect.errors import ConfigError, unknown
from trisect.plan.cluster import PRESET, Cluster, Device, Link, read_cluster
from trisect.plan.quantities import rate, size


def _gpu(flops: float, memory_bandwidth: float, memory: str, host_link: str) -> Device:
    """A device by its data sheet."""
    return Device(
        flops=0.5 * flops,
        gather={16: 0.15 * memory_bandwidth, 64: 0.4 * memory_bandwidth, 256: 0.7 * memory_bandwidth},
        elementwise=0.75 * memory_bandwidth,
        memory=size(memory),
        half=6e-5,
        step=2e-5,
        host_link=rate(host_link),
        libraries=1 << 30,
    )


def _cpu(between: Link, name: str) -> Cluster:
    """Hosts of one socket of 32 cores with 200 GB/s, a rank a core at first and sharing the memory's bandwidth."""
    device = Device(
        flops=5e10,
        gather={16: 3e9, 64: 6e9, 256: 9e9},
        gather_cached={16: 8e9, 64: 1.6e10, 256: 2.4e10},
        cache=1 << 20,
        elementwise=1e10,
        memory=size("256 GiB"),
        half=1e-4,
        step=2e-5,
    )
    inside = Link(bandwidth=rate("6 GB/s"), latency=2e-5, message=5e-5, copies=True)
    shares = {1: 1.0, 2: 0.98, 8: 0.9, 32: 0.6}
    return Cluster(name, device, inside, between, hosts=8, devices=32, shares=shares, source=PRESET)


def _ethernet(bandwidth: str) -> Link:
    return Link(bandwidth=rate(bandwidth), latency=5e-5, message=8e-5)


V100 = _gpu(15.7e12, 9.0e11, "32 GiB", "12 GB/s")
A5000 = _gpu(27.8e12, 7.68e11, "24 GiB", "12 GB/s")
A100 = _gpu(19.5e12, 2.04e12, "80 GiB", "24 GB/s")
H100 = _gpu(67e12, 3.35e12, "80 GiB", "50 GB/s")

PRESETS: dict[str, Cluster] = {
    # SC'21: 16 nodes of 8 V100, dual 100 Gb InfiniBand
    "16x8-v100": Cluster(
        "16x8-v100",
        V100,
        Link(bandwidth=rate("120 GB/s"), latency=1e-5, message=2e-5),
        Link(bandwidth=rate("200 Gb/s"), latency=1e-5, message=2e-5),
        hosts=16,
        devices=8,
        source=PRESET,
    ),
    # GNNPipe: 2 machines of 4 RTX A5000 on PCIe, about 60 Gb/s between
    "2x4-a5000": Cluster(
        "2x4-a5000",
        A5000,
        Link(bandwidth=rate("12 GB/s"), latency=2e-5, message=2e-5),
        Link(bandwidth=rate("60 Gb/s"), latency=2e-5, message=2e-5),
        hosts=2,
        devices=4,
        source=PRESET,
    ),
    "8xa100": Cluster(
        "8xa100",
        A100,
        Link(bandwidth=rate("240 GB/s"), latency=1e-5, message=2e-5),
        Link(bandwidth=rate("800 Gb/s"), latency=1e-5, message=2e-5),
        devices=8,
        source=PRESET,
    ),
    "8xh100": Cluster(
        "8xh100",
        H100,
        Link(bandwidth=rate("360 GB/s"), latency=1e-5, message=2e-5),
        Link(bandwidth=rate("1600 Gb/s"), latency=1e-5, message=2e-5),
        devices=8,
        source=PRESET,
    ),
    "cpu-1gb": _cpu(_ethernet("1 Gb/s"), "cpu-1gb"),
    "cpu-10gb": _cpu(_ethernet("10 Gb/s"), "cpu-10gb"),
    "cpu-100gb": _cpu(_ethernet("100 Gb/s"), "cpu-100gb"),
}


def find_cluster(name: str) -> Cluster:
    """Give a cluster by the name of a preset or the path of a file."""
    if name in PRESETS:
        return PRESETS[name]
    path = Path(name).expanduser()
    if path.suffix in (".yaml", ".yml") or path.exists():
        return read_cluster(path)
    raise ConfigError(unknown("cluster", name, PRESETS))
