"""Runs a rank's actions, counts what they move. The only package that may call torch.distributed. Knows no files."""

from trisect.runtime.executor import Executor, Handler, Observer
from trisect.runtime.ledger import Entry, Ledger
from trisect.runtime.memory import PssWatch, peak_rss_bytes, watched_memory

__all__ = ["Entry", "Executor", "Handler", "Ledger", "Observer", "PssWatch", "peak_rss_bytes", "watched_memory"]
