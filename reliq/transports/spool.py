"""``reliq-spool://``: what a publisher uses while no broker of its list answers.

Publishes and declarations go into the journal, and nothing else is done there. When a broker
answers, the transport goes on over it in place, with its next publish; consumers wait, take
nothing from the spool, and lose their connection then, so that the application connects anew.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from threading import Event
from time import monotonic, time
from typing import TYPE_CHECKING, Any, cast

from ..errors import BrokerRefused, BrokerUnavailable, ConfigurationError, MessageRefused
from ..failover.brokers import BROKERS
from ..integrations.outcomes import BATCH
from ..message.delivery_tag import new_tag
from ..message.envelope import pack, unpack
from ..message.queue_arguments import is_durable
from ..routing.publish_ids import PUBLISHER, PublishTag
from ..spool.journal import JOURNALS, Spooled
from ..store.values import Attached, ExchangeTable, QueueDeclared, QueueDeleted, Reservation
from .base import Transport as BaseTransport
from .broker_urls import reset_inherited_url
from .consumers import Consumers
from .publishing import Publishing

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from ..consumer.session import StoreFactory
    from ..routing.outgoing import Outgoing
    from ..spool.journal import Journal
    from .link import Link
    from .subscription import Subscription

_TRANSIENT = 1


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


class SpoolStore:
    """What a connection to a spool answers: declarations are noted, all else is refused."""

    epoch = 1
    waiting = has_nodes = has_partitions = keeps_long = False
    alive = True
    connected_at = 0.0

    def __init__(self, journal: Journal, consumer: str) -> None:
        self.journal = journal
        self.consumer = consumer
        self.broker = str(journal)
        self.partitions: dict[str, int] = {}
        self.woken = Event()
        self.notifier = self
        self.wake = self.woken.set
        self.connect, self.close = journal.check, journal.close

    def __getattr__(self, name: str) -> Any:
        """Refuse every other step of a store."""
        refused = MessageRefused if name == "batches" else BrokerRefused
        raise refused(
            f"{self.broker}: a spool only takes publishes, and no broker of the list answers: "
            f"{name} has to wait until one does; jobs of a batch, too, go to the broker that has "
            "it; nothing was stored"
        )

    # Nothing is posted to a spool; consumers, and all that is removed, are a broker's.
    require_writable = wait_for_replies = receive = forget_publishers = probe = _always(None)
    end_wait = disable_reconnect = delete_exchange = list_queue = layout = _always(None)
    purge = _always(0)
    is_away = _always(False)
    reserve = _always(Reservation([], -1, 1, left=False))
    exchange_table = _always(ExchangeTable(b"", b"1", frozenset()))
    attached = _always(Attached(temporary=False, marks={}))
    delete_queue = _always(QueueDeleted("missing", 0))
    unbind_queue = _always({})
    patience = _always(nullcontext())

    def declare_exchange(self, exchange: str, declaration: bytes) -> bytes:
        """Note an exchange."""
        self.journal.declare("exchange", exchange, declaration)
        return declaration

    def declare_queue(
        self, queue: str, passive: bool, arguments: bytes, meta: dict[str, str]
    ) -> QueueDeclared:
        """Note a queue that stays; one that is only asked about is taken to be there."""
        if not passive and is_durable(meta):
            self.journal.declare("queue", queue, pack([arguments, meta]))
        return QueueDeclared("existed", 0, 0, arguments)

    def bind(
        self, exchange: str, bound: bool, bindings: Sequence[bytes], queue: str, **_: Any
    ) -> int:
        """Note bindings of *queue*."""
        for binding in bindings if bound else ():
            self.journal.declare("binding", exchange, pack([queue, binding]))
        return 1


class SpoolPublishing(Publishing):
    """Publishes into the journal."""

    knows_routes = False
    spool_max = 0
    """How many messages the journal takes."""

    def publish(self, item: Outgoing, properties: dict[str, Any]) -> None:
        """Append *item*; the number of an earlier try at a broker goes with it."""
        if not self._is_broadcast(item, properties):
            tag = properties.get("delivery_tag")
            item.tag = tag if type(tag) is PublishTag else None
            self.send((item,))

    def send(self, items: Sequence[Outgoing], link: Link | None = None) -> None:
        """Append messages, all or none."""
        del link
        store = cast("SpoolStore", self._link.store)
        levels = {item.confirm.level for item in items}
        jobs = any(BATCH in item.headers for item in items)
        if jobs or "replicated" in levels:
            cannot = "take a job of a batch" if jobs else "confirm that a message is replicated"
            raise MessageRefused(
                f"{store.broker}: a spool cannot {cannot}; nothing was stored: publish when a "
                "broker answers"
            )
        store.journal.add(
            [_spooled(item, store.broker) for item in items],
            self.spool_max,
            fsync="fsynced" in levels,
        )
        PUBLISHER.wait_for_replies(*[item.tag for item in items if item.tag is not None])

    def _is_broadcast(self, item: Outgoing, properties: dict[str, Any]) -> bool:
        """Whether it is for those who listen now: transient, and to a fanout exchange."""
        routes = self._link.routes
        declared = routes.declared.get(item.exchange) or routes.inherited.get(item.exchange)
        about = unpack(declared) if declared else {"type": ""}
        transient = properties.get("delivery_mode") == _TRANSIENT or not about.get("durable")
        return transient and about["type"] == "fanout"


def _spooled(item: Outgoing, spool: str) -> Spooled:
    """Return what is kept of *item*, with the numbers of a try whose reply was lost."""
    now, broker, tried = int(time() * 1000), None, {}
    tag = item.tag
    for queue, known in list(tag.numbers.items()) if tag is not None else ():
        # Tried elsewhere now: this process publishes under another name from here on.
        PUBLISHER.number(cast("PublishTag", tag), queue, item.rank, spool)
        tried[queue], broker = [known.tag, known.number, known.publisher], known.broker
    own = str(tag) if tried else new_tag(item.rank)
    sent = (broker, BROKERS.data.get(broker), now) if broker is not None else ()
    kept = (item.envelope, item.rank, item.delay_left_ms, item.ttl_ms, item.create, item.key)
    return Spooled(item.exchange, item.routing_key, now, pack([own, *kept, tried]), *sent)


class SpoolConsumers(Consumers):
    """Consumes nothing: what the spool holds is for no consumer."""

    def add(self, subscription: Subscription) -> None:
        """Wait for a broker."""

    remove = add


class Transport(BaseTransport):
    """A journal: ``reliq-spool:////absolute/path.db``, the last URL of a list."""

    default_port = None

    def __init__(self, client: Any, **kwargs: Any) -> None:
        reset_inherited_url(client)
        self.journal = JOURNALS.at(client.virtual_host)
        self.at_spool = True
        self._timer: Any = None
        super().__init__(client, **kwargs)

    def establish_connection(self) -> BaseTransport:
        """Connect; raises ConfigurationError where the spool is no last URL of a list."""
        if self.at_spool and self.failback.urls[-1:] != (self.failback.url,):
            raise ConfigurationError(
                f"{self.journal} is a spool, which comes last in a list of brokers: "
                "broker_url=['reliq://...', 'reliq-spool:///...']; to work without a server use "
                "reliq-embedded:///"
            )
        return super().establish_connection()

    @property
    def default_connection_params(self) -> dict[str, Any]:
        """What Kombu fills in where the URL says nothing: there is no host."""
        return {}

    def session_key(self) -> Hashable:
        """Return what makes two connections the same user of the same spool."""
        return (self.journal.path, self.options)

    def store_factory(self) -> StoreFactory:
        """Return what opens a connection to the spool."""
        return cast("StoreFactory", partial(SpoolStore, self.journal))

    def _make_parts(self) -> None:
        super()._make_parts()
        self._at_broker = (self.publishing, self.consumers)
        made = (self.link, self.declarations, self.failback)
        self.publishing = SpoolPublishing(*made, self.publishing.posting, self.unroutable)
        self.publishing.spool_max = self.options.spool_max
        follow = self.deliverer.follow_layouts
        consuming = (self.turns, self.deliverer, self.loop, self.failback)
        self.consumers = SpoolConsumers(self.link, self.declarations, *consuming)
        self.deliverer.follow_layouts = follow

    def move_to(self, other: Link) -> None:
        """Go on over a broker, as any other transport does."""
        super().move_to(other)
        self.at_spool = False
        self.publishing, self.consumers = self._at_broker

    @property
    def unacked(self) -> bool:
        """Whether the application consumes, or has messages that it has not finished."""
        return (self.at_spool and self._consumes) or super().unacked

    # -- a consumer's wait

    @property
    def _consumes(self) -> bool:
        return any(channel.subscriptions for channel in self.channels)

    def _leave_when_due(self) -> None:
        if self._consumes and self.failback.due:
            raise BrokerUnavailable(f"a broker answers again: leaving {self.journal}")

    def drain_events(self, connection: Any, timeout: float | None = None, **kwargs: Any) -> None:
        """Wait for a broker; raises BrokerUnavailable when one answers, else ``socket.timeout``."""
        if not self.at_spool:
            super().drain_events(connection, timeout, **kwargs)
            return
        deadline = None if timeout is None else monotonic() + timeout
        woken = cast("SpoolStore", self.link.store).woken
        while True:
            self._leave_when_due()
            left = None if deadline is None else deadline - monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            woken.wait(left)
            woken.clear()

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Have *loop* look every second whether a broker answers."""
        self.unregister_from_event_loop(connection, loop)
        if self.at_spool:
            self._timer = loop.call_repeatedly(1.0, self._leave_when_due)
        else:
            super().register_with_event_loop(connection, loop)

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        """Leave *loop*."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        super().unregister_from_event_loop(connection, loop)
