"""``reliq-spool://``: what a publisher uses while no broker of its list answers.

Publishes and declarations go into the journal, and nothing else is done there. When a broker
answers, the transport goes on over it in place, with its next publish; consumers wait, take
nothing from the spool, and lose their connection then, so that the application connects anew.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from functools import partial
from threading import Event
from time import monotonic, time
from typing import TYPE_CHECKING, Any, NoReturn, cast

from ..errors import BrokerRefused, BrokerUnavailable, ConfigurationError, MessageRefused
from ..failover.brokers import BROKERS
from ..integrations.outcomes import BATCH
from ..message.delivery_tag import new_tag
from ..message.envelope import pack, unpack
from ..message.queue_arguments import is_durable
from ..options import parse
from ..routing.publish_ids import PUBLISHER, PublishTag
from ..spool.journal import JOURNALS, Spooled
from ..store.values import Attached, ExchangeTable, QueueDeclared, QueueDeleted
from .base import Transport as BaseTransport
from .broker_urls import reset_inherited_url
from .channel import Channel
from .encoder import Encoder
from .publishing import Publishing

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from ..consumer.session import StoreFactory
    from ..spool.journal import Journal
    from ..store.protocol import Store
    from .link import Link
    from .outgoing import Outgoing
    from .sending import Entry, NotStored

logger = logging.getLogger("reliq")

_TRANSIENT = 1


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
        raise BrokerRefused(
            f"{self.broker}: a spool only takes publishes, and no broker of the list answers: "
            f"{name} has to wait until one does"
        )

    def refuse_jobs(self) -> NoReturn:
        """Raise MessageRefused."""
        raise MessageRefused(
            f"{self.broker}: a job of a batch is published to the broker that has its batch, and "
            "no broker of the list answers; nothing was stored"
        )

    batches = property(refuse_jobs)

    def probe(self, *, whole: bool = False) -> None:
        """See that the file can be used; raises ReliqError."""
        del whole
        self.journal.check()

    def patience(self, _seconds: float) -> nullcontext[None]:
        """Wait as long as it takes: a spool is one file."""
        return nullcontext()

    def nothing(self, *_: Any, **__: Any) -> None:
        """Do nothing: nothing is posted to a spool, and what is deleted is a broker's."""

    require_writable = wait_for_replies = receive = forget_publishers = nothing
    end_wait = disable_reconnect = delete_exchange = list_queue = layout = nothing

    # -- declarations

    def declare_exchange(self, exchange: str, declaration: bytes) -> bytes:
        """Note an exchange."""
        self.journal.declare("exchange", exchange, declaration)
        return declaration

    def exchange_table(self, _exchange: str) -> ExchangeTable:
        """Return an exchange that is there, with bindings that only the broker knows."""
        return ExchangeTable(b"", b"1", frozenset())

    def declare_queue(
        self, queue: str, passive: bool, arguments: bytes, meta: dict[str, str]
    ) -> QueueDeclared:
        """Note a queue that stays; one that is only asked about is taken to be there."""
        if not passive and is_durable(meta):
            self.journal.declare("queue", queue, pack([arguments, meta]))
        return QueueDeclared("existed", 0, 0, arguments)

    def attached(self, _queue: str) -> Attached:
        """Return no consumers: they are a broker's."""
        return Attached(temporary=False, marks={})

    def delete_queue(self, _queue: str, **_: Any) -> QueueDeleted:
        """Delete nothing: a queue is deleted at a broker."""
        return QueueDeleted("missing", 0)

    def unbind_queue(self, _queue: str) -> dict[str, bytes]:
        """Remove no bindings: they are a broker's."""
        return {}

    def bind(
        self, exchange: str, bound: bool, bindings: Sequence[bytes], queue: str, **_: Any
    ) -> int:
        """Note bindings of *queue*."""
        for binding in bindings if bound else ():
            self.journal.declare("binding", exchange, pack([queue, binding]))
        return 1


class SpoolEncoder(Encoder):
    """Encodes as at the first broker of the list, which is to store it in the end."""

    _away = False


