"""Damaged bytes, settings and arrays that make no sense, for every reader and the public array API.

Each gives a value, or one of our sentences.

`python tests/fuzz/readers.py 100000` (`make fuzz`) runs so many cases over all readers and prints the count of each; a
seed and names of readers may follow. Calls with arrays run in a process of their own, so that a crash is seen.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import shutil
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import yaml

sys.path.insert(0, str(Path(__file__).parent))

from array_calls import CALLS
from run_files import calibration_cases, changed, checkpoint_cases, report_of, watch_cases

from trisect.config import load_config
from trisect.data import generate, load, read_directory, write_directory
from trisect.data.generators.generate import GENERATORS
from trisect.data.ingest.encoding import Encoding, encode
from trisect.data.ingest.ingest import Table, read_table
from trisect.errors import TrisectError
from trisect.plan.cluster import read_cluster
from trisect.plan.presets import PRESETS

LONGEST = 1100
Case = Callable[[], Any]
Reader = Callable[[Path, random.Random], Iterator[Case]]

CONFIG = b"""data: {generate: community, vertices: 50, seed: 1}
model: {name: gcn, layers: 2, hidden: 4, dropout: 1e-1}
task: node-classification
layout: {vertex: 1}
train: {epochs: 2, lr: 0.01, started: 2024-05-01, list: [1, 2, &a {b: c}, *a]}
"""
PIECES = [
    b"\x00",
    b"\xff\xfe",
    b"\x1b[2J",
    b"\n",
    b",",
    b'"',
    b"'",
    b"NaN",
    b"inf",
    b"-1",
    b"1e999",
    b"9" * 40,
    b"2024-13-45",
    b"&a [*a]",
    b"[" * 3000,
    b"{a: " * 400,
    b"!!python/object:os.system x",
    b"\xc3\x28",
    b"0x",
    b"1:60:99",
    b"null",
    b"~",
    b"\xe2\x80\xa8",
    b"\t",
    b" " * 300,
    b"<<: *a",
    b"%",
    b"#",
    b"-0",
    b"18446744073709551616",
    b"true",
    b"\r",
]


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Change some bytes: flips, cuts, repeats, pieces that readers stumble over."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4, 12))):
        position = rng.randrange(len(data) + 1)
        kind = rng.randrange(6)
        if kind == 0 and data:
            data[min(position, len(data) - 1)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[position:position] = rng.choice(PIECES)
        elif kind == 2:
            del data[position : position + rng.randrange(1, 40)]
        elif kind == 3:
            data[position : position + 4] = rng.randbytes(4)
        elif kind == 4:
            other = rng.randrange(len(data) + 1)
            data[position:position] = data[other : other + rng.randrange(1, 60)]
        elif rng.random() < 0.2:
            del data[position:]
    return bytes(data)


def _files(suffix: str, samples: list[bytes], read: Callable[[Path, random.Random], Any]) -> Reader:
    def cases(folder: Path, rng: random.Random) -> Iterator[Case]:
        path = folder / f"case{suffix}"
        while True:
            path.write_bytes(damaged(rng.choice(samples), rng))
            yield lambda: read(path, rng)

    return cases


def _csv() -> bytes:
    rows = [f"a{k % 7},b{k % 5},2024-01-{1 + k % 28:02d},{k}.5,{'web' if k % 2 else 'app'}" for k in range(30)]
    return ("src,dst,time,amount,kind\n" + "\n".join(rows) + "\n").encode()


TABLES = [
    Table(),
    Table(time="time", period="1d", weight="amount", edge_features="amount,kind"),
    Table(time="time", period="distinct", edge_label="kind", on_missing="drop"),
    Table(weight="amount", on_missing="zero", undirected=True),
    Table(src="0", dst="1"),
]


def _read_table(path: Path, rng: random.Random) -> Any:
    if rng.random() < 0.4:
        edges = {"a": ["a1", "a2", "b1"], "b": ["b1", "b2", "a2"], "t": [1, 2, 3]}
        if rng.random() < 0.5:
            return read_table(edges, Table(labels=path, label_column=rng.choice([None, "amount", "kind"])))
        return read_table(edges, Table(time="t", vertices=path, vertex_time=rng.choice([None, "amount"])))
    return read_table(path, rng.choice(TABLES))


def _parquet() -> list[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    kinds = [
        pa.array(["a", "b", None]),
        pa.array([1, 2, 3]),
        pa.array([1.5, None, float("nan")]),
        pa.array([True, False, None]),
        pa.array([b"x", b"\xff", None]),
        pa.array([[1], [2, 3], None]),
        pa.array([{"k": 1}, None, {"k": 2}]),
        pa.array([0, 10**15, None], pa.timestamp("us")),
        pa.array([0, 1, 2], pa.timestamp("ns", tz="Europe/Berlin")),
        pa.array([1, 2, 3], pa.date32()),
        pa.array([1, 2, None], pa.duration("s")),
        pa.array([1, 2, 3], pa.time64("us")),
        pa.array([1, 2, 3]).cast(pa.decimal128(24, 3)),
        pa.array(["x", "y", "x"]).dictionary_encode(),
        pa.nulls(3),
        pa.array([2**63, 1, 2], pa.uint64()),
        pa.array([1.0, 2.0, 65504.0], pa.float16()),
    ]
    files = []
    rng = random.Random(1)
    for _ in range(40):
        chosen = [rng.choice(kinds) for _ in range(5)]
        file = io.BytesIO()
        parquet.write_table(pa.table(chosen, names=["src", "dst", "time", "amount", "kind"]), file)
        files.append(file.getvalue())
    return files


def _parquet_cases(folder: Path, rng: random.Random) -> Iterator[Case]:
    """Undamaged files of any column type, and damaged ones."""
    files, path = _parquet(), folder / "case.parquet"
    while True:
        content = rng.choice(files)
        path.write_bytes(content if rng.random() < 0.5 else damaged(content, rng))
        yield lambda: _read_table(path, rng)


def _arrays(rng: random.Random) -> dict[str, np.ndarray]:
    """An archive of arrays of odd shapes and types."""
    shapes = [(), (0,), (3,), (2, 3), (3, 2), (6,), (6, 6), (1, 1, 1), (6, 2)]
    types = ["i4", "i8", "u8", "f4", "f8", "?", "c8", "U3", "M8[s]", "i1"]

    def array() -> np.ndarray:
        values = np.array([rng.choice([0, 1, 2, 3, 5, -1, 7, 2**31 - 2, 2**40]) for _ in range(36)])
        shape = rng.choice(shapes)
        return np.resize(values, shape).astype(rng.choice(types))

    sets = [
        ["src", "dst", "time", "weight", "y", "rating", "node_id", "label", "train_mask"],
        ["edge_index", "label", "x", "train_idx", "val_idx", "test_idx", "weight"],
        ["edges", "node_features", "node_labels", "train_masks", "val_masks", "test_masks"],
        ["edges", "x_indptr", "x_indices", "x_shape", "x_data", "label"],
        ["indptr", "indices", "node_group", "y", "x"],
        ["edges", "y", "x", "weight"],
    ]
    return {name: array() for name in rng.choice(sets) if rng.random() < 0.9}


GOOD = {
    "src": np.array([0, 1, 2, 3], np.int64),
    "dst": np.array([1, 2, 3, 0], np.int64),
    "time": np.array([0, 1, 1, 2]),
    "label": np.array([0, 1, 0, 1]),
}


def _npz_cases(folder: Path, rng: random.Random) -> Iterator[Case]:
    path = folder / "case.npz"
    while True:
        file = io.BytesIO()
        np.savez(file, **(GOOD if rng.random() < 0.4 else _arrays(rng)))
        content = file.getvalue()
        path.write_bytes(damaged(content, rng) if rng.random() < 0.5 else content)
        more = rng.choice([{}, {}, {"period": "1d"}, {"features": 4}, {"features": 4, "classes": 2}, {"lags": 2}])
        yield partial(load, {"path": str(path), **more})


def _npy_cases(folder: Path, rng: random.Random) -> Iterator[Case]:
    path, edges = folder / "case.npy", {"a": [0, 1, 2], "b": [1, 2, 0]}
    while True:
        file = io.BytesIO()
        np.save(file, rng.choice([np.array([0, 1, 1]), *_arrays(rng).values()]))
        content = file.getvalue()
        if rng.random() < 0.1:  # a header that speaks of terabytes
            content = content.replace(b"(3,)", b"(9999999999999,)")
        path.write_bytes(damaged(content, rng) if rng.random() < 0.5 else content)
        yield lambda: read_table(edges, Table(labels=path))


def _directory_cases(folder: Path, rng: random.Random) -> Iterator[Case]:
    """A graph directory of which one file is damaged, or whose manifest says what is not so."""
    good, case = folder / "good", folder / "case"
    accounts = {"id": ["x", "y", "z"], "age": [1, 2, None], "kind": ["a", "b", "a"], "label": [0, 1, 0]}
    edges = {"a": ["x", "y", "z"], "b": ["y", "z", "x"], "t": [0, 1, 2], "w": [1.0, 2.0, 3.0]}
    table = Table(time="t", period=1, vertices=accounts, label_column="label", edge_features="w")
    write_directory(read_table(edges, table), good)
    while True:
        shutil.rmtree(case, ignore_errors=True)
        shutil.copytree(good, case)
        victim = rng.choice(sorted(case.iterdir()))
        if victim.suffix == ".json" and rng.random() < 0.6:
            victim.write_text(json.dumps(changed(json.loads(victim.read_text()), rng)))
        else:
            size = victim.stat().st_size
            content = damaged(victim.read_bytes(), rng)
            victim.write_bytes(content[:size].ljust(size, b" ") if rng.random() < 0.7 else content)

        def read() -> None:
            record = load({"path": str(case)})
            read_directory(case)
            if record.meta.get("encoding"):
                encode({"age": [3], "kind": ["c"]}, Encoding.read(case))

        yield read


def _generator_cases(folder: Path, rng: random.Random) -> Iterator[Case]:
    odd = [
        0,
        -1,
        1,
        2,
        3,
        0.5,
        1.5,
        float("inf"),
        float("-inf"),
        float("nan"),
        10**30,
        2**62,
        1e18,
        -0.0,
        "x",
        None,
        True,
    ]
    while True:
        name = rng.choice(sorted(GENERATORS))
        small = {"vertices": 12, "features": 2, "classes": 2, "steps": 3, "communities": 2, "per_class": 2, "degree": 2}
        arguments: dict[str, Any] = {key: value for key, value in small.items() if key in GENERATORS[name].arguments}
        for key in rng.sample(sorted(GENERATORS[name].arguments), 2):
            arguments[key] = rng.choice(odd)
        yield partial(generate, name, **arguments)


def _yaml(path: Path, rng: random.Random) -> Any:
    settings = ["train.lr=" + damaged(b"0.01", rng).decode("latin-1")] if rng.random() < 0.3 else []
    return load_config(path, settings)


def _read_labels(path: Path, rng: random.Random) -> Any:
    edges = {"a": ["v0", "v1", "v2"], "b": ["v1", "v2", "v0"], "t": [1, 2, 3]}
    times = rng.choice([{}, {"time": "t", "period": 1}])
    return read_table(edges, Table(labels=path, label_column=rng.choice([None, "label", "1", "missing"]), **times))


LABELS = [b"id,label\nv0,0\nv1,1\nv2,1\n", b"v0 good\nv1 bad\nv2 good\n", b"id,label,split\nv0,0.5,train\nv1,,val\n"]


def _cluster_cases(folder: Path, rng: random.Random) -> Iterator[Case]:
    """A cluster file, as `trisect plan --calibrate` writes it, damaged or with a number that makes no sense."""
    path = folder / "cluster.yaml"
    clusters = [PRESETS[name].plain() for name in ("8xa100", "cpu-10gb")]

    def read() -> None:
        cluster = read_cluster(path)
        json.dumps(cluster.plain())
        cluster.resized(3).share(3)

    while True:
        if rng.random() < 0.5:
            path.write_bytes(damaged(yaml.safe_dump(rng.choice(clusters)).encode(), rng))
        else:
            path.write_text(yaml.safe_dump(changed(rng.choice(clusters), rng)))
        yield read


READERS: dict[str, Reader] = {
    "yaml": _files(".yaml", [CONFIG, CONFIG.rpartition(b", started")[0] + b"}\n"], _yaml),
    "csv": _files(".csv", [_csv()], _read_table),
    "edge list": _files(".txt", [b"# c\n" + _csv().replace(b",", b" "), b"1 2\n2  3\n\n3\t1\n"], _read_table),
    "gzip": _files(".csv.gz", [gzip.compress(_csv()), gzip.compress(b"0,1\n1,2\n" * 400)], _read_table),
    "parquet": _parquet_cases,
    "npz": _npz_cases,
    "npy": _npy_cases,
    "graph directory": _directory_cases,
    "generators": _generator_cases,
    "labels": _files(".csv", LABELS, _read_labels),
    "metrics.jsonl": report_of("metrics.jsonl", damaged),
    "events": report_of("events/rank-1.jsonl", damaged),
    "summary.json": report_of("summary.json", damaged),
    "plan.json": report_of("plan.json", damaged),
    "scores.json": report_of("scores.json", damaged),
    "calibration.json": calibration_cases(damaged),
    "watch": watch_cases(damaged),
    "cluster": _cluster_cases,
    "checkpoint": checkpoint_cases(damaged),
    **CALLS,
}


def fuzz(name: str, cases: int, seed: int = 0, before: Callable[[int], object] = lambda number: None) -> dict[str, int]:
    """Run so many cases of a reader; count values and sentences. Anything else is an AssertionError with the seed.

    Args:
        before: is told the number of each case before it runs.
    """
    rng = random.Random(f"{name} {seed}")
    counts = {"values": 0, "sentences": 0}
    with tempfile.TemporaryDirectory(prefix="trisect-fuzz-") as folder:
        source = READERS[name](Path(folder), rng)
        for number in range(cases):
            case = next(source)
            before(number)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    case()
                counts["values"] += 1
            except TrisectError as error:
                counts["sentences"] += 1
                text = str(error)
                assert text.strip(), f"case {number} of {name}, seed {seed}: an empty message"
                assert len(text) <= LONGEST, f"case {number} of {name}, seed {seed}: {text[:300]}"
                assert "\n" not in text, f"case {number} of {name}, seed {seed}: {text[:300]}"
            except Exception as error:
                where = "".join(traceback.format_exception(error, limit=-4))
                raise AssertionError(f"case {number} of {name}, seed {seed}: {where}") from error
    return counts


def fuzz_apart(names: Sequence[str], cases: int, seed: int = 0) -> dict[str, dict[str, int]]:
    """Run so many cases of each of these in another process, whose end by a signal is an AssertionError too."""
    with tempfile.TemporaryDirectory(prefix="trisect-fuzz-") as folder:
        at = Path(folder, "at")
        at.write_text("before the first case")
        command = [sys.executable, __file__, "--apart", str(at), str(cases), str(seed), *names]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{at.read_text().strip()}, code {done.returncode}: {done.stderr[-2000:]}"
    return cast(dict[str, dict[str, int]], json.loads(done.stdout.splitlines()[-1]))


def _be_apart(at: Path, cases: int, seed: int, names: Sequence[str]) -> None:
    counts = {}
    with at.open("w") as file:
        for name in names:

            def tell(number: int, name: str = name) -> None:
                file.seek(0)
                file.write(f"case {number} of {name}, seed {seed}".ljust(60))
                file.flush()

            counts[name] = fuzz(name, cases, seed, tell)
    print(json.dumps(counts))


def main(cases: int, seed: int = 0, names: Sequence[str] = ()) -> int:
    """Run all readers, or those that are named, and print what came of each; give the number of those that failed."""
    names = names or list(READERS)
    each, failed = -(-cases // len(names)), 0
    for name in names:
        try:
            counts = fuzz_apart([name], each, seed)[name] if name in CALLS else fuzz(name, each, seed)
        except AssertionError as error:  # the other readers are run all the same
            failed += 1
            print(f"{name:<16}   FAILED: {error}", flush=True)
            continue
        print(f"{name:<16} {each:>8,} cases: {counts['values']:,} read, {counts['sentences']:,} refused", flush=True)
    ran = f"{'all':<16} {each * (len(names) - failed):>8,} cases, seed {seed}"
    print(f"{ran}; {failed} readers FAILED" if failed else f"{ran}, no traceback")
    return failed


if __name__ == "__main__":
    if sys.argv[1:2] == ["--apart"]:
        _be_apart(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
    else:
        numbers = [int(text) for text in sys.argv[1:3]]
        sys.exit(min(1, main(*(numbers or [100_000]), names=sys.argv[3:])))
