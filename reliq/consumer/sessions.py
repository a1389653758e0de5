"""Sessions: one process as a consumer of one broker, across reconnects.

Kombu and Celery make a new Connection, transport and channel at every reconnect. The session owns
the state that survives it, in one part each: held leases (leases), pending acks and returns
(outbox), the registration, and the background loop with its duties. There is one session per
process, broker and options. Knows the store's contract; nothing of Kombu, nothing of an engine.
"""

from __future__ import annotations

import atexit
import os
import socket
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakSet

from .. import consumer
from ..batches.job_reports import JobReports
from ..errors import ReliqError, logger
from ..failover.brokers import Pace, Paces
from ..forks import OwnLock, Part, here, register
from ..values.protocol import NODE_PATIENCE_S, Attempt
from .heartbeat import RunningTasks
from .host import HOST
from .leases import Leases
from .outbox import Outbox
from .registration import Registration

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ..loops import Loop
    from ..options import Options
    from ..values.protocol import Store
    from .duties import BackgroundDuties
    from .registration import AttachedTransport


# Wait at exit for each node of a cluster.
_NODE_PATIENCE_AT_EXIT_S = 1.0

StoreFactory: TypeAlias = "Callable[[str], Store]"


@dataclass(frozen=True)
class Endpoint:
    """A broker as one connection reaches it. Making one connects to nothing."""

    key: Hashable
    """The identity of broker and consumer; connections with equal keys share a session."""
    options: Options
    open_store: StoreFactory
    """Returns a store for a given consumer; it connects when first used."""
    address: Any