class SpoolPublishing(Publishing):
    """Publishes into the journal."""

    knows_routes = False

    def publish(self, item: Outgoing, properties: dict[str, Any]) -> None:
        """Append *item*; the number of an earlier try at a broker goes with it."""
        if self._is_broadcast(item, properties):
            logger.debug("a broadcast to %r reaches nobody while no broker answers", item.exchange)
            return
        tag = properties.get("delivery_tag")
        self._append([(item, tag if type(tag) is PublishTag else None)])

    def send(
        self, link: Link, entries: Sequence[Entry], redeclare: Callable[[str, Store], bool]
    ) -> NotStored:
        """Append the messages of a publish batch, all or none."""
        del link, redeclare
        self._append([(entry.outgoing, entry.tag) for entry in entries])
        for entry in entries:
            entry.reached = True
        return [], []

    def _append(self, items: Sequence[tuple[Outgoing, PublishTag | None]]) -> None:
        store = cast("SpoolStore", self._transport.link.store)
        for item, _ in items:
            if BATCH in item.headers:
                store.refuse_jobs()
            if item.confirm.level == "replicated":
                raise MessageRefused(
                    f"{store.broker}: a spool cannot confirm that a message is replicated; "
                    "nothing was stored: ask for confirm='fsynced', or publish when a broker "
                    "answers"
                )
        fsync = any(item.confirm.level == "fsynced" for item, _ in items)
        store.journal.add([_spooled(item, tag, store.broker) for item, tag in items], fsync=fsync)
        PUBLISHER.wait_for_replies(*[tag for _, tag in items if tag is not None])

    def _is_broadcast(self, item: Outgoing, properties: dict[str, Any]) -> bool:
        """Whether it is for those who listen now: transient, and to a fanout exchange."""
        routes = self._transport.link.routes
        declared = routes.declared.get(item.exchange) or routes.inherited.get(item.exchange)
        if declared is None:
            return False
        about = unpack(declared)
        transient = properties.get("delivery_mode") == _TRANSIENT or not about.get("durable")
        return transient and about["type"] == "fanout"


def _spooled(item: Outgoing, tag: PublishTag | None, spool: str) -> Spooled:
    """Return what is kept of *item*, with the numbers of a try whose reply was lost."""
    now = int(time() * 1000)
    own = new_tag(item.rank) if tag is None or tag.settled else str(tag)
    route = (item.exchange, item.routing_key, own, item.envelope, item.rank)
    new = Spooled(*route, item.delay_ms, item.ttl_ms, item.create, item.key, now)
    if tag is None or tag.settled:
        return new
    tried, broker = {}, ""
    for queue, known in list(tag.numbers.items()):
        # Tried elsewhere now: this process publishes under another name from here on.
        PUBLISHER.number(tag, queue, item.rank, spool)
        tried[queue], broker = [known.tag, known.number, known.publisher], known.broker
    data = BROKERS.data.get(broker)
    return new._replace(tried=pack(tried), broker=broker, data=data, sent_ms=now)


class SpoolChannel(Channel):
    """A channel that consumes nothing while its transport is at the spool."""

    transport: Transport

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any
    ) -> str:
        """Wait for a broker; what the spool holds is for no consumer."""
        if not self.transport.at_spool:
            return super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        self.transport.waiting.add(consumer_tag)
        return consumer_tag

    def basic_cancel(self, consumer_tag: str, **kwargs: Any) -> None:
        """Wait no more."""
        self.transport.waiting.discard(consumer_tag)
        super().basic_cancel(consumer_tag, **kwargs)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Return None at the spool."""
        return None if self.transport.at_spool else super().basic_get(queue, no_ack, **kwargs)

    def queue_purge(self, queue: str, **kwargs: Any) -> int:
        """Remove nothing from a spool."""
        return 0 if self.transport.at_spool else super().queue_purge(queue, **kwargs)

    def _size(self, queue: str) -> int:
        return 0 if self.transport.at_spool else super()._size(queue)


class Transport(BaseTransport):
    """A journal: ``reliq-spool:////absolute/path.db``, the last URL of a list."""

    default_port = None

    def __init__(self, client: Any, **kwargs: Any) -> None:
        reset_inherited_url(client)
        self.journal = JOURNALS.at(client.virtual_host, parse(client.transport_options))
        self.at_spool = True
        self.waiting: set[str] = set()
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
        self.encoder = SpoolEncoder(self.options, self.declarations, self.failback)
        posting = self.publishing.posting
        self.publishing = SpoolPublishing(self, self.declarations, posting, self.unroutable)

    @property
    def unacked(self) -> bool:
        """Whether the application consumes, or has messages that it has not finished."""
        return bool(self.waiting) or super().unacked

    def move_to(self, other: Link) -> None:
        """Go on over a broker, as any other transport does."""
        super().move_to(other)
        self.at_spool = False
        self.encoder = Encoder(self.options, self.declarations, self.failback)
        posting = self.publishing.posting
        self.publishing = Publishing(self, self.declarations, posting, self.unroutable)

    # -- a consumer's wait

    def _leave_when_due(self) -> None:
        if self.waiting and self.failback.due:
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
        if not self.at_spool:
            super().register_with_event_loop(connection, loop)
            return
        self.unregister_from_event_loop(connection, loop)
        self._timer = loop.call_repeatedly(1.0, self._leave_when_due)

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        """Leave *loop*."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        if not self.at_spool:
            super().unregister_from_event_loop(connection, loop)


Transport.Channel = SpoolChannel
