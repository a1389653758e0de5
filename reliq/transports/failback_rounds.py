"""Fail-back: the way to the primary broker, and what was left on the others.

One thread per process, only while it is needed: it asks the first broker while a
transport is on another one, and moves what waits on the others while consumers are at the
primary. A spool is forwarded by any process that has it in its list, publishers too. The thread
is stopped while the process forks, and goes on after it where it was.
"""

from __future__ import annotations

import threading
import weakref
from functools import partial
from itertools import chain
from time import monotonic
from typing import TYPE_CHECKING

from ..errors import BrokerUnavailable, ReliqError, logger
from ..failover.brokers import BROKERS, JITTER, without_password
from ..forks import OwnLock, Part, register, under_way
from ..message.queue_arguments import is_durable
from ..message.queue_names import queue_of
from ..routing.partitions import names_of
from ..store.protocol import goes_on
from ..store.values import ignore_result
from ..transfer.numbered import move_queue

if TYPE_CHECKING:
    from ..store.protocol import Store
    from .failback import Failback


_SWEPT_EVERY_S = 30.0
# A look into a spool is a local read.
_FORWARDED_EVERY_S = 5.0
# So long one of several nodes may take to answer before its queues are left for the next time.
_NODE_PATIENCE_S = 1.0


class FailbackRounds:
    """The thread, and who waits for what."""

    _lock = OwnLock()

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Look after nobody: in a child all of it is the parent's."""
        self._transports: weakref.WeakSet[Failback] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._stopped = False
        # Of the round that is under way: who is still to be looked after.
        self._rest: list[weakref.ref[Failback]] = []
        self._next_round = 0.0
        self._swept: dict[str, float] = {}
        self._forwarded: dict[str, float] = {}
        self._next: dict[str, float] = {}
        # Consumers of a visited broker that had no connection when it was visited last.
        self._gone: dict[str, dict[str, str]] = {}

    def watch(self, transport: Failback) -> None:
        """Look after *transport* until :meth:`leave`, or until it is collected."""
        with self._lock:
            self._transports.add(transport)
            self._start()

    def leave(self, transport: Failback) -> None:
        """Look after *transport* no longer."""
        with self._lock:
            self._transports.discard(transport)

    def _start(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        if under_way():
            self._stopped = True  # the process forks: see go_on
            return
        if not self._stopped:
            self._next_round = monotonic() + self._pause_s()
        self._stopped = False
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(self._stop,), name="reliq-failback", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Have no thread while the process forks."""
        with self._lock:
            thread = self._thread
            if thread is None or thread is threading.current_thread():
                return
            self._stopped = True
            self._stop.set()
        thread.join()  # without the lock: what it does may need it

    def start(self) -> None:
        """Start the thread again after a fork, where nobody else will do so soon.

        Else :meth:`go_on` does: in a process with an event loop, which may be a worker
        that forks, Python would warn of a thread that is there as soon as it has forked.
        """
        with self._lock:
            transports = list(self._transports)
        if self._stopped and not all(transport.is_driven for transport in transports):
            self.go_on()

    def go_on(self) -> None:
        """Start the thread again after a fork; transports call it now and then."""
        if self._stopped:
            with self._lock:
                if self._transports:
                    self._start()

    def _run(self, stop: threading.Event) -> None:
        while self._is_round_due(stop):
            if not self._rest:
                with self._lock:
                    if not self._transports:
                        self._thread = None
                        return
                    self._rest = [weakref.ref(transport) for transport in self._transports]
            while self._rest:
                transport = self._rest.pop()()
                if transport is not None:
                    self._try_to_look_after(transport)
                    del transport
                    # One at least: forks may follow each other sooner than rounds.
                    if stop.is_set():
                        return
            with self._lock:
                self._next_round = monotonic() + self._pause_s()

    def _is_round_due(self, stop: threading.Event) -> bool:
        """Wait for the next round; False when the process forks before it is due."""
        left = self._next_round - monotonic()
        return bool(self._rest) or left <= 0 or not stop.wait(left)

    def _try_to_look_after(self, transport: Failback) -> None:
        try:
            self._look_after(transport)
        except ReliqError as exc:
            logger.info("fail-back: %s", exc)
        except Exception:
            # Whatever it was: without this thread nobody would ever fail back.
            logger.exception("fail-back: a duty failed; it goes on")

    def _pause_s(self) -> float:
        intervals = [transport.probe_interval for transport in self._transports]
        return min(intervals, default=1.0) * JITTER.uniform(0.4, 0.5)

    def _look_after(self, transport: Failback) -> None:
        primary = transport.url == transport.urls[0]
        answering = (url for url in transport.homes if self._asked(transport, url))
        # A publisher has left it for the sake of one node, perhaps: it goes back to a whole one.
        home = next((url for url in answering if transport.consumed or BROKERS.is_whole(url)), None)
        if home is not None:
            transport.broker_answers(home)
        elif primary and transport.consumed:
            for url in transport.urls[1:]:
                if url != transport.spool and self._is_due(self._swept, url, _SWEPT_EVERY_S):
                    self._sweep(transport, url)
        if transport.spool:
            if self._is_due(self._forwarded, transport.url, _FORWARDED_EVERY_S):
                transport.forward(partial(self._asked, transport), self._stop.is_set)
        elif primary and not transport.consumed:
            self.leave(transport)

    def _asked(self, transport: Failback, url: str) -> bool:
        """Whether the broker at *url* answers, or one node of it."""
        if self._is_due(self._next, url, transport.probe_interval * 0.9):
            try:
                BROKERS.ask(url)
                BROKERS.ask_whole(url)
            except ReliqError as exc:
                logger.debug("fail-back: %s", exc)
        return BROKERS.answered_within(url, transport.probe_interval * 2)

    @staticmethod
    def _is_due(last: dict[str, float], url: str, interval_s: float) -> bool:
        now = monotonic()
        if now - last.get(url, float("-inf")) < interval_s:
            return False
        last[url] = now
        return True

    def came_back(self, url: str) -> None:
        """Sweep what is left at *url* soon: somebody leaves it for the primary."""
        self._swept.pop(url, None)
        self._forwarded.clear()

    def _sweep(self, transport: Failback, url: str) -> None:
        """Move to the primary what waits at *url* in the queues that *transport* consumes from."""
        if BROKERS.in_back_off(url):
            return
        try:
            BROKERS.ask(url)
        except ReliqError:
            return
        gone = self._gone.setdefault(url, {})
        with transport.temporary_connection(url, gone) as visited:
            there = visited.link.store
            for queue in chain(*(names_of(there, queue) for queue in transport.consumed)):
                status = there.reads.status(queue)
                if status is None or not is_durable(status.declared):
                    continue
                if status.ready + status.delayed + status.unacked + status.dead:
                    # Somebody must return what dead consumers of that broker held.
                    there.post_restore(queue, visited.link.session.lease_ms, ignore_result)
                    there.wait_for_replies()
                    with transport.temporary_connection(transport.urls[0]) as primary:
                        self._move_home(there, primary.link.store, queue, url)
                    if self._stop.is_set():
                        break

    def _move_home(self, there: Store, primary: Store, queue: str, url: str) -> None:
        if primary.has_nodes:
            try:
                with primary.patience(_NODE_PATIENCE_S):
                    primary.layout(queue_of(queue))
            except BrokerUnavailable:
                if not goes_on(primary):
                    raise
                return  # its node is away: the other queues go on
        try:
            self._move_queue(there, primary, queue, url)
        except BrokerUnavailable:
            raise
        except ReliqError as exc:  # of this queue: the others go on
            logger.warning("fail-back: %s", exc)

    def _move_queue(self, there: Store, primary: Store, queue: str, url: str) -> None:
        count = 0
        for step in move_queue(there, primary, queue):
            count += step
            if self._stop.is_set():  # the process forks; the next round goes on
                self.came_back(url)
                break
        if count:
            logger.warning(
                "moved %d messages of %r from %s, where they were left, to the primary broker",
                count,
                queue,
                without_password(url),
            )


FAILBACK = FailbackRounds()
register(Part("fail-back", stop=FAILBACK.stop, start=FAILBACK.start, forget=FAILBACK.forget))
