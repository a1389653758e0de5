"""Dead-letter exchanges: route dead letters of queues with ``x-dead-letter-exchange``.

A background loop routes them as RabbitMQ does, with the header ``x-death``. Until then, and while
no queue is bound for them, they are ordinary dead letters.
"""

from __future__ import annotations

from datetime import datetime, timezone
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import logger
from ..message.envelope import encode
from ..routing.routes import Routes
from ..routing.sending import send
from .numbered import move_all, outgoing, pages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..message.envelope import Envelope
    from ..values.inspection import DeadLetter
    from ..values.protocol import Store
    from ..values.values import Move

_STUCK_S = 60.0
_LONGEST_S = 960.0


class _Stuck(NamedTuple):
    """Dead letters of one queue that could not be routed at the last attempt."""

    until: float
    """The time of the next attempt for all of them (this process's monotonic clock)."""
    pause_s: float
    version: bytes | None
    """The version of the exchange's bindings. Another version causes an attempt at once."""
    newest_ms: int
    """The death time of the newest of them."""
    newest: frozenset[str]
    """The tags of those with this death time."""


class DeadLetterRouter:
    """Routes dead letters for one session."""

    def __init__(self) -> None:
        self._stuck: dict[str, _Stuck] = {}

    def route(self, queue: str, store: Store) -> None:
        """Route the dead letters of *queue*, oldest first; waits for the broker.

        Each is stored once in every queue to which it is routed, even if processes are killed.
        Dead letters that cannot be routed are read again only after a pause.
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
            tags = _route(store, routes, queue, exchange, routing_key, dead_letters)
            stuck += len(tags)
            left = [dead_letter for dead_letter in dead_letters if dead_letter.tag in tags]
            if left and left[-1].died_ms > newest_ms:
                newest_ms, newest = left[-1].died_ms, set()
            newest.update(
                dead_letter.tag for dead_letter in left if dead_letter.died_ms == newest_ms
            )
        if known is None and not stuck:
            return
        if known is not None:
            until, pause_s = known.until, known.pause_s
        else:  # pause longer each time, unless the bindings have changed
            same = before is not None and before.version == version
            pause_s = min(2 * before.pause_s, _LONGEST_S) if before and same else _STUCK_S
            until = monotonic() + pause_s
        self._stuck[queue] = _Stuck(until, pause_s, version, newest_ms, frozenset(newest))
        if stuck:
            logger.warning(
                "%d dead letters of %r stay there: exchange %r has no queue for them, they would "
                "go round in a cycle, or they are unreadable; next attempt in %.3g s, or after a "
                "new binding",
                stuck,
                queue,
                exchange,
                max(until - monotonic(), 0.0),
            )


def _route(
    store: Store,
    routes: Routes,
    queue: str,
    exchange: str,
    routing_key: str | None,
    dead_letters: Sequence[DeadLetter],
) -> list[str]:
    """Move dead letters to the queues of their routes; return the tags of those that stay."""
    ways: dict[str, tuple[DeadLetter, Envelope, str]] = {}
    for dead_letter in dead_letters:
        envelope = dead_letter.message
        if envelope is None or _came_round(envelope.headers, dead_letter.reason, queue):
            continue
        key = envelope.routing_key if routing_key is None else routing_key
        # One without a route gets no number, so that it can still be replayed.
        if not exchange or routes.cached(exchange).lookup(key):
            ways[dead_letter.tag] = dead_letter, envelope, key
    stuck = [dead_letter.tag for dead_letter in dead_letters if dead_letter.tag not in ways]

    def stored(low_water: int, moves: Sequence[Move]) -> Sequence[str]:
        done: list[str] = []
        for move in moves:
            dead_letter, envelope, key = ways[move.tag]
            sent = encode(dead_lettered(envelope, dead_letter, queue, exchange, key))
            item = outgoing(queue, move, low_water, sent, key, exchange)
            send(store, routes, (item,))
            # It must be in all queues: retry a dead letter that a full queue refused.
            (done if item.stored and not item.full else stuck).append(move.tag)
        return done

    move_all(store, queue, f"exchange:{exchange}", list(ways), stored)
    return stuck


def _came_round(headers: Mapping[str, Any], reason: str, queue: str) -> bool:
    """Whether a message died here of *reason* before and was never rejected.

    RabbitMQ drops such a message. reliq keeps it as a dead letter.
    """
    deaths = _deaths(headers)
    here = any(death.get("queue") == queue and death.get("reason") == reason for death in deaths)
    rejected = reason == "rejected" or any(death.get("reason") == "rejected" for death in deaths)
    return here and not rejected


def _deaths(headers: Mapping[str, Any]) -> list[dict[str, Any]]:
    deaths = headers.get("x-death")
    known = deaths if isinstance(deaths, list) else []
    return [dict(death) for death in known if isinstance(death, dict)]


def dead_lettered(
    envelope: Envelope, dead_letter: DeadLetter, queue: str, exchange: str, routing_key: str
) -> Envelope:
    """Return *envelope* for the dead-letter exchange, with RabbitMQ's headers about its death.

    See https://www.rabbitmq.com/docs/dlx: one entry of ``x-death`` for each queue and reason,
    the latest first. The expiration is removed.
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
