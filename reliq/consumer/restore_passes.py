"""Restore passes: periodic upkeep of queues.

A pass (``restore_visible``) returns messages whose lease has ended, notifies waiting consumers
and caps the dead letters. Most queues rarely need a pass, so one survey covers all queues. The
passes then run only over the queues that the survey reports.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from ..errors import BrokerRefused, BrokerUnavailable, NotFound, ReliqError, logger
from ..failover.brokers import JITTER
from ..routing.partitions import settle
from ..signals import emit_at_the_limit, emit_returned, message_dead, message_restored
from .leases import log_at_the_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..batches.job_reports import JobReports
    from ..options import Options
    from ..values.protocol import Store
    from ..values.values import Layout, Restored, Work
    from .dead_consumers import DeadConsumers
    from .leases import Leases
    from .registration import Registration
    from .runner import Runner


_MOST_POLLED = 1024
# Limits of the register's report on failing passes: queues, and characters of each error.
_MOST_FAILING, _LONGEST_ERROR = 20, 500
# Over a cluster, each slot is a separate query. A slot without work and without other consumers
# is surveyed once in this many intervals.
_QUIET_INTERVALS = 4
# Consumers spread their requests for each minute's snapshot. After an error, they wait a minute.
_SNAPSHOT_SPREAD_S, _SNAPSHOT_AGAIN_S = 5.0, 60.0
# An unsettled layout is checked once in this many intervals.
_SETTLED_EVERY = 6


@dataclass(eq=False)
class RestorePasses:
    """The restore passes of one session and their schedule."""

    _options: Options
    _leases: Leases
    _registration: Registration
    _dead_consumers: DeadConsumers
    _runner: Runner
    _route_soon: Callable[[str], None]
    _reports: JobReports
    _consumed_gone: Callable[[], None]

    def __post_init__(self) -> None:
        """Start with an empty schedule."""
        self._lease_ms = int(self._options.visibility_timeout * 1000)
        self._interval_s = self._options.restore_interval
        self._next_snapshot = 0.0
        self._next_check: dict[str, float] = {}
        self._busy: set[str] = set()  # queues with work at the last survey
        self._next_poll: dict[str, float] = {}
        self._next_settling: dict[str, float] = {}
        self._settled: dict[str, Layout] = {}
        self._temporary: set[str] = set()
        self._tally: dict[str, Counter[str]] = {}
        self._duties: dict[str, Callable[[Store, str], None]] = {
            "expired": self._expire,
            "idle": self._expire_queue,
            "gone": self._expire_queue,
            "job_events": self._report_events,
        }
        """The duty for each flag of a survey."""
        self.failing: dict[str, str] = {}
        """Queue -> error of the last pass over it. The doctor reads this from the register."""
        self.dead_letter_routed: frozenset[str] = frozenset()
        """Queues whose dead letters this process routes on, including queues without consumers."""

    def _jittered(self, low: float = 0.9, high: float = 1.1) -> float:
        return self._interval_s * JITTER.uniform(low, high)

    def begin(self, queue: str) -> None:
        """Include *queue* from the next tick on."""
        self._next_check.setdefault(queue, 0.0)
        self._busy.add(queue)

    def route_dead_letters(self, queue: str) -> None:
        """Route the dead letters of *queue* from now on, before the register assigns it."""
        self.dead_letter_routed |= {queue}

    def tick(self, store: Store) -> None:
        """Post one survey of all due queues. Most queues need no work most of the time."""
        now = monotonic()
        subscriptions = list(self._registration.subscriptions.items())
        queues = {queue for queue, kinds in subscriptions if not all(kinds)}
        queues |= self.dead_letter_routed.difference(queue for queue, _ in subscriptions)
        for gone in self._next_check.keys() - queues:
            self._next_check.pop(gone, None)
            self._busy.discard(gone)
            self.failing.pop(gone, None)
        due = [queue for queue in sorted(queues) if now >= self._next_check.get(queue, 0.0)]
        if due:
            pause_s = self._jittered()  # one pause for all, so that they stay in one survey
            quiet = set(due) - self._busy if store.has_nodes else ()
            self._next_check.update(dict.fromkeys(due, now + pause_s))
            self._next_check.update(dict.fromkeys(quiet, now + _QUIET_INTERVALS * pause_s))
            self._busy.difference_update(due)
            # Queues without acks, such as those of remote control, need no passes. The survey only
            # checks that they exist. Over a cluster, each would be a separate query.
            ackless = [] if store.has_nodes else [q for q, kinds in subscriptions if all(kinds)]
            store.post_survey([*due, *ackless], partial(self._surveyed, store))
        if queues and now >= self._next_snapshot:
            self._next_snapshot = now + _SNAPSHOT_AGAIN_S
            store.post_snapshots(sorted(queues), self._noted)

    def _surveyed(self, store: Store, result: dict[str, Work] | ReliqError) -> None:
        if isinstance(result, ReliqError):
            if isinstance(result, BrokerRefused):
                logger.error("the survey of queues failed: %s", result)
            self._busy.update(self._next_check)  # unknown: survey all of them again
            return
        mine = self._next_check.keys() & result.keys()
        self._busy.update(mine)
        try:
            for queue, work in result.items():
                for flag in work.flags & self._duties.keys():
                    self._duties[flag](store, queue)
                if queue in mine:
                    self._make_pass(store, queue, work)
        except BrokerUnavailable:
            self._next_check.update(dict.fromkeys(mine, 0.0))

    def _make_pass(self, store: Store, queue: str, work: Work) -> None:
        if work.layout is not None:
            self._heed_layout(queue, work.layout)
        # A longer remaining time means that the server's clock was set back.
        is_due = work.pass_ms == 0 or work.pass_ms > self._interval_s * 4000
        if is_due and queue not in self._temporary:
            self.restore(store, queue)
        elif work.pass_ms > 0:
            self._ask_when_over(queue, work.pass_ms)

    def _expire_queue(self, _: Store, queue: str) -> None:
        if queue in self._registration.subscriptions:
            self._consumed_gone()  # if it is only idle, this consumer uses it from now on
        else:
            self._runner.soon(self._dead_consumers.expire_queue, queue)

    def _heed_layout(self, queue: str, layout: Layout) -> None:
        self._registration.note_layout(queue, layout)
        now = monotonic()
        is_settled = layout.end == layout.partitions and self._settled.get(queue) == layout
        if not is_settled and now >= self._next_settling.get(queue, 0.0):
            self._next_settling[queue] = now + self._jittered() * _SETTLED_EVERY
            self._runner.soon(self._settle, queue, layout)

    def _settle(self, queue: str, layout: Layout, store: Store) -> None:
        """Bring the partitions into line with the layout; other consumers or surveys continue."""
        with suppress(BrokerUnavailable, BrokerRefused, NotFound):
            if settle(store, queue):
                self._settled[queue] = layout

    def _ask_when_over(self, queue: str, pass_ms: int) -> None:
        """Survey *queue* again when the pass of another consumer no longer counts."""
        soon = min(pass_ms / 1000, self._interval_s)
        self._next_check[queue] = monotonic() + soon + self._jittered(0.0, 0.1)

    def _expire(self, store: Store, queue: str) -> None:
        store.post_expire(queue, partial(self._expired, store, queue))

    def _expired(self, store: Store, queue: str, result: bool | ReliqError) -> None:
        if isinstance(result, BrokerRefused):
            logger.error("expired messages of %r could not be removed: %s", queue, result)
        elif result is True:
            with suppress(BrokerUnavailable):  # the next survey continues
                self._expire(store, queue)

    def survey(self, store: Store, queues: Sequence[str]) -> None:
        """Remove expired messages and queues among *queues*, which this process does not use."""
        with suppress(BrokerUnavailable):  # another survey follows
            store.post_survey(queues, partial(self._surveyed, store))
            store.post_snapshots(sorted(queues), lambda _: None)

    def _noted(self, result: int | ReliqError) -> None:
        """Schedule the next snapshot. After an error, the chart has a gap."""
        if not isinstance(result, ReliqError):
            spread_s = JITTER.uniform(0.0, _SNAPSHOT_SPREAD_S)
            self._next_snapshot = monotonic() + result / 1000 + spread_s

    def _report_events(self, _: Store, queue: str) -> None:
        self._runner.soon(self._report_to_batches, queue, 0)

    def _report_to_batches(self, queue: str, after: int, store: Store) -> None:
        after = self._reports.report_events(store, queue, after)
        if after:  # there may be very many, and leases must be renewed in between
            self._runner.soon(self._report_to_batches, queue, after)

    def poll(self, store: Store, queue: str) -> bool:
        """Post a pass over *queue* for a process that only polls it, once an interval.

        Possibly no other consumer makes one. Returns False if none is due, or if a tick makes it.
        """
        now = monotonic()
        if now < self._next_poll.get(queue, 0.0) or queue in self._registration.subscriptions:
            return False
        if len(self._next_poll) > _MOST_POLLED:
            self._next_poll = {name: at for name, at in self._next_poll.items() if at > now}
        self._next_poll[queue] = now + self._interval_s
        self.restore(store, queue)
        return True

    def restore(self, store: Store, queue: str, force: bool = False) -> None:
        """Post the first step of a pass over *queue*. The reply handler posts the next steps."""
        self._temporary.add(queue)
        on_result = partial(self._restored, store, queue)
        try:
            store.post_restore(queue, self._lease_ms, on_result, force, _returns_are_reported())
        except BrokerUnavailable:
            self._temporary.discard(queue)
            raise

    def _restored(self, store: Store, queue: str, result: Restored | ReliqError) -> None:
        self._temporary.discard(queue)
        if isinstance(result, ReliqError):
            self._failed(queue, result)
            return
        if result.granted:
            self.failing.pop(queue, None)
        self._tally.setdefault(queue, Counter()).update(result.by_consumer)
        log_at_the_limit(queue, result.dead)
        if (result.restored or result.dead) and _returns_are_reported():
            self._runner.soon(_report_returns, queue, result)
        if result.more:
            try:
                self.restore(store, queue, force=True)
            except BrokerUnavailable:
                self._next_check[queue] = 0.0  # the next tick continues, or raises the error
            return
        if result.to_route:
            self._route_soon(queue)
        for consumer, number in self._tally.pop(queue, {}).items():
            logger.warning(
                "restored %d messages to %r: the lease of consumer %s ended; it was killed, "
                "was frozen or lost its network: check its log and the memory of its machine",
                number,
                queue,
                consumer,
            )
        if not result.granted:
            self._ask_when_over(queue, result.retry_ms)
        elif result.unacked > self._leases.count(queue):
            # Other consumers hold messages. A dead one may hold a poison candidate.
            self._runner.soon(self._dead_consumers.check_twice, queue, result.consumers)

    def _failed(self, queue: str, error: ReliqError) -> None:
        if isinstance(error, BrokerRefused):
            logger.error("restore_visible on %r failed: %s", queue, error)
            if len(self.failing) < _MOST_FAILING:
                self.failing[queue] = str(error)[:_LONGEST_ERROR]


def _returns_are_reported() -> bool:
    return bool(message_restored.receivers or message_dead.receivers)


def _report_returns(queue: str, result: Restored, store: Store) -> None:
    emit_returned(message_restored, store.broker, queue, result.restored)
    emit_at_the_limit(store.broker, queue, result.dead, "lease ended")
