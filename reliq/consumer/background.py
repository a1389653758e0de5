"""The background loop: a daemon thread that does the duties of a session at intervals.

It has its own connection. In a process that forks children, which should have no threads, a
timer of the event loop does the same duties instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from ..errors import ReliqError, logger
from ..failover.brokers import JITTER
from ..loops import Loop
from ..values.protocol import NODE_PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from weakref import WeakSet

    from ..loops import Run
    from ..values.protocol import Store
    from .duties import BackgroundDuties
    from .registration import AttachedTransport


@dataclass(eq=False)
class BackgroundLoop:
    """The background thread of one session."""

    _duties: BackgroundDuties
    _transports: WeakSet[AttachedTransport]
    _open_store: Callable[[], Store]
    _ticked: Callable[[], None]
    """Called after each tick, which may be the last."""

    def __post_init__(self) -> None:
        """Start without a thread."""
        options, period_s = self._duties.options, self._duties.leases.period_s
        # While the broker is unreachable: reconnect before other consumers take this one for dead.
        self._longest_pause_s = max(
            period_s, min(2.0, options.orphan_grace / 2, options.visibility_timeout / 6)
        )
        self._failures = 0
        self.loop = Loop("reliq-background", self._turns)
        # A new lease that is shorter than the pause allows for ends the pause.
        self._duties.leases.on_shorter = self.loop.cut

    def _turns(self, run: Run) -> Iterator[float]:
        store = self._open_store()
        yield self._duties.leases.period_s
        while not run.over:
            store = self._turn(store, run)
            self._ticked()
            # The rest of a pass continues at once, after a tick. A fork waits for neither.
            continues = store.waiting and not (self._failures or run.interrupted)
            yield 0.0 if continues else self._pause(self._failures)
        store.close()

    def _turn(self, store: Store, run: Run) -> Store:
        """Do all due duties and wait for them; return the connection for the next turn."""
        until = monotonic() + self._duties.leases.period_s
        try:
            for transport in list(self._transports):
                transport.read_replies()
            if not store.alive:
                store.connect()
                if not store.has_nodes:  # over a cluster, do not wait for an unreachable node
                    store.require_writable()  # a replica accepts the login too
            if not self._duties.outbox.trusts(store):
                store.close()  # it may lead to a replaced server
                return self._open_store()
            # This loop reads its own replies, so a missing reply is really late.
            self._duties.tick(store, unanswered_s=self._duties.leases.period_s)
            with store.patience(NODE_PATIENCE_S):
                store.wait_for_replies()
            self._duties.runner.run_all(store, self._duties.keep_alive)
            while store.waiting and not run.interrupted and monotonic() < until:
                store.wait_for_replies(NODE_PATIENCE_S)  # the next step of a pass
                self._duties.runner.run_all(store, self._duties.keep_alive)
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
        period_s = self._duties.leases.period_s
        if not failures:
            return period_s
        longest = min(period_s * 2.0 ** min(failures, 8), self._longest_pause_s)
        return longest * JITTER.uniform(0.5, 1.0)
