"""``reliq-spool://``: used by a publisher while no broker of its list answers.

The journal accepts publishes and declarations only. When a broker answers, the next publish moves
the transport to it in place. Consumers connect again then; Celery workers wait for a broker.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from time import sleep, time
from typing import TYPE_CHECKING, Any, cast

from ..consumer.host import HOST
from ..consumer.sessions import Endpoint
from ..errors import BrokerRefused, BrokerUnavailable, ConfigurationError, MessageRefused
from ..failover.brokers import BROKERS
from ..message.delivery_tag import new_tag
from ..message.envelope import pack, unpack
from ..message.queue_arguments import is_durable
from ..routing.publish_ids import PUBLISHER, PublishTag
from ..spool.journal import JOURNALS
from ..values.job_headers import BATCH
from ..values.values import Attached, ExchangeTable, QueueDeclared, QueueDeleted
from .base import Transport as BaseTransport
from .base import options_of
from .broker_urls import reset_inherited_url
from .channel import Channel
from .consume.consumers import Consumers
from .publish.publishing import Publishing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..consumer.sessions import StoreFactory
    from ..routing.outgoing import Outgoing
    from ..spool.journal import Journal
    from .consume.subscription import Subscription
    from .link import Link

_TRANSIENT = 1
_POLL_EVERY_S = 0.5


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


class SpoolStore:
    """A connection to a spool: records declarations, and refuses all other operations."""

    epoch = 1
    waiting = has_nodes = has_partitions = keeps_long = False
    alive = True
    connected_at = 0.0

    def __init__(self, journal: Journal, consumer: str) -> None:
        self.journal = journal
        self.consumer = consumer
        self.broker = str(journal)
        self.partitions: dict[str, int] = {}
        self.notifier = self
        self.close = journal.close

    def connect(self) -> None:
        """Check the file; a Celery worker with an unusable one waits for a broker, too."""
        self._use(self.journal.check)

    @staticmethod
    def _use(do: Callable[..., None], *arguments: Any) -> None:
        try:
            do(*arguments)
        except (BrokerRefused, ConfigurationError) as exc:
            if HOST.serves():  # any other error would end it
                raise BrokerUnavailable(str(exc)) from exc
            raise

    def __getattr__(self, name: str) -> Any:
        """Refuse all other methods of a store: they need a broker, and none answers."""
        refused = MessageRefused if name == "batches" else BrokerUnavailable
        raise refused(
            f"{self.broker}: a spool only accepts publishes: {name} must wait for a broker, and so "
            "must a job of a batch; nothing was stored"
        )

    # Used by connecting, declaring and closing with any store.
    require_writable = wait_for_replies = forget_publishers = probe = layout = wake = _always(None)
    is_unreachable = _always(False)
    attached = _always(Attached(temporary=False, marks={}))
    exchange_table = _always(ExchangeTable(b"", b"1", frozenset()))
    delete_queue = _always(QueueDeleted("missing", 0))
    patience = _always(nullcontext())

    def declare_exchange(self, exchange: str, declaration: bytes) -> bytes:
        """Record an exchange."""
        self._use(self.journal.declare, "exchange", exchange, declaration)
        return declaration

    def declare_queue(
        self, queue: str, passive: bool, arguments: bytes, meta: dict[str, str]
    ) -> QueueDeclared:
        """Record a durable queue; a passive declaration always succeeds."""
        if not passive and is_durable(meta):
            self._use(self.journal.declare, "queue", queue, pack([arguments, meta]))
        return QueueDeclared("existed", 0, 0, arguments)

    def bind(
        self, exchange: str, bound: bool, bindings: Sequence[bytes], queue: str, **_: Any
    ) -> int:
        """Record bindings of *queue*."""
        for binding in bindings if bound else ():
            self._use(self.journal.declare, "binding", exchange, pack([queue, binding]))
        return 1


class SpoolPublishing(Publishing):
    """Publishes into the journal."""

    knows_routes = False

    def publish(self, item: Outgoing, properties: dict[str, Any]) -> None:
        """Append *item*, with its publish number of an earlier attempt at a broker."""
        tag, routes = properties.get("delivery_tag"), self._link.routes
        declared = routes.declared.get(item.exchange) or routes.inherited.get(item.exchange)
        about = unpack(declared) if declared else {"type": ""}
        transient = properties.get("delivery_mode") == _TRANSIENT or not about.get("durable")
        if about["type"] != "fanout" or not transient:  # otherwise only for current listeners
            item.tag = tag if type(tag) is PublishTag else None
            self.send((item,))

    def send(self, items: Sequence[Outgoing], link: Link | None = None) -> None:
        """Append messages. Atomic."""
        del link
        journal = cast("SpoolStore", self._link.store).journal
        levels = {item.confirm.level for item in items}
        if "replicated" in levels or any(BATCH in item.headers for item in items):
            raise MessageRefused(
                f"{journal}: a spool accepts no job of a batch, and cannot confirm that a message "
                "is replicated; nothing was stored: publish when a broker answers"
            )
        rows = []
        for item in items:
            tag, now, broker, tried = item.tag, int(time() * 1000), None, {}
            for queue, known in list(tag.numbers.items()) if tag is not None else ():
                # Tried elsewhere; this process publishes under another name from now on.
                PUBLISHER.number(cast("PublishTag", tag), queue, str(journal))
                tried[queue], broker = (known.tag, known.number, known.publisher), known.broker
            own = str(tag) if tried else new_tag(item.rank, item.headers)
            times = (item.delay_left_ms, item.ttl_ms)
            kept = pack([own, item.envelope, item.rank, *times, item.create, item.key, tried])
            sent = (broker, BROKERS.data.get(broker or ""), now if tried else None)
            rows.append((item.exchange, item.routing_key, now, kept, *sent))
        journal.add(rows, self._options.spool_max, fsync="fsynced" in levels)
        for item in items:
            item.spooled = True
        PUBLISHER.settle(*[item.tag for item in items if item.tag is not None])


class SpoolConsumers(Consumers):
    """Consumes nothing: a spool delivers no messages."""

    def add(self, subscription: Subscription) -> None:
        """Raise BrokerUnavailable; for a starting Celery worker, wait for a broker first."""
        subscription.ended()
        failback = self._failback
        while failback.url == failback.spool and not failback.due:
            if HOST.stopping() or not HOST.connects():
                break
            sleep(_POLL_EVERY_S)
        raise BrokerUnavailable(
            f"{failback.spool}: a spool delivers no messages: consumers must wait for a broker"
        )


class Transport(BaseTransport):
    """A journal: ``reliq-spool:////absolute/path.db``, the last URL of a list."""

    Channel = Channel
    Consumers = SpoolConsumers
    publishing_class = SpoolPublishing
    default_port = None

    @classmethod
    def endpoint_of(cls, client: Any) -> Endpoint:
        """Return the journal that a Kombu connection names."""
        reset_inherited_url(client)
        options, journal = options_of(client), JOURNALS.at(client.virtual_host)
        return Endpoint(
            key=(journal.path, options),
            options=options,
            open_store=cast("StoreFactory", partial(SpoolStore, journal)),
            address=journal,
        )

    def establish_connection(self) -> BaseTransport:
        """Connect; raises ConfigurationError for a spool without brokers."""
        if not self.failback.urls:
            raise ConfigurationError(
                f"{self.address} is a spool, which must be the last of a list of brokers: "
                "broker_url=['reliq://...', 'reliq-spool:///...']; to work without a server, use "
                "reliq-embedded:///"
            )
        return super().establish_connection()

    def move_to(self, endpoint: Endpoint) -> None:
        """Switch to a broker; consumers connect again."""
        super().move_to(endpoint)
        self.publishing = self._publish_by(Publishing)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Do nothing, because nothing is consumed."""
