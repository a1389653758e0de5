"""What waits in the broker, among what ``celery inspect scheduled`` shows of a worker.

Celery shows there what a worker holds until it is due. Here no worker does: what waits for
its queues waits in the broker, as delayed. Each worker of a queue shows the same.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import wraps
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from kombu.exceptions import ContentDisallowed, DecodeError
from kombu.serialization import loads

from ..errors import BrokerRefused, logger
from ..message.envelope import Envelope, EnvelopeError, decode
from ..store.inspection import Position

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..store.inspection import Stored
    from ..store.protocol import Store

# The loop of the worker waits for them, and all of it is one message.
_MOST = 100
_MOST_BYTES = 1 << 20
_AT_ONCE = 10
_LONGEST_BODY = 10_000
_JSON = "application/json"
# Celery's own: that of what its timer calls for an eta.
_PRIORITY = 6
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def show_what_waits() -> None:
    """Have this process's worker answer ``scheduled`` with what its broker holds, too."""
    commands = sys.modules["celery.worker.control"].Panel.data
    own = commands["scheduled"]
    if getattr(own, "reliq_adds", False):
        return

    @wraps(own)
    def scheduled(state: Any, **kwargs: Any) -> list[dict[str, Any]]:
        return [*own(state, **kwargs), *_waiting(state.consumer)]

    scheduled.reliq_adds = True  # type: ignore[attr-defined]
    for name, command in list(commands.items()):
        if command is own:
            commands[name] = scheduled


def _waiting(consumer: Any) -> list[dict[str, Any]]:
    """Return the delayed tasks of the queues of *consumer*, by due time; () of a foreign broker."""
    link = getattr(consumer.connection.transport, "link", None)
    if link is None:
        return []
    store = link.store
    found: list[tuple[int, dict[str, Any]]] = []
    try:
        for queue in {queue.name for queue in consumer.task_consumer.queues}:
            found += _of_queue(store, queue)
    except BrokerRefused as exc:
        logger.warning(
            "inspect scheduled shows nothing of what waits in the broker: %s; give the worker "
            "the rights that `reliq acl` prints",
            exc,
        )
    return [task for _, task in sorted(found, key=itemgetter(0))[:_MOST]]


def _of_queue(store: Store, queue: str) -> Iterator[tuple[int, dict[str, Any]]]:
    size, start = 0, Position()
    for _ in range(0, _MOST, _AT_ONCE):
        page = store.reads.scan(queue, "delayed", start, _AT_ONCE, whole_bytes=_MOST_BYTES)
        for item in page.items:
            with suppress(EnvelopeError):  # whoever takes it will say so
                envelope = decode(item.envelope or b"")
                if "task" in envelope.headers:
                    yield item.at_ms, _task(item, envelope, store.broker)
            size += len(item.envelope or b"")
        if page.after is None or size > _MOST_BYTES:
            return
        start = page.after


def _task(item: Stored, envelope: Envelope, broker: str) -> dict[str, Any]:
    headers = envelope.headers
    args, kwargs = _arguments(envelope)
    return {
        "eta": _eta(item, headers),
        "priority": _PRIORITY,
        "request": {
            "id": headers.get("id"),
            "name": headers.get("shadow") or headers["task"],
            "args": args,
            "kwargs": kwargs,
            "type": headers["task"],
            "hostname": broker,  # who holds it
            "time_start": None,
            "acknowledged": False,
            "delivery_info": {
                "exchange": envelope.exchange,
                "routing_key": envelope.routing_key,
                "priority": envelope.properties.get("priority"),
                "redelivered": item.failed >= 0,
            },
            "worker_pid": None,
        },
    }


def _eta(item: Stored, headers: dict[str, Any]) -> str:
    """Return when it is due: as its publisher has said, unless it has been delivered since."""
    asked = headers.get("x-eta")
    if isinstance(asked, str) and item.failed < 0:
        with suppress(ValueError):
            moment = datetime.fromisoformat(f"{asked[:-1]}+00:00" if asked[-1:] == "Z" else asked)
            return moment.replace(tzinfo=moment.tzinfo or timezone.utc).isoformat()
    try:
        return (_EPOCH + timedelta(milliseconds=item.at_ms)).isoformat()
    except OverflowError:
        return datetime.max.replace(tzinfo=timezone.utc).isoformat()


def _arguments(envelope: Envelope) -> tuple[Any, Any]:
    """Return args and kwargs; of a long body, or one that is not JSON, as text for people."""
    headers = envelope.headers
    short = len(envelope.body) <= _LONGEST_BODY and "compression" not in headers
    if short and envelope.content_type == _JSON:
        with suppress(ContentDisallowed, DecodeError, ValueError, TypeError):
            args, kwargs, _ = loads(
                envelope.body, envelope.content_type, envelope.content_encoding, accept={_JSON}
            )
            return args, kwargs
    return headers.get("argsrepr"), headers.get("kwargsrepr")
