"""The examples for clusters are sound as far as a test can say: variables, YAML, commands, and Ray Train for real."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from trisect.cli.main import run_command

FOLDER = Path(__file__).parents[2] / "examples" / "clusters"


def containers(name: str) -> list[dict[str, Any]]:
    document = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    assert document["metadata"]["name"]
    if document["kind"] == "Job":
        assert document["apiVersion"] == "batch/v1"
        pods = [document["spec"]["template"]]
    else:
        assert (document["apiVersion"], document["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
        pods = [replica["template"] for replica in document["spec"]["pytorchReplicaSpecs"].values()]
    found = []
    for pod in pods:
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
        for container in pod["spec"]["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            assert container["image"]
            found.append(container)
    return found


@pytest.mark.parametrize("name", ["kubernetes-job.yaml", "pytorchjob.yaml"])
def test_kubernetes_files_have_what_their_kind_needs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (container,) = containers(name)
    words = container["command"]
    options = [word for word in words[words.index("train") :] if word.startswith("--")]
    assert run_command(["train", "--help"]) == 0
    known = capsys.readouterr().out
    assert [option for option in options if option not in known] == []


@pytest.mark.parametrize("name", ["slurm.sbatch", "torchrun.sh"])
def test_scripts_are_sound_and_know_our_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    checked = subprocess.run(["bash", "-n", str(FOLDER / name)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    text = (FOLDER / name).read_text(encoding="utf-8").replace("\\\n", " ")
    (line,) = [line for line in text.splitlines() if "trisect train" in line and not line.startswith("#")]
    assert run_command(["train", "--help"]) == 0
    known = capsys.readouterr().out
    options = [word for word in line.partition("trisect train")[2].split() if word.startswith("--")]
    assert options
    assert [option for option in options if option not in known] == []


@pytest.mark.slow
def test_ray_train_with_two_workers(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'ray[train]'")
    command = [sys.executable, str(FOLDER / "ray_train.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 ranks, loss" in done.stdout
