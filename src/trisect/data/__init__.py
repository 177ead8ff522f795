"""Files, tables, named sets, generators and PyG objects → plain arrays (`records`). They know no ranks, no models."""

from trisect.data.formats.pyg import static_from_pyg, timeline_from_pyg
from trisect.data.formats.store import read_directory, write_directory
from trisect.data.generators.generate import GENERATORS, generate
from trisect.data.ingest.encoding import Encoding, encode
from trisect.data.ingest.ingest import ingest, read_table
from trisect.data.load import check, load, options
from trisect.data.named import NAMED, data_directory, load_named
from trisect.data.records import Record, StaticRecord, TextNames, TimelineRecord

__all__ = [
    "GENERATORS",
    "NAMED",
    "Encoding",
    "Record",
    "StaticRecord",
    "TextNames",
    "TimelineRecord",
    "check",
    "data_directory",
    "encode",
    "generate",
    "ingest",
    "load",
    "load_named",
    "options",
    "read_directory",
    "read_table",
    "static_from_pyg",
    "timeline_from_pyg",
    "write_directory",
]
