"""A page on the loopback interface that draws a run as it goes on. It reads, and nothing can be changed through it."""

from __future__ import annotations

from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs

from trisect.errors import TrisectError
from trisect.report.watch.follow import Follower
from trisect.settings.writing import to_json

LOOPBACK = "127.0.0.1"
_DIGITS = 18  # of a count of records


@cache
def page() -> bytes:
    """Give the page; it asks for new records each second, draws them, and sets values as text, never as HTML."""
    return files(__package__).joinpath("page.html").read_bytes()


class Server(ThreadingHTTPServer):
    """Answers `/` with the page and `/records?since=N` with what a run has written after its first N records."""

    daemon_threads = True

    def __init__(self, follower: Follower, port: int) -> None:
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except OSError as error:
            raise TrisectError(
                f"--port is {port}, which cannot be had ({error.strerror}); give another, or 0."
            ) from None
        self.follower = follower

    @property
    def address(self) -> str:
        """Give the address of the page."""
        return f"http://{LOOPBACK}:{self.server_address[1]}/"

    def records(self, since: int) -> dict[str, Any]:
        """Give what the page draws."""
        follower = self.follower
        follower.look()
        return {
            "title": follower.title,
            "epochs": follower.epochs,
            "monitor": follower.monitor,
            "ended": follower.ended,
            "count": len(follower.records),
            "records": follower.records[since:] if since <= len(follower.records) else follower.records,
            "all": since > len(follower.records),
        }


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        port = self.server.server_address[1]
        if self.headers.get("Host") not in (f"{LOOPBACK}:{port}", f"localhost:{port}"):
            self._answer(403, "text/plain", b"This page is for this machine alone.")  # a foreign name that leads here
            return
        path, _, query = self.path.partition("?")
        if path == "/":
            self._answer(200, "text/html; charset=utf-8", page())
        elif path == "/records":
            since = parse_qs(query).get("since", ["0"])[-1]
            if not (since.isascii() and since.isdecimal()) or len(since) > _DIGITS:
                told = f"since is {since[:20]!r}; give the number of records that are known, such as /records?since=0."
                self._answer(400, "text/plain; charset=utf-8", told.encode())
                return
            self._answer(200, "application/json", to_json(self.server.records(int(since))).encode())
        else:
            self._answer(404, "text/plain", b"There is no such page.")

    def _answer(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Content-Security-Policy", "default-src 'self' 'unsafe-inline'"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of each question."""
