"""Stream: one connected socket, bytes out and replies in.

Owns the socket, which never blocks, the unsent bytes, and the received part of a reply. Knows
nothing of scripts, nor which command a reply belongs to. Its failures are those of
:data:`FAILURES` here. One thread at a time uses it; any thread may :meth:`interrupt` it.
"""

from __future__ import annotations

from contextlib import suppress
from math import inf
from socket import SHUT_RDWR
from ssl import SSLWantReadError, SSLWantWriteError
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import finalize

import hiredis

from ..errors import BrokerTimeout, BrokerUnavailable, ReliqError
from .connect import READ_SIZE, translate
from .poll import Readable, usable

if TYPE_CHECKING:
    from collections.abc import Callable
    from socket import socket

    from .connect import Broker, Dialled

Reply: TypeAlias = Any
Command: TypeAlias = tuple[Any, ...]

FAILURES = (OSError, EOFError, ValueError, hiredis.ProtocolError)
"""The exceptions of a broken stream."""
_PART = 1 << 12
SILENCE_S = 1.0
"""Seconds without a byte after which :meth:`Stream.replies` notifies its caller."""
_NUMBERS = frozenset((int, float))


class Prefix:
    """The common first parts of many commands, packed once; used as a command's first part."""

    __slots__ = ("count", "packed", "parts")

    def __init__(self, *parts: Any) -> None:
        self.parts = parts
        self.count = len(parts)
        _, _, self.packed = pack(parts).partition(b"\n")


def pack(command: Command) -> bytes:
    """Return the bytes of *command*; names that are not UTF-8 are sent as received.

    Numbers become text here: hiredis would call repr, which runs pending signal handlers first.
    If a handler raised (Ctrl-C, a time limit), the process would crash.
    """
    prefix = command[0]
    rest, count = command, 0
    if type(prefix) is Prefix:
        rest = command[1:]
        count = len(rest)
        if count == 1 and type(rest[0]) is str:  # an ack
            text = rest[0].encode("utf-8", "surrogateescape")
            parts = prefix.count + 1, prefix.packed, len(text), text
            return b"*%d\r\n%b$%d\r\n%b\r\n" % parts
    plain: Command = tuple([str(part) if type(part) in _NUMBERS else part for part in rest])
    try:
        packed: bytes = hiredis.pack_command(plain)
    except UnicodeEncodeError:
        encoded: Command = tuple(
            part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
            for part in plain
        )
        packed = hiredis.pack_command(encoded)
    if type(prefix) is not Prefix:
        return packed
    _, _, packed = packed.partition(b"\n")
    return b"*%d\r\n%b%b" % (prefix.count + count, prefix.packed, packed)


def parts_of(command: Command) -> Command:
    """Return *command* with its prefix, if any, expanded."""
    prefix = command[0]
    return (*prefix.parts, *command[1:]) if type(prefix) is Prefix else command


def failure(exc: BaseException, address: Broker, limit_s: float) -> ReliqError:
    """Return reliq's error for one of :data:`FAILURES`."""
    if isinstance(exc, TimeoutError):
        return late(address, limit_s)
    if isinstance(exc, OSError):
        return translate(exc, address, limit_s)
    return BrokerUnavailable(f"{address} closed the connection")


def late(address: Broker, limit_s: float) -> BrokerTimeout:
    """Return the error for an overdue reply."""
    return BrokerTimeout(
        f"{address} did not answer within {limit_s:g} s "
        "(socket_timeout); whether the last command was carried out is unknown"
    )


