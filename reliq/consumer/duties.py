"""BackgroundDuties: what a session does besides delivering, in one tick.

Leases are renewed, what is owed is sent, the consumer says that it lives, messages whose lease
has ended are returned (``restore_visible``), the leases of consumers that died are ended,
expired messages and queues are removed, in use or not. Who calls it is the driver's matter:
the background loop's thread, or a timer of the event loop.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from ..errors import BrokerRefused, BrokerUnavailable, ReliqError, again, logger
from ..failover.brokers import JITTER
from ..integrations.celery import WATCH
from ..store.protocol import NODE_PATIENCE_S, EachNode, goes_on
from ..transfer.dead_letter_exchange import DeadLetterRouter
from .batch_passes import BatchPasses
from .dead_consumers import DeadConsumers
from .heartbeat import Heartbeat
from .registration import LostQueues
from .renewal import Renewal
from .restore_passes import RestorePasses

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..options import Options
    from ..store.protocol import Deferred, Store
    from .heartbeat import RunningTasks
    from .job_reports import JobReports
    from .leases import Leases
    from .outbox import Outbox
    from .registration import Registration


_AT_A_TIME_S = 0.05
# What a duty could not do since one of several nodes is away is tried again after a while.
_AGAIN_S = 1.0
# Once one has not answered in a tick, others wait no longer: leases elsewhere are to be renewed.
_LEAST_PATIENCE_S = 0.01


@dataclass(eq=False)
class BackgroundDuties:
    """The background duties of one session."""

    _name: str
    """As which consumer."""
    _options: Options
    _leases: Leases
    _outbox: Outbox
    _registration: Registration
    _running: RunningTasks
    _reports: JobReports
    _owes: Callable[[], bool]
    """Whether the next has something to send."""
    _send_all_owed: Callable[[Store, float], None]
    _is_of_this_process: Callable[[str], bool]

    def __post_init__(self) -> None:
        """Make the parts, which do a duty each."""
        options, leases, registration = self._options, self._leases, self._registration
        self._resend_s = max(leases.period_s, options.socket_timeout)
        self._send_at = 0.0
        self._next_look = 0.0
        # Of queues that others consume from, their passes find the dead sooner.
        self._look_s = options.restore_interval * 2
        self._deferred: Deferred = deque()
        self._postponed: deque[tuple[float, Callable[[Store], None]]] = deque()
        self._patience_s = NODE_PATIENCE_S
        self._dead_letter_router = DeadLetterRouter()
        self.batches = BatchPasses(
            self._deferred, lambda worker: WATCH.jobs_of(worker) if worker == self._name else None
        )
        self._lost_queues = LostQueues(registration)
        self.renewal = Renewal(options, leases, self._deferred)
        self.dead_consumers = DeadConsumers(
            self._name,
            options,
            registration.subscriptions.__contains__,
            lambda store, queue: self.passes.restore(store, queue, force=True),
            self._is_of_this_process,
            self._deferred,
        )
        self.passes = RestorePasses(
            options,
            leases,
            registration,
            self.dead_consumers,
            self._deferred,
            self.route_soon,
            self.batches.soon,
            lambda: self.heartbeat.soon(),  # noqa: PLW0108 - made below
        )
        known = self._name, options, leases, registration, self._running
        self.heartbeat = Heartbeat(*known, self.passes, self._deferred)

    def subscribed(self, queue: str) -> None:
        """Look after *queue* soon, and tell the register about it."""
        self.passes.begin(queue)
        self._deferred.append(partial(self.dead_consumers.first_look, queue))
        self.heartbeat.soon()

    def route_soon(self, queue: str) -> None:
        """Route the dead letters of *queue* on at the next opportunity, where it asks for it."""
        self._deferred.append(partial(self._dead_letter_router.route, queue))

    def tick(self, store: Store, unanswered_s: float | None = None) -> None:
        """Do what is due over *store*, without waiting for replies.

        Acks without an answer for *unanswered_s* are sent again; by default for as long as an
        answer may take that nobody reads at once. Raises BrokerUnavailable; a later tick goes
        on where this one ended.
        """
        store.receive()  # also finds out that the peer has closed the connection
        store.check()
        store.connect()
        now = monotonic()
        self._patience_s = NODE_PATIENCE_S
        while self._postponed and self._postponed[0][0] <= now:
            self._deferred.append(self._postponed.popleft()[1])
        for owed in (self._reports, self._outbox):
            owed.resend(self._resend_s if unanswered_s is None else unanswered_s)
        self._put_debts_first()
        self.renewal.renew(store)
        if not (
            self._registration.subscriptions
            or self._registration.expected_back
            or self.heartbeat.vouches
        ):
            return
        self._lost_queues.tick(store)
        self.dead_consumers.tick()
        # Where the node of the register is lost, who looks there sees nobody.
        with EachNode(store, NODE_PATIENCE_S).turn():
            if not self.heartbeat.end_stay(store):
                self.heartbeat.tick(store)
        self._running.tell(store)
        if now >= self._next_look:
            # The others are asked for as often as they are heard of; who has the duty, more.
            self._next_look = now + self.heartbeat.interval_s
            store.post_look(self._name, int(self._look_s * 2500), self._look_after_all)
        self.passes.tick(store)
        self.batches.tick()

    def _put_debts_first(self) -> None:
        """Have what is owed sent next: an ack must not wait for a backlog of other duties."""
        if self._owes() and monotonic() >= self._send_at:
            self._send_at = inf  # once at a time
            self._deferred.appendleft(self._send_owed)

    def _send_owed(self, store: Store) -> None:
        self._send_at = 0.0
        try:
            self._send_all_owed(store, NODE_PATIENCE_S)
        except BrokerUnavailable:
            if not goes_on(store):
                raise
            self._send_at = monotonic() + _AGAIN_S  # the node that it is owed to does not answer

    def poll(self, store: Store, queue: str) -> None:
        """Look after a *queue* that is only polled, once an interval: perhaps nobody else does."""
        self.dead_consumers.tick()
        if self.passes.poll(store, queue):
            store.wait_for_replies()
        self.do_all_later(store)

    def do_all_later(self, store: Store, *, renews: bool = False) -> None:
        """Do what replies asked for, and what its replies ask for; waits for the broker.

        *renews*: leases are renewed in between, as that may take longer than a lease.
        """
        while self._deferred:
            self.do_later(store)
            if renews:
                self.renewal.renew(store)
            store.wait_for_replies(self._patience_s if store.has_nodes else inf)
            self._put_debts_first()

    def do_later(self, store: Store) -> bool:
        """Do what replies asked for; waits for the broker. Returns whether something is left.

        Not all at once where it takes long, so that an event loop turns meanwhile.
        """
        enough = monotonic() + _AT_A_TIME_S
        self._put_debts_first()
        while monotonic() < enough:
            try:
                duty = self._deferred.popleft()
            except IndexError:
                return False
            # What is owed to several nodes is sent with patience for each.
            patience_s = inf if duty == self._send_owed else self._patience_s
            try:
                with store.patience(patience_s):
                    duty(store)
            except BrokerRefused as exc:
                logger.error("background loop: %s", exc)  # noqa: TRY400 - the message says it all
            except BrokerUnavailable:
                if not goes_on(store):
                    raise
                # Its node does not answer: it is tried again, once however often it is asked for.
                self._patience_s = _LEAST_PATIENCE_S
                if not any(_alike(duty, other) for _, other in self._postponed):
                    self._postponed.append((monotonic() + _AGAIN_S, duty))
        return bool(self._deferred)

    def _look_after_all(self, result: list[str] | ReliqError) -> None:
        if isinstance(result, ReliqError):
            if isinstance(result, BrokerRefused):
                logger.error("consumers that died cannot be looked for: %s", result)
        elif result:
            self._next_look = monotonic() + self._look_s * JITTER.uniform(0.9, 1.1)
            self._deferred.append(partial(self.dead_consumers.look_after, result))

    def visit(self, store: Store, gone: dict[str, str]) -> None:
        """See to the dead and the batches of a broker that is only visited; waits.

        *gone* is kept from one visit to the next: who had no connection. Raises BrokerUnavailable.
        """
        found: list[list[str] | ReliqError] = []
        store.post_look(self._name, int(self._look_s * 1000), found.append)
        store.wait_for_replies()
        for names in found:
            if isinstance(names, ReliqError):
                raise again(names)
            self.dead_consumers.end_dead(names, gone, store)
        self.batches.look_soon()
        self.do_all_later(store)
        while self.batches.sweeps:  # there is nobody else to make the rest
            self.batches.tick()
            self.do_all_later(store)


def _alike(one: Callable[[Store], None], other: Callable[[Store], None]) -> bool:
    if isinstance(one, partial) and isinstance(other, partial):
        return (one.func, one.args, one.keywords) == (other.func, other.args, other.keywords)
    return one == other
