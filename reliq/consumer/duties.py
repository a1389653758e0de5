"""BackgroundDuties: all duties of a session besides delivery, in one tick.

A tick renews leases, sends pending reports and a heartbeat, returns messages whose lease has ended
(``restore_visible``), ends the leases of dead consumers, and removes expired messages and queues,
used or not. The driver calls it: the thread of the background loop, or a timer of the event loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from ..errors import BrokerRefused, ReliqError, again, logger
from ..failover.brokers import JITTER
from ..transfer.dead_letter_exchange import DeadLetterRouter
from ..values.protocol import NODE_PATIENCE_S, Attempt
from .batch_passes import BatchPasses
from .dead_consumers import DeadConsumers
from .heartbeat import Heartbeat
from .host import HOST
from .lost_queues import LostQueues
from .renewal import Renewal
from .restore_passes import RestorePasses
from .runner import Runner

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..batches.job_reports import JobReports
    from ..options import Options
    from ..values.protocol import Store
    from .heartbeat import RunningTasks
    from .leases import Leases
    from .outbox import Outbox
    from .registration import Registration


@dataclass(eq=False)
class BackgroundDuties:
    """The background duties of one session."""

    _name: str
    """The name of the consumer."""
    options: Options
    leases: Leases
    outbox: Outbox
    _registration: Registration
    _running: RunningTasks
    _reports: JobReports
    _owes: Callable[[Store], bool]
    """Whether reports wait to be sent over a connection."""
    _send_all_owed: Callable[[Store], None]
    """Sends them; waits only briefly for each node of a cluster."""
    _is_of_this_process: Callable[[str], bool]

    def __post_init__(self) -> None:
        """Create the parts, one for each duty."""
        options, leases, registration = self.options, self.leases, self._registration
        self._resend_s = max(leases.period_s, options.socket_timeout)
        self._next_check = 0.0
        # If a queue has other consumers, their passes detect the dead sooner.
        self._check_s = options.restore_interval * 2
        self.runner = runner = Runner(self._owes, self._send_all_owed)
        """All duties that need the broker."""
        self._dead_letter_router = DeadLetterRouter()
        self.batches = BatchPasses(
            runner,
            self._reports,
            lambda worker: HOST.jobs_of(worker) if worker == self._name else None,
        )
        self._lost_queues = LostQueues(registration)
        self.renewal = Renewal(options, leases, runner)
        self.dead_consumers = DeadConsumers(
            _name=self._name,
            _options=options,
            _consumes=registration.subscriptions.__contains__,
            _restore=lambda store, queue: self.passes.restore(store, queue, force=True),
            _is_of_this_process=self._is_of_this_process,
            _runner=runner,
        )
        self.passes = RestorePasses(
            _options=options,
            _leases=leases,
            _registration=registration,
            _dead_consumers=self.dead_consumers,
            _runner=runner,
            _route_soon=self.route_soon,
            _reports=self._reports,
            _consumed_gone=lambda: self.heartbeat.soon(),  # noqa: PLW0108 - made below
        )
        self.heartbeat = Heartbeat(
            _name=self._name,
            _options=options,
            _leases=leases,
            _registration=registration,
            _running=self._running,
            _passes=self.passes,
            _runner=runner,
        )

    def subscribed(self, queue: str) -> None:
        """Include *queue* in the duties soon, and report it to the register."""
        self.passes.begin(queue)
        self.runner.soon(self.dead_consumers.check_first, queue)
        self.heartbeat.soon()

    def route_soon(self, queue: str) -> None:
        """Route the dead letters of *queue* on at the next opportunity, if it is so configured."""
        self.runner.soon(self._dead_letter_router.route, queue)

    def tick(self, store: Store, unanswered_s: float | None = None) -> None:
        """Do all due duties over *store*, without waiting for replies.

        Acks without a reply for *unanswered_s* are sent again. The default allows for replies that
        are not read at once. Raises BrokerUnavailable; a later tick continues.
        """
        registered = self.keep_alive(store)
        self.runner.begin()
        for owed in (self._reports, self.outbox):
            owed.resend(self._resend_s if unanswered_s is None else unanswered_s)
        self.runner.put_reports_first(store)
        if not registered:
            return
        self._lost_queues.tick(store)
        self._running.post(store)
        now = monotonic()
        if now >= self._next_check:
            # Another consumer may have the duty, and may have died.
            self._next_check = now + min(self.heartbeat.interval_s, self._check_s)
            store.post_elect(self._name, int(self._check_s * 1500), self._check_all)
        self.passes.tick(store)
        self.batches.tick()

    def keep_alive(self, store: Store) -> bool:
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

    def poll(self, store: Store, queue: str) -> None:
        """Make the passes over a *queue* that is only polled, which may have no consumers."""
        self.runner.begin()
        if self.passes.poll(store, queue):
            store.wait_for_replies()
        self.runner.run_all(store)

    def _check_all(self, result: list[str] | ReliqError) -> None:
        if isinstance(result, ReliqError):
            if isinstance(result, BrokerRefused):
                logger.error("the check for dead consumers failed: %s", result)
        elif result:
            self._next_check = monotonic() + self._check_s * JITTER.uniform(0.9, 1.1)
            self.runner.soon(self.dead_consumers.check_gone, "", result)

    def visit(self, store: Store, gone: dict[str, str]) -> None:
        """Check the dead consumers and the batches of a broker that is only visited; waits.

        *gone* holds consumers without a connection, between visits. Raises BrokerUnavailable.
        """
        replies: list[list[str] | ReliqError] = []
        store.post_elect(self._name, int(self._check_s * 1000), replies.append)
        store.wait_for_replies()
        for names in replies:
            if isinstance(names, ReliqError):
                raise again(names)
            self.dead_consumers.end_dead(names, gone, store)
        self.batches.check_soon()
        self.runner.run_all(store)
        while self.batches.sweeps:  # no other consumer would continue them
            self.batches.tick()
            self.runner.run_all(store)
