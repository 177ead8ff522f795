"""Every reader of files gives a value or one of our sentences, whatever the bytes; `make fuzz` runs 100,000 cases."""

from __future__ import annotations

import gzip
import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trisect.config import load_config
from trisect.data import generate, load
from trisect.data.ingest.encoding import Encoding
from trisect.data.ingest.ingest import Table, read_table
from trisect.errors import ConfigError, DataError, TrisectError
from trisect.graph.timeline.timeline import Timeline

pytest.importorskip("pyarrow")


def _module() -> Any:
    spec = importlib.util.spec_from_file_location("fuzz_readers", Path(__file__).with_name("readers.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


readers = _module()


@pytest.mark.parametrize("name", [name for name in readers.READERS if name not in readers.CALLS])
def test_any_bytes(name: str) -> None:
    counts = readers.fuzz(name, 60, seed=1)
    assert sum(counts.values()) == 60
    # damaged lines of events are left out and counted on the page, and who watches a run waits for better ones;
    # everything else is refused in a sentence
    assert counts["sentences"] > 0 or name in ("events", "watch")


def test_any_arrays() -> None:
    for counts in readers.fuzz_apart(list(readers.CALLS), 150, seed=1).values():
        assert sum(counts.values()) == 150
        assert min(counts.values()) > 10


def test_a_crash_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        with pytest.raises(AssertionError, match="code -11"):
            readers.fuzz_apart(["Graph"], 1)


def test_what_is_no_sentence_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(folder: Path, rng: Any) -> Any:
        yield lambda: 1 // 0

    monkeypatch.setitem(readers.READERS, "broken", broken)
    with pytest.raises(AssertionError, match=r"case 0 of broken, seed 4: .*"):
        readers.fuzz("broken", 1, seed=4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: \x07", "not YAML"),
        ("a: 2024-13-45", "a date or a number that cannot be read"),
        ("[" * 5000, "nested too deeply"),
        ("a: &a [*a]", "nested too deeply, or in itself"),
        (
            "\n".join(["a0: &a0 [x, x]", *(f"a{k}: &a{k} [*a{k - 1}, *a{k - 1}]" for k in range(1, 40))]),
            "by its aliases",
        ),
    ],
)
def test_yaml(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_config(tmp_path / "c.yaml")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match=r"no regular file"):
        load_config(tmp_path / "pipe")
    for name in ("e.csv", "e.npz"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(DataError, match=r"no regular file|does not exist"):
            load({"path": str(tmp_path / name)})


def test_messages_are_one_line_of_bounded_length(tmp_path: Path) -> None:
    for error in (ConfigError("x\n" * 5000), DataError("\x1b[2J" + "y" * 5000)):
        assert len(str(error)) < 1100
        assert str(error).isprintable()


def test_small_files_do_not_unpack_to_more_than_is_free(tmp_path: Path) -> None:
    path = tmp_path / "l.npy"
    np.save(path, np.array([0, 1, 1]))
    path.write_bytes(path.read_bytes().replace(b"(3,), }", b"(999999999999,), }"))
    with pytest.raises(DataError, match=r"damaged"):
        read_table({"a": [0, 1, 2], "b": [1, 2, 0]}, Table(labels=path))
    np.savez(tmp_path / "g.npz", indptr=np.array([0, 1]), indices=np.array([2**40]))
    with pytest.raises(DataError, match=r"would take .* GiB, and .* are free"):
        load({"path": str(tmp_path / "g.npz")})
    (tmp_path / "long.txt.gz").write_bytes(gzip.compress(b"1 2\n" + b"3" * (20 << 20)))
    with pytest.raises(DataError, match=r"a line of more than 8 MiB"):
        read_table(tmp_path / "long.txt.gz", Table())
    with pytest.raises(TrisectError, match=r"would take .* GiB"):
        generate("community", vertices=10**12)
    for value in (float("inf"), float("nan"), 10**30):
        with pytest.raises(ConfigError, match=r"vertices"):
            generate("community", vertices=value)


def test_bytes_that_are_no_text_are_never_passed_over(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_bytes(b"a,b\n1,2\n\xff,3,4\n2,1\n")
    with pytest.raises(DataError, match=r"not UTF-8 text .* 0xff"):
        read_table(tmp_path / "e.csv", Table(on_missing="drop"))


def test_a_row_that_is_no_line_by_itself_is_named_by_its_number(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_bytes(b"v0 good\nv2 g0xood\x0bd\nv1 bad\nv2 g1xood\n")
    edges = {"a": ["v0", "v1", "v2"], "b": ["v1", "v2", "v0"]}
    with pytest.raises(DataError, match=r"a second row for an id in row 4"):
        read_table(edges, Table(labels=tmp_path / "l.csv"))


@pytest.mark.parametrize(
    "field",
    [{"mean": "x"}, {"scale": 0}, {"scale": None}, {"mean": 1e308}, {"missing": 3}, {"categories": [1]}, {"column": 5}],
)
def test_an_encoding_that_makes_no_sense(field: dict[str, Any]) -> None:
    good = {"column": "age", "kind": "number", "mean": 1.5, "scale": 2.0, "categories": [], "missing": False}
    Encoding.of({"statistics": "all rows", "columns": [good]})
    with pytest.raises(DataError, match="the encoding cannot be read"):
        Encoding.of({"statistics": "all rows", "columns": [{**good, **field}]})


def test_times_that_are_lists_of_several_lengths() -> None:
    with pytest.raises(DataError, match="lists of several lengths"):
        Timeline.from_events([0, 1], [1, 0], time=[1, [2]], period=1)
