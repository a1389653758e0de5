"""BackgroundDuties: all duties of a session besides delivery, in one tick.

A tick renews leases, sends pending reports and a heartbeat, returns messages whose lease has ended
(``restore_visible``), ends the leases of dead consumers, and removes expired messages and queues,
used or not. The driver calls it: the thread of the background loop, or a timer of the event loop.
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
from ..store.protocol import NODE_PATIENCE_S, Attempt, goes_on
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
# Pause before a duty that failed at an unreachable node of a cluster is retried.
_AGAIN_S = 1.0
# After a node did not respond in a tick, others get this time: leases elsewhere must be renewed.
_LEAST_PATIENCE_S = 0.01


@dataclass(eq=False)
class BackgroundDuties:
    """The background duties of one session."""

    _name: str
    """The name of the consumer."""
    _options: Options
    _leases: Leases
    _outbox: Outbox
    _registration: Registration
    _running: RunningTasks
    _reports: JobReports
    _owes: Callable[[], bool]
    """Whether the next has pending reports."""
    _send_all_owed: Callable[[Store, float], None]
    _is_of_this_process: Callable[[str], bool]

    def __post_init__(self) -> None:
        """Create the parts, one for each duty."""
        options, leases, registration = self._options, self._leases, self._registration
        self._resend_s = max(leases.period_s, options.socket_timeout)
        self._send_at = 0.0
        self._next_look = 0.0
        # If a queue has other consumers, their passes detect the dead sooner.
        self._look_s = options.restore_interval * 2
        self._deferred: Deferred = deque()
        self._postponed: deque[tuple[float, Callable[[Store], None]]] = deque()
        self._patience_s = NODE_PATIENCE_S
        self._dead_letter_router = DeadLetterRouter()
        self.batches = BatchPasses(
            self._deferred,
            self._reports,
            lambda worker: WATCH.jobs_of(worker) if worker == self._name else None,
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
            self._reports,
            lambda: self.heartbeat.soon(),  # noqa: PLW0108 - made below
        )
        known = self._name, options, leases, registration, self._running
        self.heartbeat = Heartbeat(*known, self.passes, self._deferred)

    def subscribed(self, queue: str) -> None:
        """Include *queue* in the duties soon, and report it to the register."""
        self.passes.begin(queue)
        self._deferred.append(partial(self.dead_consumers.first_look, queue))
        self.heartbeat.soon()

    def route_soon(self, queue: str) -> None:
        """Route the dead letters of *queue* on at the next opportunity, if it is so configured."""
        self._deferred.append(partial(self._dead_letter_router.route, queue))

    def tick(self, store: Store, unanswered_s: float | None = None) -> None:
        """Do all due duties over *store*, without waiting for replies.

        Acks without a reply for *unanswered_s* are sent again. The default allows for replies that
        are not read at once. Raises BrokerUnavailable; a later tick continues.
        """
        registered = self._keep_alive(store)
        now = monotonic()
        self._patience_s = NODE_PATIENCE_S
        while self._postponed and self._postponed[0][0] <= now:
            self._deferred.append(self._postponed.popleft()[1])
        for owed in (self._reports, self._outbox):
            owed.resend(self._resend_s if unanswered_s is None else unanswered_s)
        self._put_debts_first(store)
        if not registered:
            return
        self._lost_queues.tick(store)
        self.dead_consumers.tick()
        self._running.tell(store)
        if now >= self._next_look:
            # Another consumer may have the duty, and may have died.
            self._next_look = now + min(self.heartbeat.interval_s, self._look_s)
            store.post_look(self._name, int(self._look_s * 1500), self._look_after_all)
        self.passes.tick(store)
        self.batches.tick()

    def _keep_alive(self, store: Store) -> bool:
        """Renew leases and send a heartbeat, over a new connection if this one was lost.

        Returns whether this session belongs in the register.
        """
        store.receive()  # also detects that the peer has closed the connection
        store.check()
        store.connect()
        self.renewal.renew(store)
        registration = self._registration
        if not (registration.subscriptions or registration.expected_back or self.heartbeat.vouches):
            return False
        # If the node of the register is lost, no consumers are visible there.
        with Attempt(store, NODE_PATIENCE_S):
            if not self.heartbeat.end_stay(store):
                self.heartbeat.tick(store)
        return True

    def _put_debts_first(self, store: Store) -> None:
        """Send pending reports next: an ack must not wait for a backlog of other duties.

        Only over a connection to the current server: replies of a replaced one count for nothing.
        """
        if self._owes() and monotonic() >= self._send_at and self._outbox.trusts(store):
            self._send_at = inf  # once at a time
            self._deferred.appendleft(self._send_owed)

    def _send_owed(self, store: Store) -> None:
        self._send_at = 0.0
        try:
            self._send_all_owed(store, NODE_PATIENCE_S)
        except (BrokerUnavailable, BrokerRefused) as exc:
            refused = isinstance(exc, BrokerRefused)
            if refused or goes_on(store):  # a node does not respond
                self._send_at = monotonic() + _AGAIN_S
            if refused or not goes_on(store):
                raise

    def poll(self, store: Store, queue: str) -> None:
        """Make the passes over a *queue* that is only polled, which may have no consumers."""
        self.dead_consumers.tick()
        if self.passes.poll(store, queue):
            store.wait_for_replies()
        self.do_all_later(store)

    def do_all_later(self, store: Store, *, renews: bool = False) -> None:
        """Do all deferred duties, including those that follow from their replies; waits.

        *renews*: keep the leases and the entry in the register, as this may take long.
        """
        while self._deferred:
            self.do_later(store)
            if renews:
                self._keep_alive(store)
            store.wait_for_replies(self._patience_s if store.has_nodes else inf)
            self._put_debts_first(store)

    def do_later(self, store: Store) -> bool:
        """Do deferred duties; waits for the broker. Returns whether some are left.

        Stops after a short time, so that an event loop can continue.
        """
        enough = monotonic() + _AT_A_TIME_S
        self._put_debts_first(store)
        while monotonic() < enough:
            try:
                duty = self._deferred.popleft()
            except IndexError:
                return False
            # The reports have their own patience for each node.
            patience_s = inf if duty == self._send_owed else self._patience_s
            try:
                with store.patience(patience_s):
                    duty(store)
            except BrokerRefused as exc:
                logger.error("background loop: %s", exc)  # noqa: TRY400 - the message suffices
            except BrokerUnavailable:
                if not goes_on(store):
                    raise
                # Its node does not respond: retry it later, once for equal duties.
                self._patience_s = _LEAST_PATIENCE_S
                if not any(_alike(duty, other) for _, other in self._postponed):
                    self._postponed.append((monotonic() + _AGAIN_S, duty))
        return bool(self._deferred)

    def _look_after_all(self, result: list[str] | ReliqError) -> None:
        if isinstance(result, ReliqError):
            if isinstance(result, BrokerRefused):
                logger.error("the check for dead consumers failed: %s", result)
        elif result:
            self._next_look = monotonic() + self._look_s * JITTER.uniform(0.9, 1.1)
            self._deferred.append(partial(self._look_after, result))

    def _look_after(self, names: list[str], store: Store) -> None:
        self.dead_consumers.look_after(names, store)
        if self.dead_consumers.suspects:
            self._next_look = min(self._next_look, monotonic() + self._options.orphan_grace)

    def visit(self, store: Store, gone: dict[str, str]) -> None:
        """Check the dead consumers and the batches of a broker that is only visited; waits.

        *gone* holds consumers without a connection, between visits. Raises BrokerUnavailable.
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
        while self.batches.sweeps:  # no other consumer would continue them
            self.batches.tick()
            self.do_all_later(store)


def _alike(one: Callable[[Store], None], other: Callable[[Store], None]) -> bool:
    if isinstance(one, partial) and isinstance(other, partial):
        return (one.func, one.args, one.keywords) == (other.func, other.args, other.keywords)
    return one == other