class Session:
    """The leases and acks of this process at one broker. Thread-safe."""

    def __init__(self, endpoint: Endpoint, pace: Pace, others: Sessions) -> None:
        self.key = endpoint.key
        self.options = options = endpoint.options
        self._factory = endpoint.open_store
        self.pace = pace
        self._others = others
        self.transports: WeakSet[AttachedTransport] = WeakSet()
        self.lease_ms = int(options.visibility_timeout * 1000)
        self.fewer: dict[str, tuple[int, float]] = {}
        """By queue, the most messages of a reserve after a lost one, and the time of the loss."""
        self._begin()

    def _begin(self) -> None:
        host = socket.gethostname().split(".")[0]
        self.id = f"{host}:{os.getpid()}:{os.urandom(4).hex()}"
        self._numbers = count(1)
        self._lost = False
        self._spare: Store | None = None
        if self.holds:
            for part in (self.leases, self.outbox, self.reports):
                part.begin()
            for named in (self._running, self.registration):
                named.begin(self.id)

    # Created together at the first access to one: a session that only connects has none. They are
    # used through their locks: a child keeps the objects, and resets them.
    leases: Leases
    reports: JobReports
    outbox: Outbox
    registration: Registration
    _running: RunningTasks
    holds = False
    """Whether it ever had leases, reports or a registration."""

    # Created and imported at the first background duty: a process that only publishes has none.
    duties: BackgroundDuties
    background: Loop
    works = False
    """Whether it ever had background duties. If so, it holds."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Create the parts of one kind at the first access to one of them."""
            with self._others.lock:
                if name in {"duties", "background"}:
                    if not self.works:
                        self._begin_to_work()
                elif name not in {"leases", "reports", "outbox", "registration", "_running"}:
                    raise AttributeError(name)
                elif not self.holds:
                    self._make_holdings()
            return object.__getattribute__(self, name)

    def _make_holdings(self) -> None:
        leases, running = Leases(self.options), RunningTasks()
        reports = JobReports(lambda batch: self.duties.batches.soon(batch))  # noqa: PLW0108 - made later
        outbox = Outbox(leases, self.transports, running)
        registration = Registration(self.transports, self.options.orphan_grace)
        for part in (leases, outbox, reports):
            part.begin()
        for named in (running, registration):
            named.begin(self.id)
        if not self.holds:  # a signal handler may have made them meanwhile
            # Together, without a call: an interrupt leaves all parts or none.
            self.leases, self._running, self.reports = leases, running, reports
            self.outbox, self.registration, self.holds = outbox, registration, True

    def _begin_to_work(self) -> None:
        duties = consumer.BackgroundDuties(
            _name=self.id,
            options=self.options,
            leases=self.leases,
            outbox=self.outbox,
            _registration=self.registration,
            _running=self._running,
            _reports=self.reports,
            # Replies of a replaced server count for nothing.
            _owes=lambda store: self.owes and self.outbox.trusts(store),
            _send_all_owed=lambda store: self.send_owed(store, NODE_PATIENCE_S),
            _is_of_this_process=self._others.is_of_this_process,
        )
        background = consumer.BackgroundLoop(
            _duties=duties,
            _transports=self.transports,
            _open_store=self.open_store,
            _ticked=self.maybe_end,
        ).loop
        if not self.works:  # a signal handler may have begun meanwhile
            self.duties, self.background, self.works = duties, background, True

    @property
    def stays(self) -> bool:
        """Whether it remains in the register without consuming."""
        return self.works and self.duties.heartbeat.stays

    def forget_parent(self) -> None:
        """Start again in a child, without leases or pending reports. Sends nothing."""
        self.works = False
        for name in ("duties", "background"):
            vars(self).pop(name, None)
        self._begin()
        self.pace = Pace()
        for transport in list(self.transports):
            transport.forget_parent()

    def open_store(self) -> Store:
        """Return a new connection of this session, which connects when first used."""
        return self._factory(f"{self.id}/{next(self._numbers)}")

    def spare_store(self) -> Store:
        """Return a connection for messages that are settled after the end of their channel."""
        with self._others.lock:
            if self._spare is None:
                self._spare = self.open_store()
            return self._spare

    def leave(
        self, transport: AttachedTransport, lost: bool = False, elsewhere: bool = False
    ) -> None:
        """Record a closed transport. The last one ends the session if nothing is pending.

        After a *lost* connection, the session remains for a while, as a reconnect is expected.
        Kombu and Celery pause for seconds between their tries, so a thread renews the held leases
        as soon as the broker responds. If the reconnect may go *elsewhere*, to another broker, the
        thread also keeps the pending reports of this broker.
        """
        with self._others.lock:
            self.transports.discard(transport)
            if lost:
                self.pace.trouble()
                self.registration.expect_back(self.options.visibility_timeout)
                self._lost = True
            alone = not self.transports
        if (lost and self.leases.held) or (elsewhere and alone and not self.idle):
            self.background.start()
        self.maybe_end()

    def catch_up(self, store: Store) -> None:
        """Bring a new connection up to date; waits. Requeues no held message.

        Sends pending acks and returns of earlier connections, returns messages whose reserve was
        lost with its reply, and renews all held leases.
        """
        if not self.holds:
            return
        if self._lost:
            self._lost = False
            if not self._knows_server_of(store):
                self.outbox.replaced_at = store.connected_at
        self.registration.reconnected()
        for owed in (self.reports, self.outbox):
            owed.resend(inf)
        # The background loop retries what an unreachable node lacks, or the broker has refused.
        if self.owes:
            with Attempt(store, refused=True):
                self.send_owed(store, NODE_PATIENCE_S)
        if self.works:
            self.duties.renewal.renew(store, all_of_them=True)
        with store.patience(NODE_PATIENCE_S):
            store.wait_for_replies()

    def _knows_server_of(self, store: Store) -> bool:
        """Whether *store* leads to the server at which this session is registered.

        Then only one of its connections was lost, and the others are as good as before.
        """
        run_id = self.duties.heartbeat.run_id if self.works and not store.has_nodes else ""
        return bool(run_id) and run_id == store.server()[1]

    @property
    def idle(self) -> bool:
        """Whether no lease is held, no report is pending, and no jobs keep it in the register."""
        if not self.holds:
            return True
        # In this order: a settled message enters the outbox before its lease is dropped.
        settled = not self.leases.held and self.outbox.is_empty and self.reports.is_empty
        return settled and not self.stays

    @property
    def consumed(self) -> bool:
        """Whether it ever was a consumer. If not, the process only publishes."""
        return self.holds and self.registration.consumed

    @property
    def in_hand(self) -> bool:
        """Whether a message of this broker may run in this process, or be on its way to it.

        Pending reports do not count: returned or dropped messages no longer run, and a reserve
        of a lost connection delivers nothing. If the process dies before the broker receives the
        reports, the broker assumes that it died while holding several messages.
        """
        if not self.holds:
            return False
        self._note_dropped()
        asking = any(item.consumes and item.reserver.asking for item in list(self.transports))
        return self.leases.in_hand or asking

    def _note_dropped(self) -> None:
        """Move the records of destructors, which run at any point of any thread, to the outbox."""
        for no_ack, buffer in self.registration.dropped():
            self.outbox.return_later(buffer, no_ack=no_ack)
        self.outbox.return_abandoned()

    @property
    def owes(self) -> bool:
        """Whether unsent reports to the broker are pending."""
        unsent = self.outbox.has_unsent or self.reports.has_unsent
        return unsent or self.registration.has_unsent or self.leases.has_abandoned

    def send_owed(self, store: Store, patience_s: float = inf) -> None:
        """Send reports of earlier connections: acks, returns, lost reserves, queues to leave.

        Waits for *patience_s* for each node of a cluster. At last, raises the error of a lost node
        or of a refused report, which affects no other report.
        """
        self._note_dropped()
        self.reports.flush(store)
        attempt = Attempt(store, patience_s, refused=True)
        self.outbox.flush(store, attempt)
        self.registration.leave_queues(store, attempt)
        attempt.raise_lost()

    def subscribe(self, queue: str, no_ack: bool) -> int:
        """Record a subscription of *queue*; return the number of its subscriptions."""
        number = self.registration.subscribe(queue, no_ack)
        self.duties.subscribed(queue)
        return number

    @property
    def deserted(self) -> bool:
        """Whether it has no transport, no background thread and no known topology."""
        known = self.holds and not self.registration.topology.is_empty
        return not (self.transports or known or (self.works and self.background.threaded))

    def maybe_end(self) -> None:
        """End the session if no transport is open and nothing is pending."""
        with self._others.lock:
            expected = self.holds and self.registration.expected_back
            if self.transports or not self.idle or expected:
                return
            if self._others.by_key.get(self.key) is self:
                del self._others.by_key[self.key]
        if self.works:
            self.background.stop()
        if self._spare is not None:
            self._spare.close()
            self._spare = None

    def end_publishing(self) -> None:
        """Let the broker forget the publish numbers of this process."""
        for transport in list(self.transports):
            transport.end_publishing()

    def finish(self) -> None:
        """Return all held messages at exit; waits for a short time."""
        self.end_publishing()
        if not self.holds:
            return
        if self.works:
            self.background.stop()
        left = 0
        if self.reports.is_empty:
            left = self.outbox.return_all()
            # Leave lingering queues too: no reconnect follows.
            if self.outbox.is_empty and not (self.owes or self.registration.queues or self.stays):
                return
        store = self.open_store()
        try:
            store.connect()
            if not self.reports.is_empty:  # finished messages are then acked instead of returned
                self.reports.resend(0.0)
                self.reports.flush(store)
                with store.patience(_NODE_PATIENCE_AT_EXIT_S):
                    store.wait_for_replies()
            left = self.outbox.return_all()
            self.outbox.resend_all()
            self.registration.leave_all()
            self.send_owed(store, _NODE_PATIENCE_AT_EXIT_S)
            with store.patience(_NODE_PATIENCE_AT_EXIT_S):
                store.wait_for_replies()
            with store.patience(_NODE_PATIENCE_AT_EXIT_S):
                store.forget_consumer(self.id)
        except ReliqError as exc:
            if left:
                logger.warning("%d messages return when their leases end: %s", left, exc)
            else:
                logger.info("some reports to the broker failed at exit: %s", exc)
        finally:
            store.close()
        if unconfirmed := len(self.outbox.unconfirmed):
            logger.warning(
                "the broker has not confirmed the acks of %d finished messages: they will be "
                "delivered again",
                unconfirmed,
            )


