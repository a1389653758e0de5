"""Failback: the part of a transport that knows of other brokers, and of the way back.

The first URL of a connection's list is the primary broker. A transport on another one
learns from the fail-back's thread when the primary answers again: without consumers it
moves there in place, before the next message is published; with consumers it goes on
until nothing is left where it is, and then ends the connection, so that the application
connects anew and finds the primary.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any

from kombu import Connection

from .. import spool, transports
from ..errors import BrokerUnavailable, ConfigurationError, NotConfirmed, ReliqError, logger
from ..failover.brokers import BROKERS, admit, without_password
from ..signals import broker_switched, emit
from ..spool import is_spool
from ..store.protocol import goes_on
from .broker_urls import PARTS, arguments_of, urls_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ..options import Options
    from .link import Link
    from .subscription import Schedule


_PROBE_S = 1.0


def probe(url: str, arguments: Mapping[str, Any], whole: bool = False) -> float:
    """Return the seconds that the broker at *url* takes to answer and to accept a write.

    Of several nodes one has to, or the *whole* of them. Waits a second at most for a connection,
    and for an answer; raises ReliqError. One that is not of reliq is to open a channel.
    """
    options = dict(arguments.get("transport_options") or {})
    for name in ("socket_timeout", "socket_connect_timeout"):
        options[name] = min(float(options.get(name) or _PROBE_S), _PROBE_S)
    with Connection(url, **{**arguments, "transport_options": options}) as connection:
        began = perf_counter()
        if not hasattr(connection.transport, "link"):
            try:
                connection.channel().close()
            except (*connection.connection_errors, *connection.channel_errors) as exc:
                raise BrokerUnavailable(f"{connection.as_uri()} is not reachable: {exc}") from exc
            return perf_counter() - began
        store = connection.transport.link.store
        try:
            store.connect()
            began = perf_counter()
            store.probe(whole=whole)
            return inf if is_spool(url) else perf_counter() - began
        finally:
            connection.transport.close_connection(None)


BROKERS.probe = probe


@dataclass(eq=False)
class Failback:
    """See the module's description. Of the thread that uses the transport.

    The fail-back's thread reads, and calls :meth:`broker_answers`.
    """

    _link: Link
    _options: Options
    client: Any
    """The Kombu connection; None once it has dropped its transport."""
    _schedule: Schedule
    _move_to: Callable[[Link], None]
    _has_unacked: Callable[[], bool]
    """Whether the application has messages that it has not finished."""

    def __post_init__(self) -> None:
        """Be connected to none of the brokers."""
        self.urls, self.url = urls_of(self.client)
        self.arguments = arguments_of(self.client)
        """What a Connection to another broker of the list is made with."""
        self.home = ""
        """The broker to go on at; one of :attr:`homes`."""
        self.due = False
        """Whether that broker answers again."""
        self.is_driven = False
        """Whether an event loop drives the transport."""
        self.spool = next(filter(is_spool, self.urls), "")
        """The last of the list where that is no broker."""
        self.probe_interval = self._options.probe_interval
        """Seconds between two questions to the first broker."""
        self._fresh_s = self.probe_interval * 2 if self._options.failback else 0.0
        if self.urls:
            BROKERS.learn(self.urls, self.arguments)

    @property
    def consumed(self) -> Sequence[str]:
        """The queues it consumes from, with acks."""
        subscriptions = list(self._schedule.subscriptions)
        return sorted({item.of_queue for item in subscriptions if not item.no_ack})

    @property
    def homes(self) -> Sequence[str]:
        """The brokers that it leaves this one for: a spool for any, and others for the first."""
        if self.spool and self.url == self.spool:
            return self.urls[:-1]
        return self.urls[: int(self._options.failback and self.url != self.urls[0])]

    @property
    def stays(self) -> bool:
        """Whether no other broker is used while this one answers."""
        return not self.urls or (self._options.failback and self.url == self.urls[0])

    def connect(self) -> None:
        """Open the connection, unless another broker is to be tried before this one.

        Raises BrokerUnavailable, and puts the broker that could not be reached into back-off;
        ConfigurationError for a spool that could not be used when it is needed.
        """
        if not self.urls:
            self._open()
            return
        if self.spool:
            if self._options.confirm == "replicated" or self.spool != self.urls[-1]:
                raise ConfigurationError(
                    f"{self.spool}: expected a spool at the end of the list of brokers, and "
                    "confirm not to be 'replicated', which a spool cannot give"
                )
            spool.JOURNALS.at(self.spool).check()
        admit(self.url, self.urls, self._fresh_s)
        try:
            self._open()
        except BrokerUnavailable:
            BROKERS.failed(self.url)
            raise
        store = self._link.store
        # A publish whose reply is lost may be spooled.
        if self.spool not in {"", self.url} and store.broker not in BROKERS.data:
            BROKERS.data[store.broker] = store.broker_id()
        BROKERS.answered(self.url)
        self._say_where("it was the first to answer")
        self.watch_primary()

    def _open(self) -> None:
        """Connect to a broker that takes writes; after a loss or a failure not at once.

        A replica takes the login too. What Kombu and Celery do after a connection that
        failed they do with pauses, and over the other URLs; after one that was lost, at
        once and over the same one. So a replica must fail here, not later.
        """
        session, store = self._link.session, self._link.store
        pace = session.pace
        # A publish with a retry policy has pauses of its own, and comes when its caller does.
        pace.wait(once=self._publishes and not session.registration.consumed)
        try:
            store.connect()
            store.require_writable()
        except BrokerUnavailable:
            pace.trouble()
            raise
        pace.well()

    def watch_primary(self) -> None:
        """Have the fail-back look after this transport: away, consuming, or beside a spool."""
        if not self.urls or not (self._options.failback or self.spool):
            return
        if self.url != self.urls[0] or self.consumed or self.spool:
            transports.FAILBACK.watch(self)

    def leave(self) -> None:
        """Be looked after no longer."""
        if self.urls:
            transports.FAILBACK.leave(self)

    def step_failed(self, error: BrokerUnavailable, *, helps_itself: bool = False) -> None:
        """Note that a step has failed, perhaps for want of one of several nodes.

        For who only publishes: what else is consumed over this connection goes on. Who goes to
        another broker then stays there until this one is whole. Where Kombu tries a publish again
        by a policy, it is to go to another broker, and not to another node of this one.
        *helps_itself*: the next try goes to another node, so this broker is as good as any.
        """
        if (
            not self.urls
            or isinstance(error, NotConfirmed)  # it is stored
            or self._schedule.subscriptions
            or not goes_on(self._link.store)
        ):
            return
        if helps_itself:
            BROKERS.answered(self.url)
        elif self._publishes:
            BROKERS.failed(self.url)
        else:  # a worker that starts, perhaps, and declares its queues
            BROKERS.lost_a_node(self.url)

    @contextmanager
    def failing_over(self) -> Iterator[None]:
        """Have what fails for want of a node tried at another broker, as a publish is."""
        try:
            yield
        except BrokerUnavailable as exc:
            self.step_failed(exc)
            raise

    @property
    def _publishes(self) -> bool:
        """Whether it is used for publishing with a retry policy, by all that Kombu says."""
        client = self.client
        return client is not None and "max_retries" in (client.transport_options or ())

    def broker_answers(self, url: str) -> None:
        """Learn that a broker to go back to answers again; called by the fail-back's thread."""
        if not self.due:
            transports.FAILBACK.came_back(self.url)
        self.home = url
        self.due = True
        self._link.store.notifier.wake()

    def fail_back(self) -> None:
        """Go on at the primary, in place, where nothing ties this transport to where it is."""
        transports.FAILBACK.go_on()
        if not self.due or self._schedule.subscriptions or self._has_unacked():
            return
        self.due = False
        primary = Connection(self.home, **self.arguments)
        other = primary.transport
        try:
            other.link.store.connect()
        except ReliqError as exc:
            BROKERS.failed(self.home)
            logger.info("%s: staying where we are", exc)
            primary.release()
            return
        try:
            self._link.store.wait_for_replies()
        except ReliqError as exc:
            logger.info("%s; pending acks are sent over the next connection", exc)
        self._move_to(other.link)
        other.link.session.leave(other)
        # Kombu declares again what it is about to publish to, and says where it is.
        self.client.declared_entities.clear()
        for name in PARTS:
            setattr(self.client, name, getattr(primary, name))
        transports.FAILBACK.came_back(self.url)
        self.url = self.home
        self.leave()
        self.watch_primary()
        BROKERS.answered(self.url)
        self._say_where("it answers again")

    def disconnect_when_drained(self) -> None:
        """End the connection where the primary answers and nothing is left to consume here.

        Raises BrokerUnavailable: the application connects anew, to the first broker.
        """
        if not self.urls:
            return
        transports.FAILBACK.go_on()
        if not self.due or not self.consumed or self._link.session.leases.held:
            return
        if any(
            item.buffer or item.in_flight or item.wanted
            for item in self._schedule.subscriptions
            if not item.no_ack
        ):
            return
        self.due = False
        if not BROKERS.answered_within(self.urls[0], self._fresh_s):
            return
        transports.FAILBACK.came_back(self.url)
        raise BrokerUnavailable(
            f"{without_password(self.urls[0])} answers again: leaving "
            f"{without_password(self.url)}, where nothing is left to do"
        )

    def _say_where(self, reason: str) -> None:
        first = self.urls[0] if self.url == self.spool else ""  # a process may begin at the spool
        before = BROKERS.used(self.urls, self.url, first)
        if before is None:
            return
        old, new = without_password(before), without_password(self.url)
        logger.warning("switched from %s to %s: %s", old, new, reason)
        emit(broker_switched, new, old=old, new=new, reason=reason)

    def forward(self, answers: Callable[[str], bool], stopped: Callable[[], bool]) -> None:
        """Forward what the spool holds to each broker that *answers*."""
        journal = spool.JOURNALS.at(self.spool)
        for url in self.urls[:-1]:
            if journal.holds and (url == self.url or answers(url)):
                with self.temporary_connection(url) as broker:
                    transports.forward(journal, broker, stopped)

    @contextmanager
    def temporary_connection(self, url: str, gone: dict[str, str] | None = None) -> Iterator[Any]:
        """Give the transport of a connection to *url* to a block; what is owed there is sent.

        With *gone* what dead consumers left there is ended, where nobody lives who does that:
        it is kept from one visit to the next, and says who had no connection. And batches there
        are looked after.
        """
        with Connection(url, **self.arguments) as connection:
            transport = connection.transport
            transport.establish_connection()
            try:
                if gone is not None:
                    transport.link.session.duties.visit(transport.link.store, gone)
                yield transport
            finally:
                transport.close_connection(None)
