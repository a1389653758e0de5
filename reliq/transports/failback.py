"""Failback: the part of a transport that handles other brokers, and the return to the primary.

The first URL of a connection's list is the primary broker. The failback thread tells a transport
on another broker that the primary answers again. Without consumers, the transport then moves in
place before its next publish. With consumers, it continues until nothing is left at its broker,
and then ends the connection. The application connects again, to the primary.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any

from kombu import Connection

from .. import spool, transports
from ..consumer.host import HOST
from ..errors import BrokerUnavailable, ConfigurationError, NotConfirmed, ReliqError, logger
from ..failover.brokers import BROKERS, admit, without_password
from ..signals import broker_switched, emit
from ..spool import is_spool
from ..values.protocol import partly_reachable
from .broker_urls import PARTS, arguments_of, urls_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ..consumer.sessions import Endpoint
    from ..options import Options
    from .consume.subscription import Schedule
    from .link import Link


_PROBE_S = 1.0


def probe(url: str, arguments: Mapping[str, Any], whole: bool = False) -> float:
    """Return the seconds that the broker at *url* takes to answer and to accept a write.

    Of several nodes, one must answer, or all with *whole*. Waits at most a second for a connection
    and for an answer; raises ReliqError. With another library's broker, it only opens a channel.
    """
    options = dict(arguments.get("transport_options") or {})
    for name in ("socket_timeout", "socket_connect_timeout"):
        options[name] = min(float(options.get(name) or _PROBE_S), _PROBE_S)
    with Connection(url, **{**arguments, "transport_options": options}) as connection:
        began = perf_counter()
        cls = connection.get_transport_cls()
        if not hasattr(cls, "endpoint_of"):
            try:
                connection.channel().close()
            except (*connection.connection_errors, *connection.channel_errors) as exc:
                raise BrokerUnavailable(f"{connection.as_uri()} is not reachable: {exc}") from exc
            return perf_counter() - began
        store = cls.endpoint_of(connection).open_store("probe")
        try:
            store.connect()
            began = perf_counter()
            store.probe(whole=whole)
            return inf if is_spool(url) else perf_counter() - began
        finally:
            store.close()


BROKERS.probe = probe


@dataclass(eq=False)
class Failback:
    """See the module's description. Belongs to the transport's thread.

    The failback thread reads it, and calls :meth:`broker_answers`.
    """

    _link: Link
    _options: Options
    client: Any
    """The Kombu connection; None after it has dropped its transport."""
    _schedule: Schedule
    _move_to: Callable[[Endpoint], None]
    _has_unacked: Callable[[], bool]
    """Whether the application holds unfinished messages."""

    def __post_init__(self) -> None:
        """Read the list of brokers without connecting to any."""
        self.urls, self.url = urls_of(self.client)
        self.arguments = arguments_of(self.client)
        """Arguments for a Connection to another broker of the list."""
        self.home = ""
        """The broker to return to; one of :attr:`homes`."""
        self.due = False
        """Whether that broker answers again."""
        self.is_driven = False
        """Whether an event loop drives the transport."""
        self.spool = next(filter(is_spool, self.urls), "")
        """The spool at the end of the list, or an empty string."""
        self.probe_interval = self._options.probe_interval
        """Seconds between probes of the primary broker."""
        self._fresh_s = self.probe_interval * 2 if self._options.failback else 0.0
        if self.urls:
            BROKERS.learn(self.urls, self.arguments)

    @property
    def consumed(self) -> Sequence[str]:
        """The queues that it consumes from, with acks."""
        subscriptions = list(self._schedule.subscriptions)
        return sorted({item.of_queue for item in subscriptions if not item.no_ack})

    @property
    def homes(self) -> Sequence[str]:
        """Brokers to return to: from a spool, any broker; otherwise the primary broker."""
        if self.spool and self.url == self.spool:
            return self.urls[:-1]
        return self.urls[: int(self._options.failback and self.url != self.urls[0])]

    @property
    def stays(self) -> bool:
        """Whether no other broker is used while the current one answers."""
        return not self.urls or (self._options.failback and self.url == self.urls[0])

    def connect(self) -> None:
        """Connect, unless another broker should be tried first.

        Raises BrokerUnavailable and puts an unreachable broker into back-off. Raises
        ConfigurationError for a spool that could not be used later.
        """
        if not self.urls:
            self._open()
            return
        if self.spool:
            if self._options.confirm == "replicated" or self.spool != self.urls[-1]:
                raise ConfigurationError(
                    f"{self.spool}: expected a spool at the end of the list of brokers, and "
                    "confirm other than 'replicated', which a spool cannot provide"
                )
            self._check_spool()
        admit(self.url, self.urls, self._fresh_s)
        try:
            self._open()
        except BrokerUnavailable:
            BROKERS.failed(self.url)
            raise
        store = self._link.store
        # A publish whose reply is lost may go to the spool.
        if self.spool not in {"", self.url} and store.broker not in BROKERS.data:
            BROKERS.data[store.broker] = store.broker_id()
        BROKERS.answered(self.url)
        self._say_where("it was the first to answer")
        self.watch_primary()

    def _check_spool(self) -> None:
        """Check the spool once in a process. Raises ConfigurationError, unless a worker connects.

        While a broker answers, no other error of a spool matters: it is logged.
        """
        journal = spool.JOURNALS.at(self.spool)
        if journal.checked or self.url == self.spool:
            return
        try:
            journal.check()
        except ReliqError as exc:
            if isinstance(exc, ConfigurationError) and not HOST.serves():
                raise
            journal.report(exc)

    def _open(self) -> None:
        """Connect to a writable broker, with a pause after a lost or failed connection.

        A replica also accepts the login. After a failed connection, Kombu and Celery pause and use
        the other URLs; after a lost one, they retry the same URL at once. A replica must fail here.
        """
        session, store = self._link.session, self._link.store
        pace = session.pace
        # A publish with a retry policy has its own pauses, and its caller chooses the time.
        pace.wait(once=self._publishes and not session.consumed)
        try:
            store.connect()
            store.require_writable()
        except BrokerUnavailable:
            pace.trouble()
            raise
        pace.well()

    def watch_primary(self) -> None:
        """Register with the failback thread: away from the primary, consuming, or with a spool."""
        if not self.urls or not (self._options.failback or self.spool):
            return
        if self.url != self.urls[0] or self.consumed or self.spool:
            transports.FAILBACK.watch(self)

    def leave(self) -> None:
        """Unregister from the failback thread."""
        if self.urls:
            transports.FAILBACK.leave(self)

    def step_failed(self, error: BrokerUnavailable, *, helps_itself: bool = False) -> None:
        """Record a failed step, perhaps due to one unreachable node of several.

        Applies to connections that only publish: consumers of other queues must continue. After a
        switch, the connection stays at the other broker until this one is whole. If Kombu retries
        publishes by a policy, the retry goes to another broker, not to another node of this one.
        With *helps_itself*, the retry uses another node anyway, so this broker stays in use.
        """
        if (
            not self.urls
            or isinstance(error, NotConfirmed)  # it is stored
            or self._schedule.subscriptions
            or not partly_reachable(self._link.store)
        ):
            return
        if helps_itself:
            BROKERS.answered(self.url)
        elif self._publishes:
            BROKERS.failed(self.url)
        else:  # perhaps a starting worker that declares its queues
            BROKERS.lost_a_node(self.url)

    @contextmanager
    def failing_over(self) -> Iterator[None]:
        """Like a publish, let a step that fails for an unreachable node be retried elsewhere."""
        try:
            yield
        except BrokerUnavailable as exc:
            self.step_failed(exc)
            raise

    @property
    def _publishes(self) -> bool:
        """Whether Kombu's options indicate publishes with a retry policy."""
        client = self.client
        return client is not None and "max_retries" in (client.transport_options or ())

    def broker_answers(self, url: str) -> None:
        """Record that the broker *url* answers again; called by the failback thread."""
        if not self.due:
            transports.FAILBACK.came_back(self.url)
        self.home = url
        self.due = True
        self._link.store.notifier.wake()

    def fail_back(self) -> None:
        """Move to the primary in place, unless consumers or unacked messages prevent it."""
        transports.FAILBACK.go_on()
        if not self.due or self._schedule.subscriptions or self._has_unacked():
            return
        self.due = False
        primary = Connection(self.home, **self.arguments)
        try:
            self._move_to(primary.get_transport_cls().endpoint_of(primary))
        except ReliqError as exc:
            BROKERS.failed(self.home)
            logger.info("%s; staying at the current broker", exc)
            return
        # Kombu then declares its entities again before publishing, and reports the new broker.
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
        """End the connection if the primary answers and no more messages can be consumed here.

        Raises BrokerUnavailable; the application then connects again, to the first broker.
        """
        if not self.urls:
            return
        transports.FAILBACK.go_on()
        consumes = self.consumed or self._schedule.fed  # replies arrive where they were asked for
        if not self.due or not consumes or self._link.session.leases.held:
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
            f"{without_password(self.url)}, which has no messages left"
        )

    def _say_where(self, reason: str) -> None:
        first = self.urls[0] if self.url == self.spool else ""  # a process may start at the spool
        before = BROKERS.used(self.urls, self.url, first)
        if before is None:
            return
        old, new = without_password(before), without_password(self.url)
        logger.warning("switched from %s to %s: %s", old, new, reason)
        emit(broker_switched, new, old=old, new=new, reason=reason)

    @contextmanager
    def temporary_connection(self, url: str) -> Iterator[Any]:
        """Yield the transport of a temporary connection to *url*; send its pending acks."""
        with Connection(url, **self.arguments) as connection:
            transport = connection.transport
            transport.establish_connection()
            try:
                yield transport
            finally:
                transport.close_connection(None)
