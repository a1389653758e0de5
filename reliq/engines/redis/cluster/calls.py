"""Calls over a cluster: the thread that waits sends them again while their slot is not served."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from ....errors import BrokerTimeout, BrokerUnavailable, ReliqError, again
from .posts import lengthen

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..scripts import Script
    from ..stream import Command, Stream
    from ..wire import Wire
    from .nodes import Nodes
    from .requests import Request, Unserved

# A node that has not answered a call for so long is away, until it answers.
_SILENT_S = 0.9


class _Patience(threading.local):
    """Until when each thread waits for a node at most (monotonic clock)."""

    ends_at = inf


class ClusterCalls:
    """The calls of one client, in one process. A call waits for one node only."""

    def __init__(self, nodes: Nodes, unserved: Unserved) -> None:
        self._nodes = nodes
        self._unserved = unserved
        self._patience = _Patience()

    @property
    def patience_ends_at(self) -> float:
        """When this thread waits no longer for a node."""
        return self._patience.ends_at

    @contextmanager
    def patience(self, seconds: float) -> Iterator[None]:
        """Let this thread wait no longer than that for a node: it gets a BrokerTimeout then."""
        before = self._patience.ends_at
        self._patience.ends_at = min(before, monotonic() + seconds)
        try:
            yield
        finally:
            self._patience.ends_at = before

    def finish(self, requests: Sequence[Request]) -> None:
        """Have all of them answered; the loss of a node is a reply, too."""
        left = requests
        while True:
            self._call(left)
            left = [one for one in left if not one.finished and not self._is_late(one)]
            if not left:
                return
            if not all(request.at_once for request in left):
                time.sleep(max(map(lengthen, left)))
            if monotonic() >= self._patience.ends_at:
                for request in left:
                    error = self._impatience(request)
                    error.unsent = True
                    request.finish(error)
                return

    def _impatience(self, request: Request) -> BrokerTimeout:
        return BrokerTimeout(
            f"{self._unserved.address}: nobody waits longer for slot {request.slot}: {request.told}"
        )

    def _is_late(self, request: Request) -> bool:
        error = self._unserved.lateness(request)
        if error is not None:
            request.finish(error)
        return error is not None

    def _call(self, requests: Sequence[Request]) -> None:
        """Send them, all for one node at once, and wait for their replies."""
        by_wire: dict[Wire, list[Request]] = {}
        for request in requests:
            wire = self._wire_for(request)
            if wire is not None:
                by_wire.setdefault(wire, []).append(request)
        begun: list[tuple[Wire, list[Request], Stream]] = []
        try:
            for wire, mine in by_wire.items():
                try:
                    begun.append((wire, mine, wire.calls.begin(_asked(mine))))
                except BrokerUnavailable as exc:  # noqa: PERF203 - one of few
                    self._nodes.unreachable(wire, exc)
                    for request in mine:
                        self._unserved.not_sent(request, str(exc))
            while begun:
                self._end(*begun.pop())
        finally:
            for _, _, stream in begun:
                stream.close()

    def _wire_for(self, request: Request) -> Wire | None:
        place = self._unserved.address.slots.place_of(request.slot)
        if (wire := self._nodes.open(place)) is not None:
            return wire
        why = f"{place} is being connected to"
        try:
            if place is not None and self._patience.ends_at == inf:
                return self._nodes.connect(place)
            if place is not None:  # may take longer than this thread waits
                self._nodes.connect_soon(place)
        except BrokerUnavailable as exc:
            why = str(exc)
        self._unserved.not_sent(request, why)
        return None

    def _end(self, wire: Wire, requests: Sequence[Request], stream: Stream) -> None:
        patience_s = max(request.patience_s for request in requests)
        began = monotonic()
        try:
            ends_at = self._patience.ends_at
            replies = wire.calls.end(stream, _asked(requests), patience_s, ends_at)
        except BrokerUnavailable as exc:
            lost = not wire.alive
            for request in requests:  # where an earlier try has said why, that says more
                known = request.why and not lost
                request.finish(self._impatience(request) if known else again(exc))
            # Also where only the patience of this thread was at an end.
            if isinstance(exc, BrokerTimeout) and (lost or monotonic() - began > _SILENT_S):
                self._nodes.silent(wire)
            if lost:
                self._unserved.doubt()
            return
        for request, reply in zip(requests, replies, strict=True):
            if not (
                isinstance(reply, ReliqError) and self._unserved.redirected(request, wire, reply)
            ):
                request.finish(reply, wire)


def _asked(requests: Sequence[Request]) -> list[tuple[Command, Script | None]]:
    return [(request.command, request.script) for request in requests]
