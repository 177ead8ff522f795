"""`trisect check` says what a device lacks, before anything starts."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml

from trisect.cli.main import run_command
from trisect.errors import ConfigError
from trisect.train.device import check_device, device_of_rank


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    settings: dict[str, Any] = {
        "data": {"generate": "community", "vertices": 60},
        "model": {"name": "gcn", "hidden": 8},
        "task": "node-classification",
    }
    path.write_text(yaml.safe_dump(settings))
    return path


def checked(config: Path, device: str, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = run_command(["check", str(config), "--set", f"train.device={device}", *words])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("layout", ["vertex=1", "vertex=2"])
def test_without_cuda(layout: str, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = checked(config, "cuda", capsys, "--layout", layout)
    assert code == 2
    built = "" if torch.version.cuda is not None else ", and torch is built without CUDA"
    assert err == f"trisect: train.device is 'cuda', and this machine has 0 CUDA devices{built}; use cpu.\n"
    assert "Everything is ready" not in out
    assert "60 vertices" in out  # what else could be said is said


def test_fewer_cuda_devices_than_ranks(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert device_of_rank("cuda", 0) == torch.device("cuda", 0)
    with pytest.raises(ConfigError, match="has 1 CUDA devices for 2 ranks or more; start one rank for each device"):
        device_of_rank("cuda", 1)
    code, out, err = checked(config, "cuda", capsys, "--layout", "vertex=2")
    assert code == 2
    assert "train.device is 'cuda', and this host has 1 CUDA devices for 2 ranks or more" in err
    assert "Everything is ready" not in out


def test_a_name_of_no_device(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        checked(config, "gpu", capsys)[2] == "trisect: train.device is 'gpu', which is no device; use cpu or cuda:0.\n"
    )


def test_the_pretend_device_is_ready(config: Path, capsys: pytest.CaptureFixture[str], pretend: ModuleType) -> None:
    code, out, _ = checked(config, "sim", capsys)
    assert code == 0
    assert "device: sim" in out
    assert "Everything is ready to train." in out


def test_devices_that_are_not_there_are_refused(pretend: ModuleType) -> None:
    assert check_device("sim").type == "sim"
    with pytest.raises(ConfigError, match="cannot make a tensor"):
        check_device("meta")
    pretend.uninstall()
    with pytest.raises(ConfigError, match="cannot make a tensor"):
        check_device("sim")
