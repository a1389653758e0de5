"""Rerouting: dead letters of queues that were declared with ``x-dead-letter-exchange``.

They are routed on as RabbitMQ does, with the header ``x-death``, by a background loop: once a
pass, and soon after a reject. Until then, and where no queue is bound for them, they
are dead letters of their queue like any other.
"""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from ..message.envelope import encode
from ..routing.routes import Routes
from ..routing.sending import send
from .numbered import move_all, outgoing, pages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..message.envelope import Envelope
    from ..store.inspection import DeadLetter
    from ..store.protocol import Store
    from ..store.values import Move

logger = logging.getLogger("reliq")

_STUCK_S = 60.0
_LONGEST_S = 960.0


class _Stuck(NamedTuple):
    """Dead letters of one queue that could not be routed when they were looked at last."""

    until: float
    """When they are tried again, all of them (this process's monotonic clock)."""
    pause_s: float
    version: bytes | None
    """Of the exchange's bindings then: others may have a queue for them."""
    newest_ms: int
    """When the latest of them died."""
    newest: frozenset[str]
    """The tags of those that died then."""


class DeadLetterRouter:
    """Routes dead letters on, for one session."""

    def __init__(self) -> None:
        self._stuck: dict[str, _Stuck] = {}

    def route(self, queue: str, store: Store) -> None:
        """Route the dead letters of *queue* on, oldest first; waits for the broker.

        Each is stored once in every queue it is routed to, whoever is killed meanwhile.
        Those that could not be routed are left alone for a while, and not read again before.
        """
        status = store.reads.status(queue)
        arguments = status.declared if status is not None else {}
        exchange = arguments.get("x-dead-letter-exchange")
        before = self._stuck.pop(queue, None)
        if exchange is None:
            return
        routing_key = arguments.get("x-dead-letter-routing-key")
        version = store.bindings_version(exchange) if exchange else None
        known = before
        if before is not None and (monotonic() >= before.until or before.version != version):
            known = None
        newest_ms, newest = (known.newest_ms, set(known.newest)) if known else (0, set[str]())
        routes = Routes(store)
        stuck = 0
        for dead_letters in pages(store, queue, True, newest_ms, newest):
            step = _Step(store, routes, queue, exchange, routing_key, dead_letters)
            step.take()
            stuck += len(step.stuck)
            left = [dead_letter for dead_letter in dead_letters if dead_letter.tag in step.stuck]
            if left and left[-1].died_ms > newest_ms:
                newest_ms, newest = left[-1].died_ms, set()
            newest.update(
                dead_letter.tag for dead_letter in left if dead_letter.died_ms == newest_ms
            )
        if known is None and not stuck:
            return
        pause_s = _pause_s(before, version) if known is None else known.pause_s
        until = monotonic() + pause_s if known is None else known.until
        self._stuck[queue] = _Stuck(until, pause_s, version, newest_ms, frozenset(newest))
        if stuck:
            logger.warning(
                "%d dead letters of %r stay there: exchange %r has no queue for them, they came "
                "round in a circle, or they cannot be read; tried again in %.3g s, or when "
                "something is bound",
                stuck,
                queue,
                exchange,
                max(until - monotonic(), 0.0),
            )


def _pause_s(before: _Stuck | None, version: bytes | None) -> float:
    """Return for how long to leave them alone: longer each time that nothing has changed."""
    if before is None or before.version != version:
        return _STUCK_S
    return min(2 * before.pause_s, _LONGEST_S)


