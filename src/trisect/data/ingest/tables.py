"""Tables of edges as streams of batches: CSV, TSV, edge-list text (pyarrow, or numpy for plain numbers) and Parquet."""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import io
import re
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from trisect.data.room import reading, require_room
from trisect.errors import DataError, nearest

Progress = Callable[[float], None]

_BLOCK = 8 << 20
ROWS = 1 << 18
_COMMENT = re.compile(rb"(?m)^[ \t]*[#%][^\n]*(?:\n|\Z)")
_SPACES = re.compile(rb"[ \t\r]+")
_EDGES_OF_LINE = re.compile(rb"(?m)^ | $|^\n")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


_SHEET_AS_TEXT = "save the sheet as CSV, or use pandas.read_excel(…).to_csv(…, index=False)"
# files that hold tables of other formats: what they are, and what turns them into one that is read
_OTHER_FORMATS = {
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".xlsb", ".ods"), ("a spreadsheet", _SHEET_AS_TEXT)),
    **dict.fromkeys(
        (".feather", ".arrow", ".orc", ".avro", ".json", ".jsonl", ".ndjson", ".sqlite", ".db", ".h5", ".hdf5"),
        ("of another format", "write it as Parquet, such as with pandas' to_parquet(…)"),
    ),
    **dict.fromkeys((".pkl", ".pickle", ".pt", ".pth"), ("a pickle", "write it as Parquet; nothing is unpickled")),
    **dict.fromkeys((".zip", ".bz2", ".xz", ".zst", ".7z", ".tar", ".tgz"), ("packed", "unpack it, or pack it as .gz")),
}


@dataclass(frozen=True)
class Shape:
    """What the first lines of a text file say about it.

    Attributes:
        delimiter: one character; a space stands for any run of spaces and tabs.
        header: the names in its first line, or None where that line is data.
        width: how many columns there are.
        comments: how many lines of comment come first.
    """

    delimiter: str
    header: list[str] | None
    width: int
    comments: int

    @property
    def names(self) -> list[str]:
        """Names of the columns: the header's, or 0, 1, 2, …."""
        return self.header if self.header is not None else [str(k) for k in range(self.width)]


def is_parquet(path: Path) -> bool:
    """Tell whether the file's name says that it is Parquet."""
    return path.suffix.lower() in (".parquet", ".pq")


def require_readable(path: Path) -> None:
    """Refuse a file whose name says that it holds a table of a format that is not read."""
    what, remedy = _OTHER_FORMATS.get(path.suffix.lower(), ("", ""))
    if what and path.is_file():
        raise _not_read(path, f"{what} ({path.suffix})", remedy)


def _not_read(path: Path, what: str, remedy: str) -> DataError:
    return DataError(
        f"the table {path} is {what}, which is not read; CSV, TSV and text (each also .gz) and Parquet are: {remedy}."
    )


def _require_file(path: Path) -> None:
    if not path.is_file():
        flaw = "is a directory; give a file" if path.is_dir() else "does not exist; check the path"
        raise DataError(f"the table {path} {flaw}.")


def open_raw(path: Path) -> IO[bytes] | gzip.GzipFile:
    """Open the file's bytes, unpacked where its name ends in .gz."""
    _require_file(path)
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else open(path, "rb")


def sniff(path: Path, wanted: list[str | None]) -> Shape:
    """Delimiter, header and width from the first lines. A column wanted by number says that there is no header."""
    with reading(f"the table {path}"), open_raw(path) as file:
        head = file.read(1 << 16)
    if head.startswith(b"PK\x03\x04"):
        raise _not_read(path, "a spreadsheet or another zip archive (by its first bytes)", _SHEET_AS_TEXT)
    lines = head.decode("utf-8-sig", errors="replace").splitlines()
    comments = next((k for k, line in enumerate(lines) if line.strip() and line.lstrip()[0] not in "#%"), len(lines))
    if comments == len(lines):
        raise DataError(f"the table {path} is empty; it needs at least one edge.")
    first = lines[comments]
    delimiter = next((mark for mark in (",", ";", "\t") if mark in first), " ")
    if delimiter == "\t" and comments:  # SNAP's files: tabs, but also runs of them
        delimiter = " "
    fields = first.split() if delimiter == " " else next(csv.reader([first], delimiter=delimiter))
    fields = [field.strip() for field in fields]
    numbers = all(_NUMBER.fullmatch(field) for field in fields)
    by_number = any(name is not None and name.isdigit() and name not in fields for name in wanted)
    plain = delimiter == " " and all(name is None for name in wanted)
    headless = numbers or by_number or plain
    if not headless and len(lines) == comments + 1 and len(head) < 1 << 16:
        raise DataError(f"the table {path} is empty; it has a header and no edge.")
    return Shape(delimiter, None if headless else fields, len(fields), comments)


