"""Posting: publish messages without waiting for replies, so that event loops keep running.

Errors are logged later; each outage is logged once. The rules are those of
:mod:`...routing.sending`. Work required by a reply is deferred until the reply has been read.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ...consumer.host import HOST
from ...consumer.runner import Runner
from ...errors import ReliqError, Unroutable, logger
from ...lazy import Lazy
from ...message.queue_names import queue_of
from ...routing.spread import redirected
from ...signals import emit_published, message_published
from ...values.limits import MOST_REMEMBERED
from ...values.protocol import NODE_PATIENCE_S, Attempt
from ...values.values import DUPLICATE, FULL, NO_QUEUE, STALE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ...options import Options
    from ...routing.outgoing import Outgoing
    from ...values.protocol import Store
    from ...values.values import ExchangeTable, Publication
    from ..link import Link


TRANSIENT = 1
"""AMQP's delivery mode of messages that need not be stored."""


class Posting:
    """Writes messages to the socket of one transport; replies are read when they arrive."""

    def __init__(self, link: Link, unroutable: UnroutableMessages) -> None:
        self._link = link
        self._unroutable = unroutable
        self._lost_posts = LostPosts(link)

    used = False
    """Whether it has posted a message; only then there are duties."""

    @Lazy
    def duties(self) -> Runner:
        """Work required by replies, which cannot be done while they are read."""
        return Runner(raises=True)

    def is_for(self, item: Outgoing, properties: dict[str, Any]) -> bool:
        """Whether *item* needs no reply: by its options, or as a worker's own event.

        A worker sends events and heartbeats from the event loop, which must keep running while
        the broker does not answer. They are transient and go to a fanout exchange. Other
        messages, other processes, and messages with an explicit ``confirm`` wait for the reply.
        """
        if item.confirm.level == "none":
            return True
        return (
            bool(item.exchange)
            and HOST.worker()
            and properties.get("confirm") is None
            and properties.get("delivery_mode") == TRANSIENT
            and self._link.routes.cached(item.exchange).type == "fanout"
        )

    def post(self, item: Outgoing) -> None:
        """Post *item*; raises BrokerUnavailable for a lost connection.

        It has no number, because it is not retried after it is sent. A copy sent again, because
        Redis has lost the script, would follow higher numbers, and be refused.
        """
        store = self._link.store
        store.receive()
        store.check()
        self.used = True
        self.do_duties()
        self._post(item)

    def do_duties(self) -> None:
        """Do the work that replies require."""
        if self.used:
            self.duties.begin()
            self.duties.run(self._link.store)

    def _post(self, item: Outgoing, _: Store | None = None) -> None:
        """Post the copies that no queue has stored or refused yet."""
        link = self._link  # a duty may have failed back
        route = self._route(item)
        if route is None:
            return
        queues, version = route
        made = [
            item.publication(queue, link.store, version)
            for queue in queues
            if queue not in item.stored and queue not in item.refused
        ]
        if made:
            link.store.post_publish(made, partial(self._posted, item, made))
        elif item.exchange:  # no binding is known
            answer = partial(self._on_version, item, version)
            link.store.post_bindings_version(item.exchange, answer)

    def _on_version(self, item: Outgoing, known: bytes, version: bytes | ReliqError | None) -> None:
        if version != (known or None) and not isinstance(version, ReliqError):
            self.duties.soon(self._post_rest, "", item)

    def _post_rest(self, item: Outgoing, _: Store) -> None:
        """Post *item* by the current bindings to the remaining queues.

        The bindings are requested without waiting: the broker may have become unreachable.
        """
        self._link.store.post_exchange_table(item.exchange, partial(self._on_table, item))

    def _on_table(self, item: Outgoing, table: ExchangeTable | ReliqError) -> None:
        if isinstance(table, ReliqError):
            self._lost_posts.unrouted(item.exchange, table)
        else:
            self.duties.soon(self._go_on, "", item, table)

    def _go_on(self, item: Outgoing, table: ExchangeTable, _: Store) -> None:
        self._link.routes.learn(item.exchange, table)
        self._post(item)

    def _route(self, item: Outgoing) -> tuple[tuple[str, ...], bytes] | None:
        """Return the route of *item*; None if one of several nodes does not answer.

        Limits the wait, because an event loop must keep running.
        """
        link = self._link
        if not item.exchange:
            return item.route(link.routes)
        with Attempt(link.store, NODE_PATIENCE_S) as attempt:
            queues = item.route(link.routes)
        if attempt.lost is not None:
            self._lost_posts.unrouted(item.exchange, attempt.lost)
            return None
        self._lost_posts.routed(item.exchange)
        return queues

    def _posted(
        self, item: Outgoing, made: list[Publication], outcomes: list[int] | ReliqError
    ) -> None:
        # Publish nothing here: the connection is locked while a reply is read.
        queues = [sent.queue for sent in made]
        if isinstance(outcomes, ReliqError):
            self._lost_posts.lost(queues, outcomes)
            return
        self._lost_posts.arrived(queues)
        broker = self._link.store.broker
        next_step = None
        for sent, outcome in zip(made, outcomes, strict=True):
            if not item.note(sent, outcome):
                next_step = self._next_step(item, sent, outcome) or next_step
        if next_step is not None:
            self.duties.soon(next_step, "", item)
        full = [queue for queue, got in zip(queues, outcomes, strict=True) if got == FULL]
        if full:
            logger.warning("a message published without confirmation is lost: full: %s", full)
        if message_published.receivers:
            pairs = zip(made, outcomes, strict=True)
            stored = [sent for sent, outcome in pairs if outcome >= DUPLICATE]
            self.duties.soon(self._emit, "", broker, stored, item)

    @staticmethod
    def _emit(broker: str, stored: list[Publication], item: Outgoing, _: Store) -> None:
        emit_published(broker, stored, item.headers, item.routing_key)

    def _next_step(
        self, item: Outgoing, sent: Publication, outcome: int
    ) -> Callable[[Outgoing, Store], None] | None:
        """Return the step that posts *item* again, if the outcome of this copy requires one."""
        queue = queue_of(sent.queue)
        if outcome == STALE:
            return self._post_rest
        if redirected(sent.queue, outcome):
            # The partition is closed; the queue's own partition always accepts messages.
            self._link.store.partitions.pop(queue, None)
            item.spreads = False
            return self._post
        item.refused[queue] = NO_QUEUE
        if not item.exchange:
            self.duties.soon(self._report, "", item)
        return None

    def _report(self, item: Outgoing, _: Store) -> None:
        self._unroutable.report("", item.routing_key)


