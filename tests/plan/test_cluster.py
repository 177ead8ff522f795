"""Clusters: numbers with units, files, presets, what ranks of a host share."""

from __future__ import annotations

import os

import pytest
from tests.plan.workloads import cluster

from trisect.errors import ConfigError
from trisect.plan.cluster import Device, cluster_of_mapping, read_cluster
from trisect.plan.presets import PRESETS, find_cluster
from trisect.plan.quantities import rate, seconds, show_seconds, show_size, size


def test_units():
    assert rate("60 Gb/s") == 7.5e9
    assert rate("12 GB/s") == rate(12e9) == 1.2e10
    assert rate("27 TFLOP/s") == 2.7e13
    assert size("24 GiB") == 24 << 30
    assert size("80 GB") == 80 * 10**9
    assert seconds("5 us") == pytest.approx(seconds(5e-6)) == pytest.approx(5e-6)
    assert rate("60 GB/s") != rate("60 Gb/s")
    for read in (rate, size, seconds):
        with pytest.raises(ValueError, match="is 'fast'"):
            read("fast")


def test_shown():
    assert show_size(3 * 2**30 + 2**29) == "3.5 GiB"
    assert show_seconds(0.0042) == "4.2 ms"
    assert show_seconds(0.35) == "0.35 s"


@pytest.mark.parametrize("name", list(PRESETS))
def test_a_preset_is_a_file(name, tmp_path):
    path = tmp_path / "cluster.yaml"
    PRESETS[name].write(path)
    assert read_cluster(path) == find_cluster(str(path)) == PRESETS[name]
    assert PRESETS[name].source == "preset"


def test_refused():
    with pytest.raises(ConfigError, match="did you mean '8xa100'"):
        find_cluster("8xa10")
    with pytest.raises(ConfigError, match="device, has no gather"):
        cluster_of_mapping({"name": "x", "device": {"flops": 1}}, "The file")
    with pytest.raises(ConfigError, match=r"cluster\.device\.flops is 'fast'"):
        Device(flops="fast", gather=1, elementwise=1, memory=1)


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_bytes(b"name: \xff\n")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        read_cluster(path)
    path.write_text("{1: 2}")
    with pytest.raises(ConfigError, match="has the key 1; keys are names"):
        read_cluster(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="no regular file"):
        read_cluster(path)


def test_ranks_fill_hosts_one_after_the_other():
    two = find_cluster("2x4-a5000")
    assert [two.host_of(rank, 8) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert two.resized(16).hosts == 4
    cpu = find_cluster("cpu-1gb")
    assert cpu.share(2) > cpu.share(32)
    assert cpu.memory_of_rank(32) == cpu.device.memory // 32
    assert two.memory_of_rank(8) == two.device.memory


def test_gathers_are_faster_from_the_cache_and_wider():
    device = Device(flops=1, gather={16: 1e9, 64: 4e9}, gather_cached={16: 1e10}, cache=1000, elementwise=1, memory=1)
    assert device.gather_rate(16, 1e9) == pytest.approx(1e9, rel=1e-3)
    assert device.gather_rate(16, 500) == pytest.approx(1e10)
    assert device.gather_rate(32, 1e12) == pytest.approx(2e9, rel=1e-3)
    assert device.gather_rate(1024, 1e12) == pytest.approx(4e9, rel=1e-3)


def test_shares_between_those_that_were_measured():
    machine = cluster(hosts=1, devices=8, shares={1: 1.0, 2: 0.9, 8: 0.6})
    assert [machine.share(ranks) for ranks in (1, 2, 4, 8)] == pytest.approx([1.0, 0.9, 0.54**0.5, 0.6])
    assert machine.share(16) == pytest.approx(0.3)
    # where each of eight ranks has an eighth of the cores, each of two has half of them
    many = cluster(hosts=1, devices=64, shares={1: 1.0, 8: 0.125})
    assert [many.share(ranks) for ranks in (2, 4, 64)] == pytest.approx([0.5, 0.25, 1 / 64])


def test_a_file_of_another_version_says_what_to_do():
    plain = {**cluster().plain(), "cuts": {"GCNLayer": 0.4}}
    with pytest.raises(ConfigError, match=r"The file has 'cuts', .* remove that line, or measure this machine anew"):
        cluster_of_mapping(plain, "The file")
    inner = cluster().plain()
    inner["device"]["speed"] = 3
    with pytest.raises(ConfigError, match=r"The file, device, has 'speed'"):
        cluster_of_mapping(inner, "The file")
