"""Failback rounds: detect the primary broker's return, and fetch messages from other brokers.

Each process has one thread, only while it is needed. It probes the primary while a transport uses
another broker. While consumers use the primary, it moves waiting messages there from the others.
Every process with a spool in its list forwards it. The thread stops while the process forks.
"""

from __future__ import annotations

import weakref
from itertools import chain
from time import monotonic
from typing import TYPE_CHECKING

from .. import spool, transports
from ..errors import BrokerUnavailable, ReliqError, logger
from ..failover.brokers import BROKERS, JITTER, without_password
from ..forks import OwnLock, Part, register
from ..loops import Loop
from ..message.queue_arguments import is_durable
from ..message.queue_names import queue_of
from ..routing.partitions import names_of
from ..transfer.numbered import move_queue
from ..values.protocol import Attempt
from ..values.values import ignore_result

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..loops import Run
    from ..values.protocol import Store
    from .failback import Failback


_SWEPT_EVERY_S = 30.0
# Checking a spool is a local read.
_FORWARDED_EVERY_S = 5.0
# How long to wait for one of several nodes before its queues are left for the next round.
_NODE_PATIENCE_S = 1.0


class FailbackRounds:
    """The failback thread, and the transports that it serves."""

    _lock = OwnLock()
    """Guards the transports, and the end of the loop without any."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget all transports: a child does not serve those of its parent."""
        self._transports: weakref.WeakSet[Failback] = weakref.WeakSet()
        self._loop = Loop("reliq-failback", self._rounds, self._is_driven)
        self._swept: dict[str, float] = {}
        self._forwarded: dict[str, float] = {}
        self._next: dict[str, float] = {}
        # For each visited broker, the consumers without a connection at the last visit.
        self._gone: dict[str, dict[str, str]] = {}

    def watch(self, transport: Failback) -> None:
        """Serve *transport* until :meth:`leave`, or until it is collected."""
        with self._lock:
            self._transports.add(transport)
            self._loop.start()

    def leave(self, transport: Failback) -> None:
        """Stop serving *transport*."""
        with self._lock:
            self._transports.discard(transport)

    def _is_driven(self) -> bool:
        """Whether event loops drive all transports, and :meth:`go_on` starts the thread.

        The process may be a worker that forks, and Python would warn of a thread that exists
        directly after the fork.
        """
        with self._lock:
            transports = list(self._transports)
        return all(transport.is_driven for transport in transports)

    def go_on(self) -> None:
        """Start the thread again after a fork; transports call it regularly."""
        if (run := self._loop.run) is not None and run.paused:
            self._loop.resume()

    def _rounds(self, run: Run) -> Iterator[float]:
        while not run.over:
            yield self._pause_s()
            with self._lock:
                if not self._transports:
                    self._loop.stop()
                    return
                left = [weakref.ref(transport) for transport in self._transports]
            for each in left:
                transport = each()
                if transport is not None:
                    self._try_to_follow(transport)
                    del transport
                    yield 0.0  # a fork waits for one transport at most

    def _interrupted(self) -> bool:
        return self._loop.run is None or self._loop.run.interrupted

    def _try_to_follow(self, transport: Failback) -> None:
        try:
            self._follow(transport)
        except ReliqError as exc:
            logger.info("failback: %s", exc)
        except Exception:
            # Without this thread, the process would never fail back.
            logger.exception("failback: a duty failed; the thread continues")

    def _pause_s(self) -> float:
        with self._lock:
            intervals = [transport.probe_interval for transport in self._transports]
        return min(intervals, default=1.0) * JITTER.uniform(0.4, 0.5)

    def _follow(self, transport: Failback) -> None:
        primary = transport.url == transport.urls[0]
        answering = (url for url in transport.homes if self._answers(transport, url))
        # A publisher may have left because of one lost node: it returns only to a whole broker.
        home = next((url for url in answering if transport.consumed or BROKERS.is_whole(url)), None)
        if home is not None:
            transport.broker_answers(home)
        elif primary and transport.consumed:
            for url in transport.urls[1:]:
                if url == transport.spool or BROKERS.in_back_off(url):
                    continue
                if self._is_due(self._swept, url, _SWEPT_EVERY_S):
                    self._sweep(transport, url)
        if transport.spool:
            if self._is_due(self._forwarded, transport.url, _FORWARDED_EVERY_S):
                self.forward(transport)
        elif primary and not transport.consumed:
            self.leave(transport)

    def _answers(self, transport: Failback, url: str) -> bool:
        """Whether the broker at *url*, or one of its nodes, answers."""
        if self._is_due(self._next, url, transport.probe_interval * 0.9):
            try:
                BROKERS.ask(url)
                BROKERS.ask_whole(url)
            except ReliqError as exc:
                logger.debug("failback: %s", exc)
        return BROKERS.answered_within(url, transport.probe_interval * 2)

    @staticmethod
    def _is_due(last: dict[str, float], url: str, interval_s: float) -> bool:
        now = monotonic()
        if now - last.get(url, float("-inf")) < interval_s:
            return False
        last[url] = now
        return True

    def forward(self, transport: Failback) -> None:
        """Forward the spool of *transport* to each broker that answers."""
        journal = spool.JOURNALS.at(transport.spool)
        try:
            journal.holds  # noqa: B018 - raises an error if the file is unusable
        except ReliqError as exc:
            journal.report(exc)
            return
        for url in transport.urls[:-1]:
            if journal.holds and (url == transport.url or self._answers(transport, url)):
                with transport.temporary_connection(url) as broker:
                    transports.forward(journal, broker, self._interrupted)

    def came_back(self, url: str) -> None:
        """Sweep *url* soon, because a transport leaves it for the primary."""
        self._swept.pop(url, None)
        self._forwarded.clear()

    def _sweep(self, transport: Failback, url: str) -> None:
        """Move messages from *url* to the primary, in the queues that *transport* consumes."""
        try:
            BROKERS.ask(url)
        except ReliqError:
            self._swept.pop(url, None)  # its back-off sets the time of the next try
            return
        with transport.temporary_connection(url) as visited:
            there = visited.link.store
            # That broker may have no live consumer that ends leases and handles batches.
            visited.link.session.duties.visit(there, self._gone.setdefault(url, {}))
            for queue in chain(*(names_of(there, queue) for queue in transport.consumed)):
                status = there.reads.status(queue)
                if status is None or not is_durable(status.declared):
                    continue
                if status.ready + status.delayed + status.unacked + status.dead:
                    # Return messages of dead consumers; no consumer may be left there to do it.
                    there.post_restore(queue, visited.link.session.lease_ms, ignore_result)
                    there.wait_for_replies()
                    with transport.temporary_connection(transport.urls[0]) as primary:
                        self._move_home(there, primary.link.store, queue, url)
                    if self._interrupted():
                        break

    def _move_home(self, there: Store, primary: Store, queue: str, url: str) -> None:
        if primary.has_nodes:
            with Attempt(primary, _NODE_PATIENCE_S) as attempt:
                primary.layout(queue_of(queue))
            if attempt.lost:
                return  # continue with the other queues
        try:
            self._move_queue(there, primary, queue, url)
        except BrokerUnavailable:
            raise
        except ReliqError as exc:  # only this queue; continue with the others
            logger.warning("failback: %s", exc)

    def _move_queue(self, there: Store, primary: Store, queue: str, url: str) -> None:
        count = 0
        for step in move_queue(there, primary, queue):
            count += step
            if self._interrupted():  # the process forks; the next round continues
                self.came_back(url)
                break
        if count:
            logger.warning(
                "moved %d messages of %r from %s to the primary broker",
                count,
                queue,
                without_password(url),
            )


FAILBACK = FailbackRounds()
register(Part("failback", forget=FAILBACK.forget))
