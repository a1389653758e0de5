"""Calls over a cluster: the calling thread resends a call while its slot is not served."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from ...errors import BrokerTimeout, BrokerUnavailable, ReliqError, again
from .posts import lengthen

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...lua.scripts import Script
    from ..stream import Command, Stream
    from ..wire import Wire
    from .nodes import Nodes
    from .requests import Request, Unserved

# A node that has not answered a call for this time counts as unreachable until it answers.
_SILENT_S = 0.9


class _Patience(threading.local):
    """The latest time until which each thread waits for a node (monotonic clock)."""

    ends_at = inf


class ClusterCalls:
    """The calls of one client in one process. A call waits for one node only."""

    def __init__(self, nodes: Nodes, unserved: Unserved) -> None:
        self._nodes = nodes
        self._unserved = unserved
        self._patience = _Patience()

    @property
    def patience_ends_at(self) -> float:
        """When this thread stops waiting for a node."""
        return self._patience.ends_at

    @contextmanager
    def patience(self, seconds: float) -> Iterator[None]:
        """Limit the waits of this thread for a node; a longer wait ends with a BrokerTimeout."""
        before = self._patience.ends_at
        self._patience.ends_at = min(before, monotonic() + seconds)
        try:
            yield
        finally:
            self._patience.ends_at = before

    def finish(self, requests: Sequence[Request]) -> None:
        """Send *requests* until each has a reply; the loss of a node is also a reply."""
        left = requests
        while True:
            self._call(left)
            left = [item for item in left if not item.finished and not self._is_late(item)]
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
            f"{self._unserved.address}: no longer waiting for slot {request.slot}: {request.cause}"
        )

    def _is_late(self, request: Request) -> bool:
        error = self._unserved.lateness(request)
        if error is not None:
            request.finish(error)
        return error is not None

    def _call(self, requests: Sequence[Request]) -> None:
        """Send *requests*, together for each node, and wait for their replies."""
        by_wire: dict[Wire, list[Request]] = {}
        for request in requests:
            wire = self._wire_for(request)
            if wire is not None:
                by_wire.setdefault(wire, []).append(request)
        begun: list[tuple[Wire, list[Request], Stream]] = []
        try:
            for wire, mine in by_wire.items():
                try:
                    begun.append((wire, mine, wire.calls.begin(_commands(mine))))
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
            if place is not None:  # connecting may take longer than this thread waits
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
            replies = wire.calls.end(stream, _commands(requests), patience_s, ends_at)
        except BrokerUnavailable as exc:
            lost = not wire.alive
            for request in requests:  # the reason of an earlier try is more informative
                known = request.why and not lost
                request.finish(self._impatience(request) if known else again(exc))
            # also if only the patience of this thread has ended
            if isinstance(exc, BrokerTimeout) and (lost or monotonic() - began > _SILENT_S):
                self._nodes.silent(wire)
            if lost:
                self._unserved.doubt()
            return
        for request, reply in zip(requests, replies, strict=True):
            if not (
                isinstance(reply, ReliqError) and self._unserved.redirected(request, wire, reply)
            ):
                request.finish(reply)


def _commands(requests: Sequence[Request]) -> list[tuple[Command, Script | None]]:
    return [(request.command, request.script) for request in requests]
