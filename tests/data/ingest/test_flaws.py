from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trisect.data.ingest import tables
from trisect.data.ingest.ingest import Table, count_duplicates, read_table
from trisect.data.records import TimelineRecord
from trisect.errors import DataError

pytest.importorskip("pyarrow")

BAD = "a,b,t,w\nx,y,1,1\n,y,2,1\nx,z,soon,1\nx,y,3,\nx,y,4,many\nx\nq,,7,1\n,r,8,1\nx,y,5,2,9\nz,x,6,4\n"


def read(folder: Path, text: str = BAD, **more: Any) -> TimelineRecord:
    (folder / "e.csv").write_text(text)
    options = {"time": "t", "period": 1, "weight": "w", **more}
    record = read_table(folder / "e.csv", Table(**options))
    assert isinstance(record, TimelineRecord)
    return record


def test_one_report_for_all_bad_rows(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    for words in (
        "has 8 bad rows of 10",
        "src 'a' is missing in 2 (line 3, line 9)",
        "dst 'b' is missing in 1 (line 8)",
        "in 1 (line 4: 'soon')",
        "weight 'w' is missing in 1 (line 5)",
        "weight 'w' is no finite number in 1 (line 6: 'many')",
        "in 2 (line 7: 1 instead of 4, line 10: 5 instead of 4)",
        "--on-missing drop",
    ):
        assert words in message, (words, message)


def test_bad_rows_are_dropped_and_counted(tmp_path: Path) -> None:
    record = read(tmp_path, on_missing="drop")
    assert np.asarray(record.names).tolist() == ["x", "y", "z"], "q and r have dropped rows alone"
    assert record.time is not None
    assert record.time.tolist() == [1, 6]
    assert record.weight is not None
    assert record.weight.tolist() == [1, 4]
    assert record.meta["rows"] == {"rows": 10, "dropped": 8, "zeroed": 0, "duplicates": 0, "self_loops": 0}
    assert "8 of 10 rows" in record.meta["notes"][0]
    with pytest.raises(DataError, match="no row that can be used; all 1 were dropped"):
        read(tmp_path, "a,b,t,w\n,y,1,1\n", on_missing="drop")


def test_zero_stands_for_missing_weights_alone(tmp_path: Path) -> None:
    record = read(tmp_path, "a,b,t,w\nx,y,1,\nx,y,2,nan\nx,y,3,5\n", on_missing="zero")
    assert record.weight is not None
    assert record.weight.tolist() == [0, 0, 5]
    assert record.meta["rows"]["zeroed"] == 2
    with pytest.raises(DataError, match=r"has 7 bad rows of 10.*zero stands for missing numbers only"):
        read(tmp_path, on_missing="zero")
    with pytest.raises(DataError, match="unknown value of on_missing 'dropp'; did you mean 'drop'"):
        read(tmp_path, on_missing="dropp")


def test_lines_of_a_file_with_comments_quotes_and_blanks(tmp_path: Path) -> None:
    path = tmp_path / "e.csv"
    path.write_text('# made by hand\n# twice\na,b,t\n"x\nx",y,1\n\nx,y,2\nx,y,never\n')
    with pytest.raises(DataError, match=r"1 bad row of 3.*line 8: 'never'"):
        read_table(path, Table(time="t", period=1))
    with gzip.open(tmp_path / "e.txt.gz", "wt") as file:
        file.write("# head\n1 2 3\n% inside\n\n2  3 x\n")
    with pytest.raises(DataError, match=r"1 bad row of 2.*line 5: 'x'"):
        read_table(tmp_path / "e.txt.gz", Table(src="0", dst="1", time="2", period=1))


def test_bad_rows_of_many_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f"u{k % 50},v{k % 70},{k}" for k in range(4000)]
    for k in (7, 1500, 1501, 3999):
        rows[k] = f"bad{k},v,?"
    path = tmp_path / "e.csv"
    path.write_text("a,b,t\n" + "\n".join(rows) + "\n")
    whole = read_table(path, Table(time="t", period=100, on_missing="drop"))
    monkeypatch.setattr(tables, "_BLOCK", 2000)
    parts = read_table(path, Table(time="t", period=100, on_missing="drop"))
    for record in (whole, parts):
        assert (record.vertices, len(record.src), record.meta["rows"]["dropped"]) == (120, 3996, 4)
    np.testing.assert_array_equal(whole.src, parts.src)
    with pytest.raises(
        DataError, match=r"4 bad rows of 4,000.*in 4 \(line 9: '\?', line 1502: '\?', line 1503: '\?', …\)"
    ):
        read_table(path, Table(time="t", period=100))


@pytest.mark.parametrize("zone", ["", "Z", "+02:00"])
def test_one_bad_moment_does_not_spoil_the_others(zone: str, tmp_path: Path) -> None:
    moments = [f"2024-01-0{k}T10:00:00{zone}" for k in range(1, 6)]
    text = "a,b,t,w\n" + "".join(f"x,y,{moment},1\n" for moment in moments)
    good = read(tmp_path, text, period="1d")
    record = read(tmp_path, text + "x,y,2024-13-45,1\nx,y, ,1\n", period="1d", on_missing="drop")
    assert good.time is not None
    assert record.time is not None
    np.testing.assert_array_equal(good.time, record.time)
    assert record.meta["rows"]["dropped"] == 2
    late = read(tmp_path, text.replace("T10", "T11"), period="1d")
    assert late.time is not None
    assert not np.array_equal(late.time, record.time)


def test_numbers_and_dates_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"1 bad row of 3.*line 4: '2024-01-01'"):
        read(tmp_path, "a,b,t,w\nx,y,1,1\nx,y,2,1\nx,y,2024-01-01,1\n")
    monkeypatch.setattr(tables, "_BLOCK", 64)
    text = "a,b,t,w\n" + "x,y,1,1\n" * 20 + "x,y,2024-01-01,1\n" * 5
    with pytest.raises(DataError, match=r"5 bad rows of 25.*(changes between|no number)"):
        read(tmp_path, text)


def test_duplicates_are_counted_and_kept(tmp_path: Path) -> None:
    record = read(tmp_path, "a,b,t,w\nx,y,1,1\nx,y,1,2\nx,y,2,1\ny,x,1,1\nx,y,1,3\n")
    assert record.meta["rows"]["duplicates"] == 2
    assert len(record.src) == 5
    assert "2 rows repeat an earlier one" in record.meta["notes"][0]
    rng = np.random.default_rng(0)
    src, dst, time = (rng.integers(0, 30, 5000).astype(np.int32) for _ in range(3))
    expected = 5000 - len(set(zip(src.tolist(), dst.tolist(), time.tolist(), strict=True)))
    assert count_duplicates(src, dst, time.astype(np.int64)) == expected > 0
    assert count_duplicates(src, dst, None) == 5000 - len(set(zip(src.tolist(), dst.tolist(), strict=True))) != expected