class LostPosts:
    """Places where messages of one transport may have been lost, and none has arrived since.

    Belongs to the threads that read replies: two at the same time may report one loss twice.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._reported: set[str] = set()

    def lost(self, queues: Iterable[str], error: ReliqError) -> None:
        """Record a possible loss of a message to *queues*; names those with unreachable nodes.

        If no node is unreachable, names all of *queues*, unless one was already reported.
        """
        names = set(queues)
        store = self._link.store
        unreachable = {queue for queue in names if store.is_unreachable(queue)}
        if unreachable or self._reported.isdisjoint(map(repr, names)):
            self._warn({repr(queue) for queue in unreachable or names}, error)

    def unrouted(self, exchange: str, error: ReliqError) -> None:
        """Record that a message was lost because the route of *exchange* was unavailable."""
        self._warn({f"the queues of exchange {exchange!r}"}, error)

    def _warn(self, places: set[str], error: ReliqError) -> None:
        if places <= self._reported:
            return
        if len(self._reported) > MOST_REMEMBERED:
            self._reported.clear()
        self._reported |= places
        logger.warning(
            "messages published without confirmation may be lost on their way to %s: %s. Further "
            "losses are not logged until a message has arrived",
            ", ".join(sorted(places)),
            error,
        )

    def arrived(self, queues: Iterable[str]) -> None:
        """Record that *queues* stored or refused a message."""
        if self._reported:
            self._end({repr(queue) for queue in queues})

    def routed(self, exchange: str) -> None:
        """Record that the route of *exchange* is available."""
        if self._reported:
            self._end({f"the queues of exchange {exchange!r}"})

    def _end(self, places: set[str]) -> None:
        back = self._reported & places
        if back:
            self._reported -= back
            logger.info(
                "messages published without confirmation arrive again: %s", ", ".join(sorted(back))
            )


# Reported broker, exchange and routing key, over all connections of this process.
_reported: set[tuple[str, str, str]] = set()


class UnroutableMessages:
    """Reports messages without a bound queue. Application threads use it, in single steps."""

    def __init__(self, link: Link, options: Options) -> None:
        self._link = link
        self._options = options

    def report(self, exchange: str, routing_key: str) -> None:
        """Log once that such messages have no queue, or raise Unroutable by the options."""
        if exchange:
            what = f"no queue is bound to exchange {exchange!r} for routing key {routing_key!r}"
        else:
            what = f"there is no queue {routing_key!r}, and such a message does not create one"
        if self._options.unroutable == "error":
            raise Unroutable(f"{what}; the message was not stored")
        store, routes = self._link.store, self._link.routes
        late_reply = exchange.startswith("reply.") and exchange.endswith(".pidbox")
        if late_reply or (exchange and routes.cached(exchange).type == "fanout"):
            return  # normal: the requester no longer waits, or there is no listener
        if (place := (store.broker, exchange, routing_key)) not in _reported:
            if len(_reported) > MOST_REMEMBERED:
                _reported.clear()
            _reported.add(place)
            logger.warning(
                "%s: such messages are "
                'dropped, as in AMQP (logged once; unroutable="error" raises Unroutable)',
                what,
            )