class Sessions:
    """The sessions of this process."""

    lock = OwnLock()

    def __init__(self) -> None:
        self.by_key: dict[Hashable, Session] = {}
        self._paces = Paces()
        atexit.register(self._finish_all)
        HOST.at_child_end = self._end_publishing

    def session_for(self, endpoint: Endpoint, transport: AttachedTransport) -> Session:
        """Return the session at *endpoint*, which *transport* uses until it leaves."""
        key = endpoint.key
        # End other sessions whose transports vanished without leaving or do not return.
        for session in list(self.by_key.values()):
            if session.key != key and session.deserted:
                session.maybe_end()
        with self.lock:
            if key not in self.by_key:
                self.by_key[key] = Session(endpoint, self._paces.of(key), self)
            self.by_key[key].transports.add(transport)
            return self.by_key[key]

    def nothing_in_hand(self) -> bool:
        """Whether no message of any broker may run here, and no reserve is in progress."""
        return not any(session.in_hand for session in list(self.by_key.values()))

    def is_of_this_process(self, consumer: str) -> bool:
        """Whether a consumer in the register is an open session of this process."""
        return any(session.id == consumer for session in list(self.by_key.values()))

    def forget_parents(self) -> None:
        """Reset all sessions in a child."""
        for session in list(self.by_key.values()):
            session.forget_parent()

    def _end_publishing(self) -> None:
        here()
        for session in list(self.by_key.values()):
            session.end_publishing()

    def _finish_all(self) -> None:
        here()
        for session in list(self.by_key.values()):
            session.finish()


SESSIONS = Sessions()
register(Part("sessions", forget=SESSIONS.forget_parents))
