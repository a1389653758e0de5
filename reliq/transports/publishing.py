"""Publishing: one message of a channel, into every queue it is routed to, once, and confirmed."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import transports
from ..errors import BrokerRefused, BrokerUnavailable, NotFound, QueueFull, ReliqError, logger
from ..integrations.celery import WATCH
from ..integrations.outcomes import BATCH
from ..message.delivery_tag import rename
from ..routing.publish_ids import PUBLISHER, PublishTag
from ..routing.sending import send
from ..signals import emit_published, message_published
from ..store.values import FULL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..routing.outgoing import Outgoing
    from .declarations import Declarations
    from .failback import Failback
    from .jobs import JobEntry
    from .link import Link
    from .posting import Posting, UnroutableMessages


@dataclass(eq=False)
class Publishing:
    """The publishes of channels, over one transport."""

    knows_routes = True
    """Whether the bindings of the broker can be asked for."""

    _link: Link
    _declarations: Declarations
    _failback: Failback
    posting: Posting
    _unroutable: UnroutableMessages

    def publish(self, item: Outgoing, properties: dict[str, Any]) -> None:
        """Store *item*, once for each queue, and wait until it is as safe as it asks for.

        *properties* are those of the message it was made of. They keep its number: a retry with
        the same ones is the same publish. Raises as ``Channel.basic_publish`` does.
        """
        if self._declarations.owed:
            self._declarations.settle(item.exchange)
        tag = properties.get("delivery_tag")
        is_job = BATCH in item.headers
        if type(tag) is not PublishTag or not tag.numbers:  # else it is tried again
            tag = properties["delivery_tag"] = PUBLISHER.tag(item.rank, job=is_job)
        # A job's tag is known to its batch before, which has waited for its broker anyway.
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
            # A worker that connects asks its neighbours (mingle). A full memory must not end it:
            # it is the worker that makes room.
            asks = item.exchange.endswith(".pidbox") and WATCH.connects
            if not (asks and "OOM" in exc.reply):
                raise
            logger.warning("%s; this worker goes on without an answer of its neighbours", exc)

    def _publish_job(self, item: Outgoing, tag: PublishTag) -> None:
        """Publish a job: it is in its batch before, and taken out again if it was not stored."""
        link = self._link  # after the tag: in a forked child that makes the link anew
        entry, entered = transports.entry_of(item, link.routes), False
        try:
            if entry is not None:
                self._enter(entry)
            entered = True
            self._publish(item, tag)
        except BrokerUnavailable:
            rename()  # it may be stored, or be tried again
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
        if entry is not None and not item.stored:  # no queue takes it, and it was dropped
            transports.withdraw(link.store, (entry,))

    def _enter(self, entry: JobEntry) -> None:
        """Enter a job; raises as :func:`enter` does.

        But for the next try of one whose batch is not here: Celery makes a dead letter of a task
        whose next try cannot be published. BrokerUnavailable where the connection may go to where
        it is: Kombu tries again. Else it is published without, as its message ran without.
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
                    f"batch {batch!r} is not at {store.broker}: the next try "
                    "of its job is published where it is, at another broker of the list; nothing "
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
                self._unroutable.report(item.exchange, item.routing_key)
        PUBLISHER.wait_for_replies(tag)
        if message_published.receivers:
            self.emit_stored(item)

    def send(self, items: Sequence[Outgoing], link: Link | None = None) -> None:
        """Store *items* over *link*; each notes what became of it."""
        link = link or self._link
        send(link.store, link.routes, items, self._declarations.redeclare)

    def emit_stored(self, item: Outgoing) -> None:
        """Send the signal for the copies of *item* that are stored."""
        if item.stored:
            broker, stored = self._link.store.broker, list(item.stored.values())
            emit_published(broker, stored, item.headers, item.routing_key)


class Recoverable:
    """An attribute of a transport's class, and of each transport.

    OperationalError is not one: Kombu makes it of the last try to connect that a policy
    allows, and would begin with the whole policy again. But Kombu makes it also of the last
    one within connect_timeout, whatever the policy allows. So that is to be no limit where
    there is a policy. Kombu writes the policy into the transport options, and asks the
    transport for this attribute, as a publish with retries begins.

    Where there is none, Kombu tries for ever, says nothing, and lets nobody end it. A Celery worker
    that begins would wait so for a node that is lost, where others answer. It is told then that
    the transport cannot tell which errors these are: Kombu tries once more, and raises.
    """

    def __init__(self, errors: tuple[type[Exception], ...]) -> None:
        self._errors = errors

    def __get__(self, transport: Any, owner: Any) -> tuple[type[Exception], ...]:
        """Return the errors, and lift the limit where there is a policy."""
        client = None if transport is None else transport.client
        if client is not None:
            if "max_retries" in client.transport_options:
                client.transport_options.setdefault("connect_retries_timeout", None)
            elif transport.link.store.has_nodes and WATCH.begins:
                raise AttributeError("no errors after which a worker that begins tries for ever")
        return self._errors
