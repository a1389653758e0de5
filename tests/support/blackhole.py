"""A TCP proxy that loses packets, or simulates a network that is unreachable for a while.

Swallowed connections stay open at both ends, and nothing arrives. Severed connections are closed,
and new ones at once, until the proxy is repaired (`mend`).
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.servers import RedisServer


class Blackhole:
    """Forwards to a server, or silently discards the data; sends no FIN and no RST then."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._swallowed: set[socket.socket] = set()
        self._open: set[socket.socket] = set()
        self._closed = False
        self._severed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, scheme: str = "reliq", db: int = 0) -> str:
        """Return the URL of the server through this proxy."""
        return f"{scheme}://127.0.0.1:{self.port}/{db}"

    def swallow(self) -> int:
        """Discard all further data of the present connections; later connections work.

        Returns the number of dead connections.
        """
        self._swallowed |= self._open
        return len(self._swallowed) // 2

    def sever(self) -> None:
        """Close every connection, and new ones at once."""
        self._severed = True
        self._cut_all()

    def mend(self) -> None:
        """Forward new connections again."""
        self._severed = False

    def close(self) -> None:
        """Stop listening and close everything."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._cut_all()

    def _cut_all(self) -> None:
        for end in list(self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._severed:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._server.port))
            except OSError:
                client.close()
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open |= {client, server}
            threading.Thread(target=self._forward, args=(client, server), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        other = {client: server, server: client}
        gone: set[socket.socket] = set()
        try:
            while len(gone) < 2:
                ready, _, _ = select.select([e for e in other if e not in gone], [], [])
                for end in ready:
                    data = end.recv(1 << 16)
                    if end in self._swallowed:
                        if not data:
                            gone.add(end)  # the other end does not receive the FIN either.
                        continue
                    if not data:
                        return
                    other[end].sendall(data)
        except (OSError, ValueError):
            pass  # one end is closed, and the other is closed below.
        finally:
            for end in (client, server):
                self._open.discard(end)
                end.close()
