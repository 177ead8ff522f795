"""The pretend device as a fixture."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline


def _load() -> ModuleType:
    """tests/device/pretend.py, once a process; the folder is no package."""
    if "pretend" not in sys.modules:
        spec = importlib.util.spec_from_file_location("pretend", Path(__file__).with_name("pretend.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["pretend"] = module
        spec.loader.exec_module(module)
    return sys.modules["pretend"]


@pytest.fixture(scope="session")
def community(community: Graph) -> Graph:
    """With features of edges, which the models that read them must find on the device."""
    return replace(community, edge_x=torch.randn(community.adjacency.entries, 3, generator=_generator()))


@pytest.fixture(scope="session")
def timeline(timeline: Timeline) -> Timeline:
    """With features of events."""
    return replace(timeline, edge_x=torch.randn(timeline.src.numel(), 3, generator=_generator()))


@pytest.fixture(scope="session")
def for_model() -> Callable[[str, Any], Any]:
    """for_model(name, data): the data as a model reads them; of rgcn, weights in three relations on each edge."""

    def prepared(name: str, data: Any) -> Any:
        if name != "rgcn":
            return data
        merge = {"merge": "relations"} if isinstance(data, Timeline) else {}
        return replace(data, edge_x=data.edge_x.abs(), relations=("cites", "likes", "writes"), **merge)

    return prepared


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="session")
def available() -> None:
    """Skips where torch does not let a backend be written in Python."""
    if not _load().AVAILABLE:
        pytest.skip("this torch has no hook for a backend in Python")


@pytest.fixture
def everywhere(pretend: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The device in every process that is started, too: torch installs backends that packages announce."""
    folder = tmp_path / "packages"
    announced = folder / "pretend-1.0.dist-info"
    announced.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("pretend.py"), folder)
    (announced / "METADATA").write_text("Metadata-Version: 2.1\nName: pretend\nVersion: 1.0\n")
    (announced / "entry_points.txt").write_text("[torch.backends]\nsim = pretend:install\n")
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    return pretend


@pytest.fixture
def pretend(available: None) -> Iterator[ModuleType]:
    """The module, with its device in this process for the length of a test."""
    module = _load()
    module.install()
    try:
        yield module
    finally:
        module.uninstall()


def _prepare_autograd() -> None:
    """Let autograd meet the device before any test runs: it counts devices once, at the first backward of a process."""
    module = _load()
    if module.AVAILABLE:
        module.install()
        try:
            torch.ones(1, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]
        finally:
            module.uninstall()


_prepare_autograd()
