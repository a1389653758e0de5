"""What the parts of the SQLite store share: its connection, its transactions, posted results.

A posted step is done at once; its result waits until it is asked for, so that a callback
never runs inside the call that posted.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import AbstractContextManager, nullcontext, suppress
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from ...errors import BrokerUnavailable, ReliqError, again
from ...forks import here
from . import presence
from .connection import Connection
from .disk_reserve import SIZE
from .joint import Joint
from .location import full
from .notifier import SqliteNotifier
from .transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...options import Options
    from ...store.protocol import OnResult
    from .location import Location

T = TypeVar("T")

_STAY_EVERY_S = 1.0


class StoreBase:
    """A store's connection to one file."""

    def __init__(
        self, where: Location, options: Options, consumer: str, create: bool = True
    ) -> None:
        self.consumer = consumer
        self.broker = str(where)
        self.where = where
        self.options = options
        self._prefix = options.global_keyprefix
        self._connection = Connection(where, options, create)
        self._transaction = Transaction(self._connection, self._prefix)
        self._reading = Transaction(self._connection, self._prefix, reading=True)
        self._notifier = SqliteNotifier(self._connection, self._prefix)
        self._joint = Joint.of(where.path, self._prefix, options.synchronous)
        # Queue and publisher: whose numbers this connection has stored.
        self._numbered: set[tuple[str, str]] = set()
        self._began = monotonic()
        self.keeps_long = False
        self._results: deque[tuple[OnResult[Any], Any]] = deque()
        self._posting = False
        self._process = here()
        self._pipe: tuple[int, int] | None = None
        self._presence = ""
        self._stay_at = 0.0
        self.partitions: dict[str, int] = {}
        self._delivery_limit = options.delivery_limit or 0
        backoff = options.redelivery_backoff or (0.0, 0.0)
        self._backoff_ms = tuple(int(seconds * 1000) for seconds in backoff)
        self._dead_letter_ttl_ms = int(options.dead_letter_ttl * 1000)

    # -- transactions

    def write(self) -> Transaction:
        """Return a transaction that may write, for ``with``; all or nothing of it is stored."""
        if self._results and not self._posting:
            self.receive()
        return self._transaction

    def read(self) -> Transaction:
        """Return a transaction that only reads, at one instant."""
        if self._results and not self._posting:
            self.receive()
        return self._reading

    def post(self, do: Callable[[], T], on_result: OnResult[T]) -> None:
        """Do a step now; *on_result* gets its result, or its error, when it is asked for."""
        result: T | ReliqError
        with self._connection.lock:
            if self._process != here():
                self._leave_parent()
            posting, self._posting = self._posting, True
            try:
                result = do()
            except ReliqError as exc:
                if isinstance(exc, BrokerUnavailable) and not self.alive:
                    raise
                result = again(exc)
            finally:
                self._posting = posting
            self._results.append((on_result, result))
            if len(self._results) == 1 and self._pipe is not None:
                with suppress(OSError):
                    os.write(self._pipe[1], b"\0")

    def receive(self) -> None:
        """Hand out the results of what was posted before, without waiting."""
        with self._connection.lock:
            self._hand_out(len(self._results))

    def wait_for_replies(self, timeout_s: float = inf) -> None:
        """Hand out the results of all that was posted, also while they are handed out."""
        del timeout_s  # they are all here
        with self._connection.lock:
            while self._results:
                self._hand_out(len(self._results))

    def _hand_out(self, most: int) -> None:
        if self._process != here():
            self._leave_parent()
        try:
            while most > 0 and self._results:
                most -= 1
                on_result, result = self._results.popleft()
                on_result(result)
        finally:
            if not self._results and self._pipe is not None:
                with suppress(OSError):
                    os.read(self._pipe[0], 4096)

    def _leave_parent(self) -> None:
        self._process = here()
        self._results.clear()
        self._presence = ""
        self._close_pipe()

    # -- the connection

    @property
    def notifier(self) -> SqliteNotifier:
        """The FIFO on which a consumer waits."""
        return self._notifier

    def end_wait(self) -> None:
        """End the notifier's wait, so that it can begin anew for other queues."""
        if self._notifier.listening:
            self._notifier.end_wait()

    @property
    def epoch(self) -> int:
        """How often the file was opened."""
        return self._connection.opened

    @property
    def registered_by(self) -> object:
        """The connection by which the register knows this store."""
        return self._connection.opened

    @property
    def connected_at(self) -> float:
        """When the file was opened (monotonic clock)."""
        return self._connection.connected_at

    @property
    def alive(self) -> bool:
        """Whether the file is open and has not failed."""
        return self._connection.alive

    def make_room(self) -> None:
        """Have room to write where the disk is full: at the cost of the reserve."""
        self._connection.make_room()

    def require_room(self) -> None:
        """Raise BrokerRefused where the disk is full: only what makes room may go on.

        The file never shrinks: what was consumed left room inside, which will do as well.
        """
        if not self._connection.reserve.keep() and self._connection.free_bytes() < SIZE:
            raise full(self.where)

    def connect(self) -> None:
        """Open the file unless it is open; raises ConfigurationError, BrokerUnavailable."""
        self._connection.require()

    def require_writable(self) -> None:
        """Raise BrokerUnavailable unless the file can be opened; it has no replicas."""
        self._connection.require()

    def close(self) -> None:
        """Close the file for good; what was posted gets a BrokerUnavailable."""
        self._notifier.close()
        if self._presence and self._process == here():
            presence.leave(self.where, self._presence)
            self._presence = ""
        self._connection.close()
        error = BrokerUnavailable(f"{self.where}: the connection is closed")
        with self._connection.lock:
            self._results = deque((on_result, error) for on_result, _ in self._results)
            self.wait_for_replies()
            self._close_pipe()

    has_nodes = False
    has_partitions = False

    def is_away(self, queue: str) -> bool:
        """Mean nothing: there are no nodes."""
        del queue
        return False

    def node_of(self, queue: str) -> str:
        """Return the name of the broker: there is one file."""
        del queue
        return self.broker

    def patience(self, seconds: float) -> AbstractContextManager[None]:
        """Mean nothing: there are no nodes."""
        del seconds
        return nullcontext()

    def descriptors(self) -> Mapping[int, object]:
        """Return the descriptor that is readable while results wait to be handed out."""
        with self._connection.lock:
            if self._process != here():
                self._leave_parent()
            if self._pipe is None:
                self._pipe = os.pipe()
                for fd in self._pipe:
                    os.set_blocking(fd, False)
                if self._results:
                    os.write(self._pipe[1], b"\0")
            return {self._pipe[0]: self}

    def _close_pipe(self) -> None:
        pipe, self._pipe = self._pipe, None
        for fd in pipe or ():
            with suppress(OSError):
                os.close(fd)

    def __del__(self) -> None:
        """Give the pipe back where nobody closed the store."""
        self._close_pipe()

    def disable_reconnect(self) -> None:
        """Never open the file anew: an event loop watches our descriptor."""
        self._connection.disable_reconnect()

    def check(self) -> None:
        """Stay present: the lock by which we are known to live is made anew where it was removed.

        Each tick asks, so well within what others give us. No result is ever overdue.
        """
        now = monotonic()
        if self._presence and now >= self._stay_at:
            self._stay_at = now + min(_STAY_EVERY_S, self.options.orphan_grace / 3)
            presence.stay(self.where, self._presence)

    @property
    def waiting(self) -> bool:
        """Whether a result waits to be handed out."""
        return bool(self._results)

    def probe(self, *, whole: bool = False) -> None:
        """Raise ReliqError unless the file can be written now. Nothing is."""
        del whole
        with self.write():
            pass

    def server(self) -> tuple[str, str]:
        """Return (the name under which this connection is present, the name of the file).

        From the first call on others can tell whether this process lives.
        """
        if self._process != here():
            self._leave_parent()
        if not self._presence:
            name = f"{os.getpid()}-{os.urandom(6).hex()}"
            presence.hold(self.where, name)
            presence.sweep(self.where)
            self._presence = name
        return self._presence, self.where.path