class Stream:
    """An open connection that is logged in."""

    def __init__(self, connection: Dialled, client_id: int = 0) -> None:
        self.close = connection.close
        """Close the connection. In a child, the parent keeps it. May be repeated."""
        # A dropped stream closes; not at exit, because other exit hooks may still publish.
        finalize(self, connection.close).atexit = False
        self._sock: socket = connection.sock
        self._sock.settimeout(0.0)
        reader = hiredis.Reader()
        self._feed = reader.feed
        self.next_reply: Callable[[], Reply] = reader.gets
        """Return the next complete reply, or False if there is none."""
        # TLS may hold decrypted bytes, which no poll announces.
        self._pending: Callable[[], int] | None = getattr(self._sock, "pending", None)
        self.client_id = client_id
        """The server's id of the connection; 0 if it is unknown."""
        self.login = connection.login
        self.token = connection.token
        self.used = monotonic()
        self.unsent = bytearray()
        """The written bytes that the socket has not taken yet."""
        self.written = 0
        """The number of bytes written, including unsent ones."""
        self.scripts: set[str] = set()
        """Digests of the scripts sent as text here: the server has them, unless flushed."""
        self.sends_texts = False
        """Whether all scripts are sent as text: the server refuses EVALSHA."""
        self._reads_first = False  # whether TLS must read before it can write
        self._read = b""  # the last bytes
        self._part = 0  # the bytes of incomplete replies since the last progress
        self._readable = Readable(self._sock.fileno())

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._sock.fileno()

    def is_outdated(self) -> bool:
        """Whether its login has a newer token."""
        return self.login is not None and self.login.newest() is not self.token

    def renewal(self) -> bytes:
        """Return the packed login with the newest token. Keep it in no variable: errors show it."""
        self.token = () if self.login is None else self.login.newest()
        return pack(("AUTH", *self.token))

    # -- out

    def write(self, data: bytes | bytearray) -> None:
        """Write *data* as far as the socket takes it now; :meth:`flush` writes the rest."""
        size = len(data)
        self.written += size
        if self.unsent:
            self.unsent += data
            return
        try:
            sent = self._sock.send(data)
        except (BlockingIOError, SSLWantReadError, SSLWantWriteError):
            self.unsent += data
            return
        if sent != size:
            self.unsent += memoryview(data)[sent:]

    def flush(self) -> bool:
        """Write the rest, as far as the socket takes it now; return whether it took any."""
        sent, self._reads_first = 0, False
        try:
            sent = self._sock.send(self.unsent) if self.unsent else 0
        except SSLWantReadError:
            self._reads_first = True
        except (BlockingIOError, SSLWantWriteError):
            pass
        del self.unsent[:sent]
        return sent > 0

    # -- in

    def read(self) -> bool:
        """Take the arrived bytes; False if there are none. Raises EOFError if the peer closed."""
        data = b""
        try:
            data = self._sock.recv(READ_SIZE)
            if not data:
                raise EOFError
            self._read = data
            self._feed(data)
            if self._pending is not None:
                while pending := self._pending():
                    self._feed(self._sock.recv(pending))
        except (BlockingIOError, SSLWantReadError, SSLWantWriteError):
            return bool(data)
        return True

    def progressed(self) -> bool:
        """Whether a fair part of a reply was read; after :meth:`read`. A reply may not trickle."""
        self._part += len(self._read)
        if self._part < _PART:
            return False
        self._part = 0
        return True

    def wait(self, timeout_s: float) -> None:
        """Wait up to *timeout_s* until it is readable, accepts the rest, or is interrupted."""
        if self.unsent and not self._reads_first:
            usable(self._sock.fileno(), timeout_s)
        else:
            self._readable.wait(timeout_s)

    def replies(
        self,
        count: int,
        limit_s: float,
        silent: Callable[[], None],
        ends_at: float = inf,
    ) -> list[Reply]:
        """Return the *count* replies to the written commands; writes the rest meanwhile.

        Raises TimeoutError after *limit_s* without progress (a reply, 4 KiB of one, or a write), or
        at *ends_at*. Calls *silent* after each second without a byte, and at the end; *silent* may
        raise.
        """
        replies: list[Reply] = []
        known = 0
        self.used = since = monotonic()
        left_s = limit_s if ends_at == inf else min(limit_s, ends_at - since)
        while True:
            if left_s > SILENCE_S:  # noqa: PLR1730 - min would be a call for each publish
                left_s = SILENCE_S
            if self.unsent:
                self.wait(left_s)
            else:
                self._readable.wait(left_s)
            # Read before the time is checked: the process may have been suspended. And before
            # writing: TLS may have to read first.
            if moved := self.read():
                while (reply := self.next_reply()) is not False:
                    replies.append(reply)
                if len(replies) >= count:
                    return replies
            sent = bool(self.unsent) and self.flush()
            now = monotonic()
            if sent or (moved and (len(replies) > known or self.progressed())):
                self.used = since = now
                known = len(replies)
            elif not moved:
                silent()
            left_s = min(since + limit_s, ends_at) - now
            if left_s <= 0:
                raise TimeoutError

    # -- the end

    def interrupt(self) -> None:
        """End the wait of the thread that uses it, which then finds the connection closed."""
        with suppress(OSError, ValueError):
            self._sock.shutdown(SHUT_RDWR)