class _Step:
    """Some dead letters of one queue on their way."""

    def __init__(
        self,
        store: Store,
        routes: Routes,
        queue: str,
        exchange: str,
        routing_key: str | None,
        dead_letters: Sequence[DeadLetter],
    ) -> None:
        self._store = store
        self._queue = queue
        self._exchange = exchange
        self._routing_key = routing_key
        self._dead_letters = {dead_letter.tag: dead_letter for dead_letter in dead_letters}
        self._routes = routes
        self._envelopes: dict[str, Envelope] = {}
        self.stuck: list[str] = []

    def take(self) -> None:
        """Move the letters."""
        target = f"exchange:{self._exchange}"
        # One that has nowhere to go gets no number: it can be replayed like any other.
        for tag, dead_letter in self._dead_letters.items():
            envelope = dead_letter.message
            if envelope is not None and self._has_a_way(dead_letter.reason, envelope):
                self._envelopes[tag] = envelope
            else:
                self.stuck.append(tag)
        move_all(self._store, self._queue, target, list(self._envelopes), self._stored)

    def _key(self, envelope: Envelope) -> str:
        return envelope.routing_key if self._routing_key is None else self._routing_key

    def _has_a_way(self, reason: str, envelope: Envelope) -> bool:
        """Whether a letter did not come round, and has a queue to go to."""
        if reason != "rejected" and _came_round(envelope.headers, reason, self._queue):
            return False
        if not self._exchange:
            return True
        return bool(self._routes.cached(self._exchange).lookup(self._key(envelope)))

    def _stored(self, low_water: int, moves: Sequence[Move]) -> Sequence[str]:
        done: list[str] = []
        for move in moves:
            (done if self._store_one(low_water, move) else self.stuck).append(move.tag)
        return done

    def _store_one(self, low_water: int, move: Move) -> bool:
        """Store *move* wherever it is routed; False where it is not."""
        dead_letter, envelope = self._dead_letters[move.tag], self._envelopes[move.tag]
        key = self._key(envelope)
        sent = encode(dead_lettered(envelope, dead_letter, self._queue, self._exchange, key))
        item = outgoing(self._queue, move, low_water, sent, key, self._exchange)
        send(self._store, self._routes, (item,))
        # All of them: a letter that one full queue refused is tried again.
        return bool(item.stored) and not item.full


def _came_round(headers: Mapping[str, Any], reason: str, queue: str) -> bool:
    """Whether a message died here of *reason* before and nobody rejected it since.

    RabbitMQ drops such a message; here it stays a dead letter.
    """
    deaths = _deaths(headers)
    return any(
        death.get("queue") == queue and death.get("reason") == reason for death in deaths
    ) and (all(death.get("reason") != "rejected" for death in deaths))


def _deaths(headers: Mapping[str, Any]) -> list[dict[str, Any]]:
    deaths = headers.get("x-death")
    return (
        [dict(death) for death in deaths if isinstance(death, dict)]
        if (isinstance(deaths, list))
        else []
    )


def dead_lettered(
    envelope: Envelope, dead_letter: DeadLetter, queue: str, exchange: str, routing_key: str
) -> Envelope:
    """Return *envelope* as it is routed on, with RabbitMQ's headers about its death.

    See https://www.rabbitmq.com/docs/dlx: one entry of ``x-death`` for each queue and
    reason, the latest first; the message has no expiration any more.
    """
    headers, properties = dict(envelope.headers), dict(envelope.properties)
    deaths = _deaths(headers)
    death: dict[str, Any] = {
        "queue": queue,
        "reason": dead_letter.reason,
        "count": 0,
        "exchange": envelope.exchange,
        "routing-keys": [envelope.routing_key],
        "time": datetime.fromtimestamp(dead_letter.died_ms / 1000, timezone.utc),
    }
    for known in deaths:
        if (known.get("queue"), known.get("reason")) == (queue, dead_letter.reason):
            deaths.remove(known)
            death = known
            break
    death["count"] = int(death.get("count") or 0) + 1
    expiration = properties.pop("expiration", None)
    if expiration is not None:
        death["original-expiration"] = str(expiration)
    headers["x-death"] = [death, *deaths]
    for name, value in (
        ("reason", dead_letter.reason),
        ("queue", queue),
        ("exchange", envelope.exchange),
    ):
        headers.setdefault(f"x-first-death-{name}", value)
        headers[f"x-last-death-{name}"] = value
    return envelope._replace(
        headers=headers, properties=properties, exchange=exchange, routing_key=routing_key
    )
