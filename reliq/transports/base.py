"""Transport: Kombu's view of a connection. Independent of the engine; a scheme adds the store."""

from __future__ import annotations

from array import array
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from kombu.transport import virtual

from .. import transports
from .._version import __version__
from ..consumer.host import HOST
from ..consumer.runner import Runner
from ..consumer.sessions import SESSIONS
from ..errors import BrokerUnavailable, ReliqError, logger
from ..forks import PROCESS, here
from ..kombu_options import warn_of_unused
from ..lazy import Lazy
from ..options import parse
from ..routing.publish_ids import PUBLISHER
from .consume.subscription import Schedule
from .declarations import Declarations
from .failback import Failback
from .link import Link
from .publish.encoder import Encoder
from .publish.publishing import Publishing, Recoverable

if TYPE_CHECKING:
    from ..consumer.sessions import Endpoint, Session
    from ..options import Options
    from ..values.protocol import Store
    from .consume.consumers import Consumers
    from .consume.credit import Credit
    from .consume.eventloop import EventLoop
    from .consume.pull import PullLoop
    from .consume.reserver import Reserver


# Longest pause between attempts to begin consuming. It must stay below the 25 s for which an
# operator command waits until a new partition is consumed from.
_LONGEST_PAUSE_S = 4.0


def options_of(client: Any) -> Options:
    """Return the options of a Kombu connection; raises ConfigurationError."""
    given = dict(client.transport_options or {})
    if provider := getattr(client, "credential_provider", None):
        given["credential_provider"] = provider
    return parse(given)


def serving(own: Any, connection: Any) -> Any:
    """Return the current transport of *connection*, which is *own* unless Kombu switched URLs.

    Kombu evaluates ``self.transport.verb(self.connection)`` from left to right. The connection may
    fail over, and get a new transport, after the lookup of its transport. So the passed connection
    decides. None stands for *own*. The connection may use a transport of another library.
    """
    if connection is own or connection is None:
        return own
    client = getattr(connection, "client", None)
    return own if client is None else client.transport


