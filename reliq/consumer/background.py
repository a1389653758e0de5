"""The background loop: a daemon thread that does the duties of a session at intervals.

It has its own connection. In a process that forks children, which should have no threads, a
timer of the event loop does the same duties instead.
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
    """The background thread of one session."""

    _options: Options
    _duties: BackgroundDuties
    _leases: Leases
    _outbox: Outbox
    _transports: WeakSet[AttachedTransport]
    _open_store: Callable[[], Store]
    _ticked: Callable[[], None]
    """Called after each tick, which may be the last."""

    _thread_lock = OwnLock()
    """Guards the thread and its end. A nested start finds the thread that is being started."""

    def __post_init__(self) -> None:
        """Start without a thread."""
        options, period_s = self._options, self._leases.period_s
        # While the broker is unreachable: reconnect before other consumers take this one for dead.
        self._longest_pause_s = max(
            period_s, min(2.0, options.orphan_grace / 2, options.visibility_timeout / 6)
        )
        self._thread: threading.Thread | None = None
        self._rest = _Rest()
        # A new lease that is shorter than the pause allows for ends the pause.
        self._leases.on_shorter = lambda: self._rest.cut()  # noqa: PLW0108 - it changes
        self._paused: threading.Thread | None = None
        # The connection that a thread leaves to its successor after a fork.
        self._left_store: Store | None = None
        self._next_tick = 0.0
        self._failures = 0

    @property
    def threaded(self) -> bool:
        """Whether the thread does the duties now, or will after the fork in progress."""
        return self._thread is not None

    def start(self) -> None:
        """Start the thread unless it runs; during a fork, start it afterwards."""
        with self._thread_lock:
            if self.threaded:
                return
            self._next_tick = monotonic() + self._leases.period_s
            rest = _Rest()
            thread = self._new_thread(rest)
            if self._thread is not None:
                return  # started in a signal handler
            self._rest, self._thread = rest, thread
            try:
                if under_way():
                    rest.pause()
                    self._paused = thread
                else:
                    thread.start()
            except BaseException:  # an interrupt, perhaps after the start
                rest.end()
                self._thread = None
                raise

    def _new_thread(self, rest: _Rest) -> threading.Thread:
        given = (rest,)
        return threading.Thread(target=self._run, args=given, name="reliq-background", daemon=True)

    def stop(self) -> None:
        """Stop the thread and wait for its end."""
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
        """End the thread for a fork; :meth:`resume` continues its work."""
        with self._thread_lock:
            if self._thread is not None:
                self._rest.pause()
                self._paused = self._thread

    def wait_paused(self) -> None:
        """Wait for the end of the thread, which first does a due tick: forks may be frequent."""
        _join(self._paused)

    def resume(self) -> None:
        """Start a thread again after a fork, which does a due tick at once."""
        with self._thread_lock:
            paused, self._paused = self._paused, None
            if paused is None:
                return
            if paused is threading.current_thread():  # the thread itself forks, and still runs
                self._rest.paused = False
                return
            self._rest = _Rest()
            self._thread = self._new_thread(self._rest)
            self._thread.start()

    def _run(self, rest: _Rest) -> None:
        with self._thread_lock:
            left, self._left_store = self._left_store, None
        store = left or self._open_store()
        while rest.wait(self._next_tick - monotonic()):
            store = self._turn(store, rest)
            # The rest of a pass continues at once, after a tick. A fork waits for neither.
            goes_on = store.waiting and not (self._failures or rest.interrupted)
            self._next_tick = monotonic() + (0.0 if goes_on else self._pause(self._failures))
            self._ticked()
        if rest.paused:
            self._left_store = store
        else:
            store.close()

    def _turn(self, store: Store, rest: _Rest) -> Store:
        """Do all due duties and wait for them; return the connection for the next turn."""
        until = monotonic() + self._leases.period_s
        try:
            for transport in list(self._transports):
                transport.read_replies()
            if not store.alive:
                store.connect()
                if not store.has_nodes:  # over a cluster, do not wait for an unreachable node
                    store.require_writable()  # a replica accepts the login too
            if not self._outbox.trusts(store):
                store.close()  # it may lead to a replaced server
                return self._open_store()
            # This loop reads its own replies, so a missing reply is really late.
            self._duties.tick(store, unanswered_s=self._leases.period_s)
            store.wait_for_replies(NODE_PATIENCE_S if store.has_nodes else inf)
            self._duties.do_all_later(store, renews=True)
            while store.waiting and not rest.interrupted and monotonic() < until:
                store.wait_for_replies(NODE_PATIENCE_S)  # the next step of a pass
                self._duties.do_all_later(store, renews=True)
            self._failures = 0
        except ReliqError as exc:
            if not self._failures:
                logger.warning("background loop: %s; it continues when the broker responds", exc)
            self._failures += 1
        except Exception:
            # No message is processed here. An error that ended the background loop would silently
            # end the renewal of every lease of this process.
            logger.exception("background loop: a duty failed; the loop continues")
        return store

    def _pause(self, failures: int) -> float:
        """Return the seconds until the next tick; after failures, a longer and random time."""
        period_s = self._leases.period_s
        if not failures:
            return period_s
        longest = min(period_s * 2.0 ** min(failures, 8), self._longest_pause_s)
        return longest * JITTER.uniform(0.5, 1.0)


class _Rest:
    """The pauses of one thread between its ticks."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._setting: set[int] = set()
        self._over = False
        self.paused = False

    @property
    def interrupted(self) -> bool:
        """Whether the thread must end, finally or for a fork."""
        return self._over or self.paused

    def wait(self, seconds: float) -> bool:
        """Wait for at most *seconds*; return False when the thread must end.

        If the next tick is due, *seconds* is 0 or less, and the tick precedes a fork. Otherwise,
        forks in quick succession would prevent all ticks.
        """
        if seconds <= 0:
            return not self._over
        self._event.wait(seconds)
        self._event.clear()
        return not self.interrupted

    def cut(self) -> None:
        """Let the thread continue now. An event is not reentrant: a nested call leaves it set."""
        me = threading.get_ident()
        if me not in self._setting:
            self._setting.add(me)
            try:
                self._event.set()
            finally:
                self._setting.discard(me)

    def end(self) -> None:
        self._over, self.paused = True, False
        self.cut()

    def pause(self) -> None:
        """End the thread for a fork: another one continues."""
        self.paused = True
        self.cut()


def _join(thread: threading.Thread | None) -> None:
    # A thread that was requested during a fork has not started.
    if thread is None or thread.ident is None or thread is threading.current_thread():
        return
    thread.join()
