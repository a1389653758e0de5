"""Publishing: store one message in every queue of its route, once, and confirm it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ... import transports
from ...consumer.host import HOST
from ...errors import BrokerRefused, BrokerUnavailable, NotFound, QueueFull, ReliqError, logger
from ...message.delivery_tag import rename
from ...routing.publish_ids import PUBLISHER, PublishTag
from ...routing.sending import send
from ...signals import emit_published, message_published
from ...values.job_headers import BATCH
from ...values.limits import LOG_BYTES
from ...values.values import FULL
from .posting import TRANSIENT, Posting, UnroutableMessages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...batches.entries import JobEntry
    from ...options import Options
    from ...routing.outgoing import Outgoing
    from ..declarations import Declarations
    from ..failback import Failback
    from ..link import Link


@dataclass(eq=False)
class Publishing:
    """Publishes for the channels of one transport."""

    knows_routes = True
    """Whether the bindings of the broker can be read."""

    _link: Link
    _options: Options
    _declarations: Declarations
    _failback: Failback

    def __post_init__(self) -> None:
        """Start with nothing posted."""
        self.unroutable = UnroutableMessages(self._link, self._options)
        self.posting = Posting(self._link, self.unroutable)

    def publish(self, item: Outgoing, properties: dict[str, Any]) -> None:
        """Store *item*, once for each queue, and wait for its confirmation.

        *properties* are those of the original message. They keep its publish number: a retry with
        the same properties is the same publish. Raises as ``Channel.basic_publish`` does.
        """
        if self._declarations.owed:
            self._declarations.settle(item.exchange)
        tag = properties.get("delivery_tag")
        is_job = BATCH in item.headers
        if type(tag) is not PublishTag or not tag.numbers:  # otherwise this is a retry
            tag = properties["delivery_tag"] = PUBLISHER.tag(item.rank, item.headers)
        if item.exchange and properties.get("delivery_mode") == TRANSIENT:
            plain = item.confirm.by_storing and not item.delay_ms and item.ttl_ms < 0
            item.transient = plain and len(item.envelope) <= LOG_BYTES
        # A job's tag is recorded in its batch first, which waits for the broker anyway.
        may_post = (item.exchange or item.confirm.level == "none") and not is_job
        if may_post and self.posting.is_for(item, properties):
            self.posting.post(item)
            return
        item.tag = tag
        try:
            if is_job:
                self._publish_job(item, tag)
            else:
                self._publish(item, tag)
        except BrokerRefused as exc:
            # A worker queries other workers when it connects (mingle). A full memory must not
            # stop it, because workers free memory.
            asks = item.exchange.endswith(".pidbox") and HOST.connects()
            if not (asks and exc.passes):
                raise
            logger.warning("%s; this worker continues without replies of other workers", exc)

    def _publish_job(self, item: Outgoing, tag: PublishTag) -> None:
        """Publish a job: add it to its batch first, and withdraw it if it was not stored."""
        link = self._link  # after the tag: creating one renews the link in a forked child
        entry, entered = transports.entry_of(item, link.routes), False
        try:
            if entry is not None:
                self._enter(entry)
            entered = True
            self._publish(item, tag)
        except BrokerUnavailable:
            rename()  # it may be stored, or retried
            raise
        except ReliqError:
            if entry is not None and entered:
                transports.withdraw(link.store, (entry,))
            raise
        except BaseException:
            rename()  # an interrupt
            if entry is not None and not (entered or tag.numbers):
                with suppress(ReliqError):
                    transports.withdraw(link.store, (entry,))
            raise
        if entry is not None and not item.stored:  # no queue is bound, and it was dropped
            transports.withdraw(link.store, (entry,))

    def _enter(self, entry: JobEntry) -> None:
        """Add a job to its batch; raises as :func:`enter` does, but not NotFound for a retry.

        Celery dead-letters a task whose retry cannot be published. If the batch may be at another
        broker of the list, raises BrokerUnavailable, and Kombu tries that broker. Otherwise, the
        retry is published without a batch, like the previous run of its message.
        """
        batch, change = entry
        store = self._link.store
        try:
            transports.enter(store, (entry,))
        except NotFound as exc:
            if not change.retries:
                raise
            if not self._failback.stays:
                raise BrokerUnavailable(
                    f"batch {batch!r} is not at {store.broker}: the retry of its job is published "
                    "at the broker of the batch, another one of the list; nothing "
                    "was stored"
                ) from exc

    def _publish(self, item: Outgoing, tag: PublishTag) -> None:
        link = self._link
        send(link.store, link.routes, (item,), self._declarations.redeclare)
        if item.refused or not item.stored:
            if item.full:
                full = ", ".join(repr(queue) for queue, why in item.refused.items() if why == FULL)
                also = ", ".join(map(repr, item.stored))
                raise QueueFull(
                    f"queue {full} has reached its x-max-length or x-max-length-bytes and was "
                    "declared with x-overflow 'reject-publish': the message was not stored in "
                    f"it{also and '; it was stored in '}{also}. Add consumers, raise the limit, "
                    "or publish later"
                )
            if not item.stored:
                self.unroutable.report(item.exchange, item.routing_key)
        PUBLISHER.settle(tag)
        if message_published.receivers:
            self.emit_stored(item)

    def send(self, items: Sequence[Outgoing], link: Link | None = None) -> None:
        """Store *items* over *link*; each records its outcome."""
        link = link or self._link
        send(link.store, link.routes, items, self._declarations.redeclare)

    def emit_stored(self, item: Outgoing) -> None:
        """Send the signal for the stored copies of *item*."""
        if item.stored:
            broker, stored = self._link.store.broker, list(item.stored.values())
            emit_published(broker, stored, item.headers, item.routing_key)


class Recoverable:
    """An attribute of a transport's class, and of each transport.

    OperationalError is excluded: Kombu raises it after the last connection attempt that a policy
    allows, and would repeat the whole policy. However, Kombu also raises it after the last attempt
    within connect_timeout, whatever the policy allows. So a policy lifts this limit. Kombu
    writes the policy into the transport options, and reads this attribute when a publish with
    retries starts.

    Without a policy, Kombu retries forever, logs nothing, and cannot be stopped. A starting Celery
    worker would then wait for a lost node although others answer. In this case, the attribute does
    not exist, and Kombu retries only once before it raises.
    """

    def __init__(self, errors: tuple[type[Exception], ...]) -> None:
        self._errors = errors

    def __get__(self, transport: Any, owner: Any) -> tuple[type[Exception], ...]:
        """Return the errors, and lift the limit if there is a policy."""
        client = None if transport is None else transport.client
        if client is not None:
            if "max_retries" in client.transport_options:
                client.transport_options.setdefault("connect_retries_timeout", None)
            elif transport.link.store.has_nodes and HOST.begins():
                raise AttributeError("no errors after which a starting worker retries forever")
        return self._errors