def pick(names: list[str], wanted: str | None, role: str, position: int, title: str) -> str:
    """Return the column asked for, or the one at `position` where none was named; one that occurs twice is refused."""
    if wanted is None:
        if position >= len(names):
            count = f"{len(names)} column{'' if len(names) == 1 else 's'}"
            raise DataError(
                f"{title} has {count}, and {role} would be column {position + 1}; check what separates its columns"
                " (a comma, a semicolon, a tab or spaces)."
            )
        wanted = names[position]
    wanted = str(wanted)  # a frame may have numbers as columns
    if wanted not in names:
        near = nearest(wanted, names)
        hint = f"did you mean {near!r}?" if near else f"it has {', '.join(names)}."
        raise DataError(f"{role} is {wanted!r} but {title} has no such column; {hint}")
    if names.count(wanted) > 1:
        raise DataError(
            f"{role} is {wanted!r}, and {title} has {names.count(wanted)} columns of this name; rename all but one."
        )
    return wanted


class CleanText:
    """A file for pyarrow that reports progress and, for edge-list text, drops comments and joins runs of spaces."""

    def __init__(self, path: Path, shape: Shape, progress: Progress | None) -> None:
        # beneath the unpacking, so that progress counts the bytes of the file itself
        self._file = open(path, "rb")  # noqa: SIM115
        self._raw: IO[bytes] | gzip.GzipFile = (
            gzip.GzipFile(fileobj=self._file) if path.suffix.lower() == ".gz" else self._file
        )
        self._clean = shape.delimiter == " "
        self._progress = progress
        self._size = max(1, path.stat().st_size)
        self._rest = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        for _ in range(shape.comments):
            self._line()
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes; none only at the end."""
        if not self._clean and not self._rest:
            block = self._checked(self._raw.read(size))
            self._report()
            return block
        while not self._rest:
            block = self._checked(self._raw.read(_BLOCK))
            if not block:
                return b""
            block += self._checked(self._line())
            block = _SPACES.sub(b" ", _COMMENT.sub(b"", block))
            self._rest = _EDGES_OF_LINE.sub(b"", block)
            self._report()
        size = len(self._rest) if size is None or size < 0 else size
        block, self._rest = self._rest[:size], self._rest[size:]
        return block

    def _checked(self, block: bytes) -> bytes:
        """Refuse what is not UTF-8: a row of it with another number of columns would be passed over in silence."""
        if not block.isascii() or self._decoder.getstate()[0]:
            try:
                self._decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                byte = error.object[error.start]
                raise DataError(
                    f"the table {self._file.name} is not UTF-8 text (it holds the byte 0x{byte:02x}); save it as UTF-8."
                ) from error
        return block

    def _line(self) -> bytes:
        line = self._raw.readline(_BLOCK)
        if len(line) == _BLOCK:
            raise DataError(f"the table {self._file.name} has a line of more than 8 MiB; it is no table.")
        return line

    def _report(self) -> None:
        if self._progress is not None:
            position = self._file.tell()
            self._progress(min(1.0, position / self._size))

    def readable(self) -> bool:
        """Answer as a file object does."""
        return True

    def close(self) -> None:
        """Close the file beneath this one."""
        self._raw.close()
        self._file.close()
        self.closed = True


def text_batches(
    path: Path, shape: Shape, columns: list[str], progress: Progress | None, on_malformed: Callable[[Any], str]
) -> Iterator[list[Any]]:
    """Batches of the columns as pyarrow arrays of strings, in the file's order.

    Args:
        on_malformed: called with each row of another number of columns; `"skip"` passes over it.
    """
    import pyarrow as pa
    import pyarrow.csv as reader

    unique = list(dict.fromkeys(columns))
    file = CleanText(path, shape, progress)
    try:
        stream = reader.open_csv(
            pa.PythonFile(file, mode="r"),
            read_options=reader.ReadOptions(
                column_names=shape.names, skip_rows=0 if shape.header is None else 1, block_size=_BLOCK
            ),
            parse_options=reader.ParseOptions(delimiter=shape.delimiter, invalid_row_handler=on_malformed),
            convert_options=reader.ConvertOptions(
                include_columns=unique, column_types=dict.fromkeys(unique, pa.string()), strings_can_be_null=False
            ),
        )
        for batch in stream:
            yield [batch.column(unique.index(name)) for name in columns]
    except pa.ArrowInvalid as error:
        text = str(error)
        if "Empty CSV" in text:
            raise DataError(f"the table {path} is empty; it needs at least one edge.") from error
        raise DataError(f"the table {path} cannot be read: {text.splitlines()[0]}.") from error
    except (OSError, EOFError, zlib.error, pa.ArrowException, UnicodeError, csv.Error) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise DataError(f"the table {path} cannot be read ({said}); give another file.") from error
    finally:
        file.close()


def parquet_names(path: Path) -> list[str]:
    """Give the columns of a Parquet file."""
    with reading(f"the table {path}"):
        return list(_open_parquet(path).schema_arrow.names)


def parquet_batches(path: Path, columns: list[str], progress: Progress | None) -> Iterator[list[Any]]:
    """Batches of the columns as pyarrow arrays of the file's own types."""
    file = _open_parquet(path)
    unique, done, rows = list(dict.fromkeys(columns)), 0, max(1, file.metadata.num_rows)
    require_room(4.0 * rows * len(unique), f"the table {path} of {rows:,} rows")
    batches = file.iter_batches(batch_size=ROWS, columns=unique)
    while True:
        with reading(f"the table {path}"):
            batch = next(batches, None)
        if batch is None:
            return
        done += batch.num_rows
        if progress is not None:
            progress(done / rows)
        yield [batch.column(batch.schema.names.index(name)) for name in columns]


