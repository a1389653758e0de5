"""A reverse proxy under a path prefix that authenticates users and forwards their names."""

from __future__ import annotations

import base64
import binascii
import http.client
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tests.browser.served import PASSWORDS

if TYPE_CHECKING:
    from collections.abc import Iterator

# Hop-by-hop headers, which are not forwarded.
_HOP = {"connection", "keep-alive", "transfer-encoding", "authorization", "host"}
USER_HEADER = "X-Signed-In"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self._pass_on()

    def do_POST(self) -> None:
        self._pass_on()

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _pass_on(self) -> None:
        user = self._user()
        if user is None:
            self._answer(401, [("WWW-Authenticate", 'Basic realm="proxy"')])
        elif not self.path.startswith(f"{self.server.prefix}/"):
            self._answer(404, [])  # the path of another application
        else:
            self._ask(user)

    def _user(self) -> str | None:
        try:
            encoded = self.headers.get("Authorization", "").removeprefix("Basic ")
            name, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        return name if PASSWORDS.get(name) == password else None

    def _answer(self, status: int, headers: list[tuple[str, str]]) -> None:
        self.send_response(status)
        for name, value in [*headers, ("Content-Length", "0")]:
            self.send_header(name, value)
        self.end_headers()

    def _ask(self, user: str) -> None:
        behind = urlsplit(self.server.behind)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        kept = [(name, value) for name, value in self.headers.items() if name.lower() not in _HOP]
        connection = http.client.HTTPConnection(str(behind.hostname), behind.port or 80, timeout=30)
        try:
            path = self.path.removeprefix(self.server.prefix)
            connection.putrequest(self.command, path, skip_host=True, skip_accept_encoding=True)
            # As a configured nginx does: the host name that the browser requested.
            kept += [("Host", self.headers["Host"]), (USER_HEADER, user)]
            kept += [("X-Forwarded-For", self.client_address[0]), ("X-Forwarded-Proto", "http")]
            for name, value in kept:
                connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _HOP:
                    self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()
            # In pieces, because a stream of events does not end.
            while piece := answer.read1(65_536):
                self.wfile.write(piece)
        except (ConnectionError, TimeoutError):
            pass  # the browser or the server behind has disconnected
        finally:
            self.close_connection = True
            connection.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, behind: str, prefix: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind, self.prefix = behind, prefix

    def handle_error(self, *_: object) -> None:
        """Log nothing: a leaving browser cuts its streams off."""


@contextmanager
def reverse_proxy(behind: str, prefix: str) -> Iterator[str]:
    """Serve the server at *behind* under *prefix*; yield the new URL."""
    server = _Server(behind, prefix)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{prefix}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def foreign_site(page: str) -> Iterator[str]:
    """Serve one page of another site on its own server; yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
