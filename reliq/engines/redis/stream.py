"""Stream: one connected socket, bytes out and replies in.

Owns the socket, which never blocks, what it has not taken yet, and what has come of a reply so
far. Knows nothing of what was asked, nor of what a reply is to. What goes wrong is an OSError
here. Its user's lock is held around everything but the waits: a socket under TLS is read and
written by one thread at a time.
"""

from __future__ import annotations

import os
from contextlib import suppress
from socket import SHUT_RDWR
from ssl import SSLWantReadError, SSLWantWriteError
from typing import TYPE_CHECKING, Any, TypeAlias

import hiredis

from ..poll import Readable, readable, writable
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
    """What a connection is once it is dialled and logged in."""

    def __init__(self, connection: redis.connection.AbstractConnection) -> None:
        self._connection = connection
        self._sock = socket_of(connection)
        self._sock.settimeout(0.0)
        self._reader = hiredis.Reader()
        self._unsent = bytearray()
        self.written = 0
        """How many bytes were written so far."""
        self.sent = 0
        """How many of them the socket has taken."""
        self.scripts: set[str] = set()
        """Digests of the scripts whose text went over it: its server has them, unless flushed."""
        self.sends_texts = False
        """Whether all are sent as text: the server refuses EVALSHA."""
        self._reads_first = False  # whether TLS has to read before it can write
        self._readable = Readable(self._sock.fileno())
        self._waiting: set[object] = set()
        self._closed = False

    def fileno(self) -> int:
        """Return its descriptor."""
        return self._sock.fileno()

    # -- out

    @property
    def unsent(self) -> bool:
        """Whether the socket has not taken yet all that was written."""
        return bool(self._unsent)

    def write(self, data: bytes) -> None:
        """Write *data* as far as the socket takes it now; :meth:`flush` writes the rest."""
        self.written += len(data)
        if self._unsent:
            self._unsent += data
            return
        sent = self._send(data)
        if sent != len(data):
            self._unsent += memoryview(data)[sent:]

    def flush(self) -> bool:
        """Write what is left, as far as the socket takes it now; whether it took some."""
        sent = self._send(self._unsent) if self._unsent else 0
        del self._unsent[:sent]
        return sent > 0

    def _send(self, data: bytes | bytearray) -> int:
        sent, self._reads_first = 0, False
        try:
            sent = self._sock.send(data)
        except SSLWantReadError:
            self._reads_first = True
        except (BlockingIOError, SSLWantWriteError):
            pass
        self.sent += sent
        return sent

    # -- in

    def read(self) -> bool:
        """Take what has come; False where nothing has.

        Raises EOFError where the peer has closed the connection.
        """
        sock, data = self._sock, b""
        try:
            data = sock.recv(_READ_SIZE)
            if not data:
                raise EOFError
            self._reader.feed(data)
            # TLS may hold decrypted bytes that no poll will ever announce.
            while pending := getattr(sock, "pending", int)():
                self._reader.feed(sock.recv(pending))
        except (BlockingIOError, SSLWantReadError, SSLWantWriteError):
            return bool(data)
        return True

    def next_reply(self) -> Reply:
        """Return the next reply that is complete; False where there is none."""
        return self._reader.gets()

    # -- waits: between these two no lock is held, and the descriptor stays what it is

    def begin_wait(self, who: object) -> None:
        """Keep the descriptor until :meth:`end_wait`, also where the stream is closed."""
        self._waiting.add(who)

    def wait(self, timeout_s: float, *, reads: bool, writes: bool) -> None:
        """Wait up to *timeout_s* until it can be read, or what is left can be written; or closed.

        One thread at a time for each of the two.
        """
        if writes and not self._reads_first:
            writable(self._sock.fileno(), timeout_s, or_readable=reads)
        else:
            self._readable.wait(timeout_s)

    def has_come(self) -> bool:
        """Whether there is something to be read; nobody may wait for that meanwhile."""
        return bool(readable((self._sock.fileno(),), 0.0))

    def end_wait(self, who: object) -> None:
        """Give the descriptor back; harmless where *who* does not wait."""
        self._waiting.discard(who)
        if self._closed and not self._waiting:
            hang_up(self._connection)

    # -- the end

    def close(self) -> None:
        """Hang up; who waits is woken, and closes the descriptor."""
        self._closed = True
        if self._waiting:
            with suppress(OSError):
                self._sock.shutdown(SHUT_RDWR)
        else:
            hang_up(self._connection)

    def abandon(self) -> None:
        """Let go of a socket that is the parent's as well: closing the descriptor sends nothing."""
        with suppress(OSError):
            os.close(self._sock.detach())
