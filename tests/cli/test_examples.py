"""The configurations inside the package are sound, and those under examples/ are the same files."""

from __future__ import annotations

from pathlib import Path

import pytest

from trisect.cli.bench import available, measurements
from trisect.cli.source import BUILT_IN, examples, find_config
from trisect.config import load_config

FOLDER = Path(__file__).parents[2] / "examples"


def test_the_built_in_example_is_there():
    assert {"deep", "timeline"} <= set(examples())
    assert find_config(None) == (BUILT_IN, examples()["deep"])
    assert find_config("timeline")[1] == examples()["timeline"]


def test_a_file_comes_before_an_example_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("deep").write_text("data: {}")
    assert find_config("deep") == ("deep", Path("deep"))


@pytest.mark.parametrize("name", ["deep", "timeline"])
def test_examples_pass_the_check(trisect, name):
    shown = trisect("check", name)
    assert shown.code == 0, shown.err
    assert "Everything is ready to train." in shown.out


@pytest.mark.parametrize("name", ["deep", "large", "timeline"])
def test_the_folder_shows_the_same_files(name):
    path = FOLDER / f"{name}.yaml"
    if not path.exists():
        pytest.skip("no examples/ beside the tests")
    assert path.read_text() == examples()[name].read_text()


# that of fraud/ names a graph directory which its README makes, and those of clusters/ are Kubernetes': tests/examples
CONFIGURATIONS = sorted(path for path in FOLDER.rglob("*.yaml") if path.parent.name not in ("fraud", "clusters"))


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.stem)
def test_every_example_is_a_configuration(path):
    from trisect.train.from_config import resolve

    resolve(load_config(path))


def test_measurements_are_listed_with_a_line_each(trisect):
    shown = trisect("bench")
    assert shown.code == 0
    for name, line in available(measurements()).items():
        assert f"{name:<12} {line}" in shown.out
        assert line


def test_a_measurement_writes_json(trisect, tmp_path, monkeypatch):
    import sys
    from types import ModuleType

    module = ModuleType("trisect_bench.speed")
    module.run = lambda rounds=1: {"rounds": rounds}  # type: ignore[attr-defined]
    module.show = lambda result: print(f"shown {result}")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trisect_bench.speed", module)
    monkeypatch.setattr("trisect.cli.bench.available", lambda folder: {"speed": "Speed."})
    shown = trisect("bench", "speed", "--set", "rounds=3", "--json", "out/figures.json")
    assert shown.code == 0, shown.err
    assert "shown {'rounds': 3}" in shown.out
    assert (tmp_path / "out" / "figures.json").read_text() == '{\n  "rounds": 3\n}\n'


def test_measurements_are_found_in_the_current_folder_too(trisect, tmp_path, monkeypatch):
    installed = tmp_path / "site-packages" / "trisect" / "__init__.py"
    monkeypatch.setattr("trisect.__file__", str(installed))
    shown = trisect("bench", "spmm")
    assert shown.code == 1
    assert "run trisect bench in a checkout of its repository" in shown.err
    folder = tmp_path / "benchmarks" / "trisect_bench"
    folder.mkdir(parents=True)
    (folder / "speed.py").write_text('"""How fast."""')
    assert trisect("bench").out == "speed        How fast.\n"