class Transport(virtual.Transport):
    """Base class of the transports of all schemes."""

    driver_type = "redis"  # for Celery: mingle, gossip, events, worker_disable_prefetch
    driver_name = "reliq"
    polling_interval = None

    connection_errors = (*virtual.Transport.connection_errors, BrokerUnavailable)
    channel_errors = virtual.Transport.channel_errors
    recoverable_connection_errors = Recoverable(connection_errors)
    recoverable_channel_errors = ()

    implements = virtual.Transport.implements.extend(
        asynchronous=True,
        batch_publish=True,
        exchange_type=frozenset({"direct", "topic", "fanout"}),
        heartbeats=False,
    )
    supports_batch_publish = True

    def __init__(self, client: Any, **_: Any) -> None:
        # Does not call the base class: no broker state in the process, no polling cycle.
        HOST.prepare()
        self._released = False
        self.client = client
        self.endpoint = endpoint = self.endpoint_of(client)
        self.address, self.options = endpoint.address, endpoint.options
        self._began_at = monotonic()
        warn_of_unused(client.transport_options or {})
        self.channels: list[Any] = []  # instances of Channel, which imports this class
        self._used_channel_ids = array("H")
        self._epoch = 0
        # The parts first: the session uses those of its transports.
        self.link = Link()
        self.declarations = Declarations(self.link, self.options.partitions)
        self.schedule = Schedule(self.options.queue_order_strategy)
        self.failback = Failback(
            _link=self.link,
            _options=self.options,
            client=client,
            _schedule=self.schedule,
            _move_to=self.move_to,
            _has_unacked=lambda: any(channel.qos_.delivered for channel in self.channels),
        )
        session = SESSIONS.session_for(endpoint, self)
        self.link.begin(session, self._open_store(session))
        if session.holds:
            session.registration.topology.give(self.link.routes, self.declarations.queues)

    @Lazy
    def encoder(self) -> Encoder:
        """Encodes messages. A transport that only connects creates none."""
        return Encoder(self.options, self.declarations, self.failback)

    @Lazy
    def publishing(self) -> Publishing:
        """Publishes messages."""
        return self._publish_by(self.publishing_class)

    publishing_class = Publishing

    def _publish_by(self, kind: type[Publishing]) -> Publishing:
        return kind(
            _link=self.link,
            _options=self.options,
            _declarations=self.declarations,
            _failback=self.failback,
        )

    # Created and imported together on first access: a publisher does not need them.
    credit: Credit
    reserver: Reserver
    pull: PullLoop
    loop: EventLoop
    consumers: Consumers
    Consumers: type[Consumers] | None = None
    """The class of :attr:`consumers`, if the scheme has its own."""
    consumes = False
    """Whether the transport has ever started to consume."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Create the consuming parts on first access."""
            if name not in {"credit", "reserver", "pull", "loop", "consumers"}:
                raise AttributeError(name)
            self._begin_to_consume()
            return object.__getattribute__(self, name)

    def _begin_to_consume(self) -> None:
        link, schedule, failback = self.link, self.schedule, self.failback
        of_worker = partial(HOST.takes_from, self)
        credit = transports.Credit(link, of_worker, self._began_at, schedule.is_round_robin)
        reserver = transports.Reserver(_link=link, _schedule=schedule, _credit=credit)
        pull = transports.PullLoop(
            _link=link,
            _schedule=schedule,
            _credit=credit,
            _reserver=reserver,
            _failback=failback,
            _declarations=self.declarations,
            duties=Runner(raises=True, most_pause_s=_LONGEST_PAUSE_S),
        )
        loop = transports.EventLoop(
            _link=link,
            _schedule=schedule,
            _reserver=reserver,
            _pull=pull,
            _failback=failback,
            _posting=self.publishing.posting,
        )
        consumers = (self.Consumers or transports.Consumers)(
            _link=link,
            _declarations=self.declarations,
            _schedule=schedule,
            _pull=pull,
            _loop=loop,
            _failback=failback,
        )
        if not self.consumes:  # a signal handler may have consumed meanwhile
            # Together: an interrupt leaves all parts or none.
            self.credit, self.reserver, self.pull = credit, reserver, pull
            self.loop, self.consumers, self.consumes = loop, consumers, True

    @property
    def client(self) -> Any:
        """The Kombu connection of this transport; None after the connection has dropped it."""
        return self._client

    @client.setter
    def client(self, client: Any) -> None:
        self._client = client
        if client is None:
            self.failback.client = None
            if not self._released:
                # Kombu closes a connected transport, but only drops one that never connected.
                self._let_go(lost=False)

    @classmethod
    def endpoint_of(cls, client: Any) -> Endpoint:
        """Return the broker that a Kombu connection uses now; creates no transport."""
        raise NotImplementedError

    def _open_store(self, session: Session) -> Store:
        store = session.open_store()
        store.keeps_long = bool(self.failback.spool)
        return store

    @property
    def default_connection_params(self) -> dict[str, Any]:
        """Kombu's defaults for missing parts of the URL; no host for a scheme without a port."""
        return {"hostname": "localhost", "port": self.default_port} if self.default_port else {}

    def driver_version(self) -> str:
        """Return reliq's version."""
        return __version__

    def establish_connection(self) -> Transport:
        """Connect and send the session's pending work; raises BrokerUnavailable."""
        try:
            self.failback.connect()
        except BrokerUnavailable:
            # Kombu tries the next URL.
            self.schedule.deserted = bool(self.schedule.subscriptions)
            raise
        # Each new connection sends the pending work of earlier connections once.
        if self._epoch != self.link.store.epoch:
            self._epoch = self.link.store.epoch
            self.link.session.catch_up(self.link.store)
        return self

    def move_to(self, endpoint: Endpoint) -> None:
        """Switch to the broker at *endpoint*, and keep the declarations.

        Raises ReliqError if that broker does not answer; nothing changes then.
        """
        left, old = self.link.session, self.link.store
        session = SESSIONS.session_for(endpoint, self)
        store = self._open_store(session)
        try:
            store.connect()
        except ReliqError:
            session.leave(self)
            store.close()
            raise
        try:
            old.wait_for_replies()
        except ReliqError as exc:
            logger.info("%s; pending acks are sent over the next connection", exc)
        self.endpoint = endpoint
        self.link.move_to(session, store)
        left.leave(self)
        old.close()

    def verify_connection(self, _: Any) -> bool:
        """Whether the connection is alive."""
        return self.link.store.alive

    def create_channel(self, connection: Any) -> Any:
        """Return a new channel of *connection*."""
        other = serving(self, connection)
        if other is not self:
            return other.create_channel(connection)
        channel = self.Channel(self)
        self.channels.append(channel)
        return channel

    def close_channel(self, channel: Any) -> None:
        """Forget a closed channel."""
        if channel.channel_id in self._used_channel_ids:
            self._used_channel_ids.remove(channel.channel_id)
        if channel in self.channels:
            self.channels.remove(channel)
        channel.connection = None  # as in Kombu: Message and Producer read it

    def close_connection(self, _: Any) -> None:
        """Return unacked messages, wait until acks are confirmed, and close.

        Never raises for an unreachable broker: the next connection sends what is still pending.
        """
        for channel in list(self.channels):
            channel.close()
        try:
            self.publishing.posting.do_duties()
            if self.link.store.alive:
                self.link.store.wait_for_replies()
                if self.publishing.posting.used:
                    self.publishing.posting.duties.run_all(self.link.store)
                self.end_publishing()
                self.link.store.wait_for_replies()
        except ReliqError as exc:
            logger.info("%s; pending acks are sent over the next connection", exc)
        self._let_go(lost=self.schedule.loss_reported)

    def end_publishing(self) -> None:
        """Let the broker forget this process's publish numbers: no publish will be retried."""
        PUBLISHER.retire()
        if self.link.store.alive:
            with suppress(ReliqError):  # the broker's record expires by itself
                self.link.store.forget_publishers(PUBLISHER.finished)

    def _collect(self, _: Any) -> None:
        """Drop a broken connection without waiting; messages are not requeued."""
        for channel in list(self.channels):
            channel.collect()
            self.close_channel(channel)
        self._let_go(lost=self._epoch > 0)  # epoch 0: it never connected

    def _let_go(self, lost: bool) -> None:
        self._released = True
        if lost:
            consumed = {item.queue for item in self.schedule.subscriptions}
            topology = self.link.session.registration.topology
            topology.keep(self.link.routes, self.declarations.queues, consumed)
        if self.consumes:
            self.consumers.drop(lost)
            self.loop.leave()
        self.link.store.close()  # the callback of a pending reserve records it as lost
        self.failback.leave()
        self.link.session.leave(self, lost=lost, elsewhere=bool(self.failback.urls))

    def follow_layout(self, queue: str) -> None:
        """Let the consumers of *queue* adapt to its new layout soon."""
        if self.consumes:
            self.consumers.follow_layout(queue)

    def forget_parent(self) -> None:
        """Drop the parent's consumers and messages in a forked child."""
        for channel in self.channels:
            channel.qos_.delivered.clear()
            for item in channel.subscriptions.values():
                item.ended()
            channel.subscriptions.clear()
        if self.consumes:
            self.consumers.forget_late()
            self.loop.forget()
        self.schedule.clear()
        if self.publishing.posting.used:
            self.publishing.posting.duties.clear()
        self.link.reopen()
        self.link.store.keeps_long = bool(self.failback.spool)

    def drain_events(self, connection: Any, timeout: float | None = None, **_: Any) -> None:
        """Deliver one message; see :meth:`PullLoop.drain`."""
        if not PROCESS[0]:
            here()  # a child does not deliver messages that its parent reserved
        other = self if connection is self else serving(self, connection)
        if other is self:
            self.pull.drain(timeout)
        else:
            self.pull.require_no_deserter()
            other.drain_events(connection, timeout=timeout)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Let *loop* drive this transport; Celery calls it again for each new connection."""
        other = serving(self, connection)
        if other is self:
            self.loop.register(loop)
        else:
            other.register_with_event_loop(connection, loop)

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        """Leave *loop*."""
        other = serving(self, connection)
        if other is self:
            self.loop.leave()
        else:
            other.unregister_from_event_loop(connection, loop)

    def read_replies(self) -> None:
        """Read replies while the application is busy; called by the background loop."""
        store = self.link.store
        if store.waiting:
            with suppress(BrokerUnavailable):  # the waiting callers were already notified
                store.receive()
