"""Add the broker's delayed tasks to the output of ``celery inspect scheduled``.

Celery lists there the tasks that a worker holds until they are due. With reliq, no worker holds
any: the broker stores them as delayed. Each worker of a queue lists the same tasks.
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
from ..values.inspection import Position

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..values.inspection import Stored
    from ..values.protocol import Store

# Limits of one reply: the worker's loop waits for the query, and the reply is one message.
_MOST = 100
_MOST_BYTES = 1 << 20
_AT_ONCE = 10
_LONGEST_BODY = 10_000
_JSON = "application/json"
# Celery's priority of the timer entry for an eta.
_PRIORITY = 6
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def show_what_waits() -> None:
    """Make this process's worker add the broker's tasks to its reply to ``scheduled``."""
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
    """Return delayed tasks of the queues of *consumer*, by due time; [] for a foreign broker."""
    link = getattr(consumer.connection.transport, "link", None)
    if link is None:
        return []
    store = link.store
    tasks: list[tuple[int, dict[str, Any]]] = []
    try:
        for queue in {queue.name for queue in consumer.task_consumer.queues}:
            tasks += _of_queue(store, queue)
    except BrokerRefused as exc:
        logger.warning(
            "inspect scheduled does not list the delayed tasks of the broker: %s; give the worker "
            "the rights that `reliq acl` prints",
            exc,
        )
    return [task for _, task in sorted(tasks, key=itemgetter(0))[:_MOST]]


def _of_queue(store: Store, queue: str) -> Iterator[tuple[int, dict[str, Any]]]:
    size, start = 0, Position()
    for _ in range(0, _MOST, _AT_ONCE):
        page = store.reads.scan(queue, "delayed", start, _AT_ONCE, whole_bytes=_MOST_BYTES)
        for item in page.items:
            with suppress(EnvelopeError):  # the consumer that receives it reports it
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
            "hostname": broker,  # the holder of the task
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
    """Return the due time: the one set by the publisher, until the first delivery."""
    eta = headers.get("x-eta")
    if isinstance(eta, str) and item.failed < 0:
        with suppress(ValueError):
            moment = datetime.fromisoformat(f"{eta[:-1]}+00:00" if eta[-1:] == "Z" else eta)
            return moment.replace(tzinfo=moment.tzinfo or timezone.utc).isoformat()
    try:
        return (_EPOCH + timedelta(milliseconds=item.at_ms)).isoformat()
    except OverflowError:
        return datetime.max.replace(tzinfo=timezone.utc).isoformat()


def _arguments(envelope: Envelope) -> tuple[Any, Any]:
    """Return args and kwargs; as readable text if the body is long or not JSON."""
    headers = envelope.headers
    short = len(envelope.body) <= _LONGEST_BODY and "compression" not in headers
    if short and envelope.content_type == _JSON:
        with suppress(ContentDisallowed, DecodeError, ValueError, TypeError):
            args, kwargs, _ = loads(
                envelope.body, envelope.content_type, envelope.content_encoding, accept={_JSON}
            )
            return args, kwargs
    return headers.get("argsrepr"), headers.get("kwargsrepr")
