"""The background loop: a daemon thread that does a session's duties, and its pauses.

It has a connection of its own. Where the process forks children, which should have no
threads, a timer of the event loop does the same duties instead.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from ..errors import ReliqError, logger
from ..failover.brokers import JITTER
from ..forks import OwnLock, under_way
from ..store.protocol import NODE_PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from weakref import WeakSet

    from ..options import Options
    from ..store.protocol import Store
    from .duties import BackgroundDuties
    from .leases import Leases
    from .outbox import Outbox
    from .registration import AttachedTransport


@dataclass(eq=False)
class BackgroundLoop:
    """The thread of one session."""

    _options: Options
    _duties: BackgroundDuties
    _leases: Leases
    _outbox: Outbox
    _transports: WeakSet[AttachedTransport]
    _open_store: Callable[[], Store]
    _ticked: Callable[[], None]
    """Called after each tick: it may be the last."""

    _thread_lock = OwnLock()

    def __post_init__(self) -> None:
        """Have no thread."""
        options, period_s = self._options, self._leases.period_s
        # While the broker is away. Others must see us again before they take us for dead.
        self._longest_pause_s = max(
            period_s, min(2.0, options.orphan_grace / 2, options.visibility_timeout / 6)
        )
        self._thread: threading.Thread | None = None
        self._rest = _Rest()
        # A lease that is shorter than what a pause was made for ends it.
        self._leases.on_shorter = lambda: self._rest.cut()  # noqa: PLW0108 - it changes
        self._paused: threading.Thread | None = None
        # What a thread leaves to the one after a fork.
        self._left_store: Store | None = None
        self._next_tick = 0.0
        self._failures = 0

    @property
    def threaded(self) -> bool:
        """Whether the thread is the driver now, or will be after the fork that is under way."""
        return self._thread is not None

    def start(self) -> None:
        """Start the thread unless it runs; where the process forks, after that."""
        with self._thread_lock:
            if self._thread is None:
                self._next_tick = monotonic() + self._leases.period_s
                self._rest = _Rest()
                self._thread = self._new_thread()
                if under_way():
                    self._rest.pause()
                    self._paused = self._thread
                else:
                    self._thread.start()

    def _new_thread(self) -> threading.Thread:
        given = (self._rest,)
        return threading.Thread(target=self._run, args=given, name="reliq-background", daemon=True)

    def stop(self) -> None:
        """Stop the thread and wait until it is gone."""
        with self._thread_lock:
            thread, self._thread = self._thread, None
            self._paused = None
            self._rest.end()
        _join(thread)
        with self._thread_lock:
            store, self._left_store = self._left_store, None
        if store is not None:
            store.close()

    def pause(self) -> None:
        """Have the thread end, for a fork; :meth:`resume` goes on where it was."""
        with self._thread_lock:
            if self._thread is not None:
                self._rest.pause()
                self._paused = self._thread

    def wait_paused(self) -> None:
        """Wait until no thread runs. A tick that is due is done first: forks may be frequent."""
        _join(self._paused)

    def resume(self) -> None:
        """Start a thread again after a fork; a tick that is due by now it does at once."""
        with self._thread_lock:
            paused, self._paused = self._paused, None
            if paused is None:
                return
            if paused is threading.current_thread():  # it forks itself, and runs on
                self._rest.paused = False
                return
            self._rest = _Rest()
            self._thread = self._new_thread()
            self._thread.start()

    def _run(self, rest: _Rest) -> None:
        with self._thread_lock:
            left, self._left_store = self._left_store, None
        store = left or self._open_store()
        while rest.wait(self._next_tick - monotonic()):
            store = self._turn(store, rest)
            # What a pass has left behind goes on at once, after a tick; a fork waits for neither.
            goes_on = store.waiting and not (self._failures or rest.interrupted)
            self._next_tick = monotonic() + (0.0 if goes_on else self._pause(self._failures))
            self._ticked()
        if rest.paused:
            self._left_store = store
        else:
            store.close()

    def _turn(self, store: Store, rest: _Rest) -> Store:
        """Do what is due, and wait for it; return the connection for the next time."""
        until = monotonic() + self._leases.period_s
        try:
            for transport in list(self._transports):
                transport.read_replies()
            if not store.alive:
                store.connect()
                if not store.has_nodes:  # of several, one that is away must not be waited for
                    store.require_writable()  # a replica takes the login too
            if not self._outbox.trusts(store):
                store.close()  # perhaps to a server that was replaced
                return self._open_store()
            # It reads its own replies, so what it has no answer to is really late.
            self._duties.tick(store, unanswered_s=self._leases.period_s)
            store.wait_for_replies(NODE_PATIENCE_S if store.has_nodes else inf)
            self._duties.do_all_later(store, renews=True)
            while store.waiting and not rest.interrupted and monotonic() < until:
                store.wait_for_replies(NODE_PATIENCE_S)  # the next step of a pass
                self._duties.do_all_later(store, renews=True)
            self._failures = 0
        except ReliqError as exc:
            if not self._failures:
                logger.warning("background loop: %s; it goes on when the broker answers", exc)
            self._failures += 1
        except Exception:
            # Not around a message: a background loop that dies of a mistake would end
            # the renewal of every lease of this process without a word.
            logger.exception("background loop: a duty failed; it goes on")
        return store

    def _pause(self, failures: int) -> float:
        """Return how long to wait for the next tick: longer, and not as long as others, if down."""
        period_s = self._leases.period_s
        if not failures:
            return period_s
        longest = min(period_s * 2.0 ** min(failures, 8), self._longest_pause_s)
        return longest * JITTER.uniform(0.5, 1.0)


class _Rest:
    """The pauses of one thread between its ticks."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._over = False
        self.paused = False

    @property
    def interrupted(self) -> bool:
        """Whether the thread is to end, for good or for a fork."""
        return self._over or self.paused

    def wait(self, seconds: float) -> bool:
        """Wait so long at most; False when the thread is to end.

        Where the next tick is due, *seconds* are 0 or less: it is done before the process
        forks. Else forks that follow each other sooner than ticks would end them all.
        """
        if seconds <= 0:
            return not self._over
        self._event.wait(seconds)
        self._event.clear()
        return not self.interrupted

    def cut(self) -> None:
        self._event.set()

    def end(self) -> None:
        self._over, self.paused = True, False
        self._event.set()

    def pause(self) -> None:
        """End the thread for a fork: another one goes on."""
        self.paused = True
        self._event.set()


def _join(thread: threading.Thread | None) -> None:
    # One that was wanted while the process forks was never started.
    if thread is None or thread.ident is None or thread is threading.current_thread():
        return
    thread.join()
