"""Nodes: the connections to the nodes of a cluster, each opened at its first use.

A caller that may wait connects in its own thread. For other callers, a separate thread for each
node connects, so an unresponsive node delays no caller that waits for another node. After a
failure, a node is not retried at once.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import BrokerUnavailable, ConfigurationError, ReliqError, again, logger
from ...forks import OwnLock
from ..connect import LOGIN_REFUSED
from ..wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...options import Options
    from ..stream import Reply
    from .slots import Place, SlotMap

_SHORTEST_S, _LONGEST_S = 0.05, 1.0
# A node that needs longer for an answer counts as down, so that the others can be served.
PATIENCE_S = 1.0


class _Failure(NamedTuple):
    """A failed connection to a node, and the time of the next try."""

    error: ReliqError
    pause_s: float
    until: float


class Nodes:
    """The connections of one client to a cluster, in one process."""

    _lock = OwnLock()
    """Guards the state. No thread waits while it holds the lock. Of nested connections to a node,
    the first is kept."""

    def __init__(
        self,
        slots: SlotMap,
        options: Options,
        name: str,
        changed: Callable[[], None],
        silent: Callable[[Place], None],
    ) -> None:
        """Connect as *name*. *changed* is called when a connection was opened or has failed.

        *silent* is called after each second without a byte from the node of a call.
        """
        self._slots = slots
        self._options = replace(
            options,
            socket_connect_timeout=min(options.socket_connect_timeout, PATIENCE_S),
            # A health check of an idle connection would wait for one node while others have work.
            health_check_interval=inf,
        )
        self._name = name
        self._changed = changed
        self._silent = silent
        self._wires: dict[Place, Wire] = {}
        self._failures: dict[Place, _Failure] = {}
        self._jobs: dict[Place | None, deque[Callable[[], None]]] = {}
        self._closed = False
        self.left_alone_s = 0.0
        """The minimum pause before an unreachable node is retried."""
        self._dials_before = 0

    def all(self) -> list[tuple[Place, Wire]]:
        """Return all connections, including failed ones."""
        return list(self._wires.items())

    @property
    def dials(self) -> int:
        """The number of connections opened so far, including failed ones."""
        return self._dials_before + sum(wire.dials for _, wire in self.all())

    def open(self, place: Place | None) -> Wire | None:
        """Return the connection to a node; None if there is none."""
        wire = None if place is None else self._wires.get(place)
        return wire if wire is not None and wire.alive else None

    def connect(self, place: Place) -> Wire:
        """Return the connection to a node; open it if necessary. Raises BrokerUnavailable."""
        wire = self.open(place)
        if wire is not None:
            return wire
        self.require_reachable(place)
        wire = Wire(self._slots.address(place), self._options, self._name)
        wire.calls.silent = partial(self._silent, place)
        try:
            wire.connect()
        except ReliqError as exc:
            error = again(exc) if place in self._slots.reached else _for_announced(exc)
            self.failed(place, error)
            raise _unavailable(error) from exc
        self._slots.reached.add(place)
        wire.disable_reconnect()  # after a failure, a caller that may wait opens a new one
        with self._lock:
            self._failures.pop(place, None)
            self._slots.unreachable.discard(place)
            there = self.open(place)
            if there is None and not self._closed:
                self._forget(place)
                there = self._wires.setdefault(place, wire)
        if there is not wire:
            wire.close()
        if there is None:
            raise BrokerUnavailable(f"{wire.address}: this connection was closed")
        self._changed()
        return there

    def each_master(self) -> Iterator[tuple[Place, Wire | ReliqError]]:
        """Yield each node with slots, and the connections to it or the error."""
        for place in sorted(self._slots.masters):
            outcome: Wire | ReliqError
            try:
                outcome = self.connect(place)
            except ReliqError as exc:
                outcome = again(exc)
            yield place, outcome

    def ask_each(self, *command: Any) -> Iterator[tuple[Place, Wire | None, Reply]]:
        """Yield each master with its wire, if any, and its reply or error, within a second each."""
        for place, wire in self.each_master():
            if isinstance(wire, ReliqError):
                yield place, None, wire
                continue
            reply: Reply
            try:
                reply = wire.ask(command, PATIENCE_S)
            except ReliqError as exc:
                reply = again(exc)
            yield place, wire, reply

    def reach_any(self, but_for: Place | None) -> bool:
        """Whether a node with slots can be reached; *but_for* is not tried."""
        for place in sorted(self._slots.masters - {but_for}):
            with suppress(ReliqError):
                self.connect(place)
                return True
        return False

    def _forget(self, place: Place) -> None:
        wire = self._wires.pop(place, None)
        if wire is not None:
            self._dials_before += wire.dials

    def require_reachable(self, place: Place) -> None:
        """Raise BrokerUnavailable if the node has failed and its pause has not ended."""
        failure = self._failures.get(place)
        if failure is not None and monotonic() < failure.until:
            raise _unavailable(again(failure.error))

    def failure(self, place: Place) -> str:
        """Return the error of the last try to reach a node; "" if it succeeded."""
        failure = self._failures.get(place)
        return "" if failure is None else str(failure.error)

    def failed(self, place: Place, error: ReliqError) -> None:
        """Record that a node could not be reached; each failure doubles the pause until a retry."""
        with self._lock:
            before = self._failures.get(place)
            pause_s = _SHORTEST_S if before is None else min(before.pause_s * 2, _LONGEST_S)
            pause_s = max(pause_s, self.left_alone_s)
            self._failures[place] = _Failure(error, pause_s, monotonic() + pause_s)
            self._slots.unreachable.add(place)

    def unreachable(self, wire: Wire, error: ReliqError) -> None:
        """Drop a connection whose node accepts no new one."""
        for place, known in self.all():
            if known is wire:
                self.failed(place, again(error))
                self.drop(place, wire, again(error))

    def silent(self, wire: Wire) -> None:
        """Record that the node of *wire* did not answer in time: unreachable until it answers."""
        for place, known in self.all():
            if known is wire:
                self._slots.unreachable.add(place)

    def drop(self, place: Place, wire: Wire, error: ReliqError) -> None:
        """Drop a connection; *error* becomes the reply to its unanswered commands."""
        with self._lock:
            if self._wires.get(place) is wire:
                self._forget(place)
        wire.hang_up(error)

    def close(self) -> None:
        """Close all connections, including those that are being opened."""
        with self._lock:
            self._closed = True
            wires, self._wires = self._wires, {}
            self._jobs.clear()
        for wire in wires.values():
            wire.close()

    # -- in another thread

    def connect_soon(self, place: Place) -> None:
        """Open the connection for posts in another thread, unless one is already doing so.

        Raises BrokerUnavailable if the node has failed and its pause has not ended.
        """
        self.require_reachable(place)
        if not self._jobs.get(place):
            self.do_soon(place, partial(self._try, place))

    def _try(self, place: Place) -> None:
        try:
            self.connect(place).connect_to_post()
        except ReliqError as exc:
            logger.debug("%s", exc)
        self._changed()

    def check_soon(self, place: Place) -> None:
        """Check in another thread whether an unreachable node answers, unless one already does."""
        failure = self._failures.get(place)
        if not self._jobs.get(place) and (failure is None or monotonic() >= failure.until):
            self.do_soon(place, partial(self._check, place))

    def _check(self, place: Place) -> None:
        try:
            self.connect(place).ask(("PING",), PATIENCE_S)  # an existing one may be silent
        except BrokerUnavailable:
            self._changed()
        except ReliqError:
            pass  # a refusal is also an answer
        else:
            self._slots.unreachable.discard(place)

    def do_soon(self, place: Place | None, job: Callable[[], None]) -> None:
        """Run *job*, which waits for a node, in another thread, after other jobs for that node.

        None: any node; the job is skipped if another such job runs. Raises BrokerUnavailable if no
        thread can be started.
        """
        with self._lock:
            if self._closed:
                return
            first = deque([job])
            jobs = self._jobs.setdefault(place, first)
            if jobs is not first:
                if place is not None:
                    jobs.append(job)
                return
        try:
            thread = threading.Thread(
                target=self._run, args=(place,), name="reliq-dial", daemon=True
            )
            thread.start()
        except BaseException as exc:  # also an interrupt: a later call retries
            with self._lock:
                self._jobs.pop(place, None)
            if isinstance(exc, RuntimeError):
                raise BrokerUnavailable(f"{place or 'a node'} cannot be queried: {exc}") from exc
            raise

    def _run(self, place: Place | None) -> None:
        while True:
            with self._lock:
                jobs = self._jobs.get(place)
                if not jobs:
                    self._jobs.pop(place, None)
                    return
                job = jobs[0]
            try:
                job()
            except Exception:
                logger.exception("could not open a connection to %s", place)
            with self._lock:
                if jobs:
                    jobs.popleft()


def _unavailable(error: ReliqError) -> ReliqError:
    """Return *error* as a BrokerUnavailable: a retry may help, as only one node has failed.

    A ConfigurationError, such as an unknown stored format, concerns the whole cluster and stays.
    """
    if isinstance(error, (BrokerUnavailable, ConfigurationError)):
        return error
    unavailable = BrokerUnavailable(*error.args)
    unavailable.reply = error.reply
    return unavailable


def _for_announced(error: ReliqError) -> ReliqError:
    """Return *error* of a node announced by the cluster, with advice about its address."""
    if error.reply or LOGIN_REFUSED in str(error) or not isinstance(error, BrokerUnavailable):
        return error
    return type(error)(
        f"{error}; the cluster announces this address (cluster-announce-ip, "
        "cluster-announce-hostname): if it is unreachable from here, map it with the option "
        "address_map"
    )
