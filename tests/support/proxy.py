"""A TCP proxy that cuts connections after a number of bytes in one direction.

It stands between a client and a server of the test, in this process. After `cut_requests(n)` or
`cut_replies(n)`, it forwards exactly n more bytes in that direction over any connections, and then
closes both ends of the connection that would carry the next byte. Each call cuts once; later
connections work. After `cut_at(text)`, it cuts the connection that carries the text to the server,
whatever other connections do.

It forwards in one direction at a time, and waits for slow readers. After `allow(n)`, it reads only
n more bytes of requests.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.servers import RedisServer


class Proxy:
    """Listens on its own loopback port until it is closed."""

    def __init__(self, server: RedisServer, buffer: int | None = None) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        if buffer is not None:  # for unread requests; the client's own buffer holds more
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._left: dict[str, int] = {}
        self._text = b""
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._closed = False
        self.refusing = False
        """Whether new connections are closed at once."""
        self._limit: int | None = None
        self.cuts = 0
        """The number of cuts."""
        self.forwarded = {"requests": 0, "replies": 0}
        """The number of bytes forwarded in each direction."""
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, scheme: str = "reliq") -> str:
        """Return the URL of the server through this proxy."""
        return f"{scheme}://127.0.0.1:{self.port}/0"

    def cut_requests(self, after: int) -> None:
        """Forward *after* more bytes to the server, then cut immediately after the last one."""
        with self._lock:
            self._left = {"requests": after}

    def cut_replies(self, after: int) -> None:
        """Forward *after* more bytes to the client, and cut when the server sends the next one.

        With 0, the server has executed the request, and the client receives nothing.
        """
        with self._lock:
            self._left = {"replies": after}

    def cut_at(self, text: bytes) -> None:
        """Cut instead of forwarding the request with *text*: it is sent, and never arrives.

        Over loopback, a short request arrives in one piece.
        """
        with self._lock:
            self._text = text

    def allow(self, size: int | None) -> None:
        """Read *size* more bytes of requests, then wait; None: no limit."""
        self._limit = None if size is None else self.forwarded["requests"] + size

    def disarm(self) -> None:
        """Cancel cuts that have not happened."""
        with self._lock:
            self._left, self._text = {}, b""

    def cut_all(self) -> None:
        """Cut every present connection."""
        for client, server in list(self._pairs):
            self._hang_up(client, server)

    def close(self) -> None:
        """Stop listening, and cut the remaining connections."""
        self._closed = True
        # A close alone does not wake the thread in accept().
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut_all()

    # -- inside

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refusing:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._server.port))
            except OSError:
                client.close()
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._pairs.add((client, server))
            threading.Thread(target=self._forward, args=(client, server), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        ways = {client: ("requests", server), server: ("replies", client)}
        try:
            while True:
                room = self._room()
                ends = [client, server] if room else [server]
                for end in select.select(ends, [], [], 0.02)[0]:
                    way, other = ways[end]
                    data = end.recv(room if end is client else 1 << 16)
                    passed, cut = self._allowed(way, data)
                    other.sendall(passed)
                    if not data or cut:
                        return
        except (OSError, ValueError):
            pass  # one end is closed, and the other is closed below.
        finally:
            self._hang_up(client, server)

    def _room(self) -> int:
        """Return how many bytes of requests may be read now."""
        if self._limit is None:
            return 1 << 16
        return min(max(self._limit - self.forwarded["requests"], 0), 1 << 16)

    def _allowed(self, way: str, data: bytes) -> tuple[bytes, bool]:
        """Return the part of *data* that may pass, and whether the connection ends after it."""
        with self._lock:
            if self._text and way == "requests" and self._text in data:
                self._text = b""
                self.cuts += 1
                return b"", True
            left = self._left.get(way)
            # A reply is cut before its next byte, a request after its last one.
            temporary = 0 if left is None else left if way == "replies" else left - 1
            cut = left is not None and len(data) > temporary
            if cut:
                data = data[:left]
                self._left = {}
                self.cuts += 1
            if way in self._left:
                self._left[way] -= len(data)
            self.forwarded[way] += len(data)
        return data, cut

    def _hang_up(self, client: socket.socket, server: socket.socket) -> None:
        self._pairs.discard((client, server))
        for end in (client, server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