def _open_parquet(path: Path) -> Any:
    _require_file(path)
    require_pyarrow(f"{path} is Parquet")
    import pyarrow.parquet as parquet

    with reading(f"the table {path}", "give a readable Parquet file"):
        return parquet.ParquetFile(path)


def have_pyarrow() -> bool:
    """Tell whether pyarrow can be imported."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        return False
    return True


def require_pyarrow(why: str) -> None:
    """Raise an error that names the extra, unless pyarrow is there."""
    if not have_pyarrow():
        raise DataError(f"{why}, which needs pyarrow; install it with: pip install 'trisect[parquet]'.")


def number_batches(path: Path, shape: Shape, columns: list[str], progress: Progress | None) -> Iterator[list[Any]]:
    """Batches of the columns as float64 or int64 arrays, without pyarrow: for tables of plain numbers.

    Columns are int64 as long as every value is whole; ids above 2^53 therefore stay exact.
    """
    positions = [shape.names.index(name) for name in columns]
    file = CleanText(path, shape, progress)
    stream = io.TextIOWrapper(io.BufferedReader(_Raw(file), _BLOCK), encoding="utf-8-sig")
    if shape.header is not None:
        stream.readline()
    done = 0
    delimiter = None if shape.delimiter == " " else shape.delimiter
    with stream:
        while lines := stream.readlines(_BLOCK):
            yield [_parse(lines, position, delimiter, done, columns[k], path) for k, position in enumerate(positions)]
            done += len(lines)


def _parse(lines: list[str], position: int, delimiter: str | None, done: int, name: str, path: Path) -> Any:
    def read(kind: type) -> Any:
        return np.loadtxt(lines, dtype=kind, delimiter=delimiter, usecols=position, comments=None, ndmin=1)

    with warnings.catch_warnings(), contextlib.suppress(ValueError, DeprecationWarning):
        warnings.simplefilter("error", DeprecationWarning)  # numpy would read 1.5 as the integer 1
        return read(np.int64)
    try:
        return read(np.float64)
    except ValueError as error:
        texts = [_field(line, position, delimiter) for line in lines]
        row = next((k for k, text in enumerate(texts) if not _NUMBER.fullmatch(text)), 0)
        raise DataError(
            f"column {name!r} of {path} holds {texts[row]!r} in row {done + row + 1}; text needs pyarrow, "
            "install it with: pip install 'trisect[parquet]'."
        ) from error


def _field(line: str, position: int, delimiter: str | None) -> str:
    fields = line.strip().split(delimiter)
    return fields[position].strip() if position < len(fields) else ""


class _Raw(io.RawIOBase):
    """The cleaned text as Python's own raw stream."""

    def __init__(self, file: CleanText) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block = self._file.read(len(buffer))
        buffer[: len(block)] = block
        return len(block)

    def close(self) -> None:
        self._file.close()
        super().close()
