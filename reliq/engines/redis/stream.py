"""Stream: one connected socket, bytes out and replies in.

Owns the socket, its timeout and what has come of a reply so far. Knows nothing of what was
asked, nor of what a reply is to; not thread-safe. What goes wrong is an OSError here.
"""

from __future__ import annotations

import os
from contextlib import suppress
from ssl import SSLWantReadError, SSLWantWriteError
from typing import TYPE_CHECKING, Any, TypeAlias

import hiredis

from .connect import hang_up, socket_of

if TYPE_CHECKING:
    import redis

Reply: TypeAlias = Any
Command: TypeAlias = tuple[Any, ...]

_READ_SIZE = 1 << 16
_NUMBERS = frozenset((int, float))


def pack(command: Command) -> bytes:
    """Return the bytes of *command*; names that were no UTF-8 as they were received.

    Numbers become text here: hiredis would call repr for it, which runs the handlers of
    signals first, and crashes the process where one of them raises (Ctrl-C, a time limit).
    """
    plain: Command = tuple([str(part) if type(part) in _NUMBERS else part for part in command])
    try:
        packed: bytes = hiredis.pack_command(plain)
    except UnicodeEncodeError:
        encoded: Command = tuple(
            part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
            for part in plain
        )
        packed = hiredis.pack_command(encoded)
    return packed


class Stream:
    """What a connection is once it is dialled and logged in; *timeout_s* is for what must wait."""

    def __init__(
        self, connection: redis.connection.AbstractConnection, timeout_s: float | None
    ) -> None:
        self._connection = connection
        self._sock = socket_of(connection)
        self._reader = hiredis.Reader()
        self._waits_s = timeout_s
        self._timeout_s: float | None = -1.0

    def fileno(self) -> int:
        """Return its descriptor."""
        return self._sock.fileno()

    def _set_timeout(self, timeout_s: float | None) -> None:
        if timeout_s != self._timeout_s:  # a system call, so only when it changes
            self._sock.settimeout(timeout_s)
            self._timeout_s = timeout_s

    def write(self, data: bytes) -> None:
        """Write *data*, all of it; waits while the server takes nothing."""
        self._set_timeout(self._waits_s)
        self._sock.sendall(data)

    def send(self, data: bytes) -> None:
        """Write *data* without the poll that a socket with a timeout makes first."""
        try:
            if self._timeout_s != 0.0:
                self._set_timeout(0.0)
            sent = self._sock.send(data)
        except OSError:
            # It takes nothing now; or it is broken, and the write fails in the same way.
            sent = 0
        if sent != len(data):
            self.write(data[sent:])

    def read(self, timeout_s: float | None) -> bool:
        """Take what has come, waiting up to *timeout_s* for something; False where nothing has.

        Raises EOFError where the peer has closed the connection.
        """
        sock = self._sock
        try:
            if timeout_s != self._timeout_s:
                self._set_timeout(timeout_s)
            data = sock.recv(_READ_SIZE)
            if not data:
                raise EOFError
            self._reader.feed(data)
        except (TimeoutError, BlockingIOError, SSLWantReadError, SSLWantWriteError):
            return False
        # TLS may hold decrypted bytes that no poll will ever announce.
        with suppress(TimeoutError, BlockingIOError, SSLWantReadError):
            while pending := getattr(sock, "pending", int)():
                self._reader.feed(sock.recv(pending))
        return True

    def next_reply(self) -> Reply:
        """Return the next reply that is complete; False where there is none."""
        return self._reader.gets()

    def close(self) -> None:
        """Hang up."""
        hang_up(self._connection)

    def abandon(self) -> None:
        """Let go of a socket that is the parent's as well: closing the descriptor sends nothing."""
        with suppress(OSError):
            os.close(self._sock.detach())
