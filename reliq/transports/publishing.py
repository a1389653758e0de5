"""Publishing: one message into every queue it is routed to, once, and confirmed."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .. import transports
from ..errors import BrokerRefused, BrokerUnavailable, NotFound, ReliqError
from ..integrations.celery import WATCH
from ..integrations.outcomes import BATCH
from ..message.delivery_tag import rename
from ..routing.publish_ids import PUBLISHER, PublishTag
from ..routing.routes import ROUTE_TRIES
from ..signals import emit_published, message_published
from ..store.values import NO_QUEUE, STALE
from .outgoing import publications, publish, refuse_full, see_to_created, stored_of
from .sending import send

if TYPE_CHECKING:
    from ..store.values import Publication
    from .declarations import Declarations
    from .job_entries import JobEntry
    from .outgoing import Outgoing
    from .parts import Parts
    from .posting import Posting
    from .unroutable import UnroutableMessages

logger = logging.getLogger("reliq")


class Publishing:
    """What channels publish, over one transport."""

    knows_routes = True
    """Whether the bindings of the broker can be asked for."""

    send = staticmethod(send)

    def __init__(
        self,
        transport: Parts,
        declarations: Declarations,
        posting: Posting,
        unroutable: UnroutableMessages,
    ) -> None:
        self._transport = transport
        self._declarations = declarations
        self.posting = posting
        self._unroutable = unroutable

    def publish(self, item: Outgoing, properties: dict[str, Any]) -> None:
        """Store *item*, once for each queue, and wait until it is as safe as it asks for.

        *properties* are those of the message it was made of. They keep its number: a retry with
        the same ones is the same publish. Raises as ``Channel.basic_publish`` does.
        """
        self._declarations.settle(item.exchange)
        tag = properties.get("delivery_tag")
        if type(tag) is not PublishTag or tag.settled:
            tag = properties["delivery_tag"] = PUBLISHER.tag(item.rank, job=BATCH in item.headers)
        if BATCH in item.headers:
            self._publish_job(item, properties, tag)
            return
        try:
            self._publish(item, properties, tag)
        except BrokerRefused as exc:
            # A worker that connects asks its neighbours (mingle). A full memory must not end it:
            # it is the worker that makes room.
            asks = item.exchange.endswith(".pidbox") and WATCH.connects
            if not (asks and "OOM" in exc.reply):
                raise
            logger.warning("%s; this worker goes on without an answer of its neighbours", exc)

    def _publish_job(self, item: Outgoing, properties: dict[str, Any], tag: PublishTag) -> None:
        """Publish a job: it is in its batch before, and taken out again if it was not stored."""
        link = self._transport.link
        queue = item.routing_key
        if item.exchange:
            queue = next(iter(link.routes.cached(item.exchange).lookup(queue)), queue)
        entry, entered = transports.entry_of(item, str(tag), queue), False
        try:
            if entry is not None:
                self._enter(entry)
            entered = True
            is_stored = self._publish(item, properties, tag)
        except BrokerUnavailable:
            rename()  # it may be stored, or be tried again
            raise
        except ReliqError:
            if entry is not None and entered:
                transports.withdraw(self._transport.link.store, (entry,))
            raise
        except BaseException:
            rename()  # an interrupt
            if entry is not None and not (entered or tag.numbers):
                with suppress(ReliqError):
                    transports.withdraw(self._transport.link.store, (entry,))
            raise
        if entry is not None and not is_stored:  # no queue takes it, and it was dropped
            transports.withdraw(self._transport.link.store, (entry,))

    def _enter(self, entry: JobEntry) -> None:
        """Enter a job; raises as :func:`enter` does.

        But for the next try of one whose batch is not here: Celery makes a dead letter of a task
        whose next try cannot be published. BrokerUnavailable where the connection may go to where
        it is: Kombu tries again. Else it is published without, as its message ran without.
        """
        batch, change = entry
        try:
            transports.enter(self._transport.link.store, (entry,))
        except NotFound as exc:
            if not change.retries:
                raise
            if not self._transport.failback.stays:
                raise BrokerUnavailable(
                    f"batch {batch!r} is not at {self._transport.link.store.broker}: the next try "
                    "of its job is published where it is, at another broker of the list; nothing "
                    "was stored"
                ) from exc

    def _publish(self, item: Outgoing, properties: dict[str, Any], tag: PublishTag) -> bool:
        """Publish *item*; return whether it is known to be stored: what is only posted is not."""
        link = self._transport.link  # after the tag: in a forked child that makes the link anew
        confirm, redeclare = item.confirm, self._declarations.redeclare
        stored: list[Publication] = []
        if not item.exchange:
            queues = (item.routing_key,)
            # A job's tag is known to its batch before, which has waited for its broker anyway.
            if confirm.level == "none" and BATCH not in item.headers:
                # Not tried again once it is sent, so without a number: whatever is sent once more
                # (Redis has forgotten the script) would come after later numbers, and be refused.
                self.posting.post(item, publications(item, queues, None, link.store))
            else:
                confirm.require(link.store)
                items, outcomes = publish(link.store, item, queues, tag)
                see_to_created(link.store, items, outcomes, redeclare)
                refuse_full(items, outcomes)
                stored = stored_of(items, outcomes)
                if not stored:
                    self._unroutable.report("", item.routing_key)
                confirm.wait(link.store, stored)
        elif BATCH not in item.headers and self.posting.is_for(item, properties):
            self.posting.post(item)
        else:
            confirm.require(link.store)
            stored = self._publish_routed(item, tag)
            confirm.wait(link.store, stored)
        PUBLISHER.wait_for_replies(tag)
        if message_published.receivers:
            emit_published(link.store.broker, stored, item.headers, item.routing_key)
        return bool(stored)

    def _publish_routed(self, item: Outgoing, tag: PublishTag) -> list[Publication]:
        """Publish by the cached route; the broker refuses it if the bindings have changed.

        Returns what is stored, now or by an earlier try: once for each queue.
        """
        link = self._transport.link
        exchange, routing_key = item.exchange, item.routing_key
        route = link.routes.cached(exchange)
        stored: dict[str, Publication] = {}
        for _ in range(ROUTE_TRIES):
            queues = route.lookup(routing_key)
            if queues:
                items, outcomes = publish(link.store, item, queues, tag, route.version or b"")
                stored.update({one.queue: one for one in stored_of(items, outcomes)})
                refuse_full(items, outcomes)
                missing = [q for q, got in zip(queues, outcomes, strict=True) if got == NO_QUEUE]
                # One that this connection declared and the broker lost comes back.
                redeclare = self._declarations.redeclare
                again = [queue for queue in missing if redeclare(queue, link.store)]
                if STALE not in outcomes and not again:
                    break
            elif route.version == link.store.bindings_version(exchange) is not None:
                break
            route = link.routes.refresh(exchange)
            if route.version is None:
                break
        if not stored:
            self._unroutable.report(exchange, routing_key)
        return list(stored.values())
