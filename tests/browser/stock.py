"""Queues with a message in every state, for the tests of every page."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from kombu import Connection, Exchange, Queue

import reliq
from reliq.admin import Inspector

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.support.site import CelerySite


class _Ended(Exception):
    """The exception that ends a producer before it seals its batch."""


def publish(
    url: str,
    queue: str,
    bodies: Sequence[Any],
    *,
    arguments: Mapping[str, Any] | None = None,
    **properties: Any,
) -> None:
    """Declare a queue and publish messages to it."""
    with Connection(url) as connection:
        declared = Queue(queue, Exchange(""), queue, queue_arguments=dict(arguments or {}))
        declared(connection.default_channel).declare()
        producer = connection.Producer()
        for body in bodies:
            producer.publish(body, routing_key=queue, **properties)


def reject(url: str, queue: str, count: int) -> None:
    """Reserve messages and reject them, which makes them dead letters."""
    with Connection(url) as connection:
        channel = connection.default_channel
        for _ in range(count):
            channel.basic_reject(channel.basic_get(queue).delivery_tag, False)


def task(name: str, number: int) -> dict[str, Any]:
    """Return the headers of a task, as Celery writes them."""
    return {
        "task": name,
        "id": f"{number:08x}-5e1f-4c0d-9b7a-3f2d8c6a1e90",
        "argsrepr": f"({number},)",
        "kwargsrepr": "{}",
    }


@contextmanager
def fill(site: CelerySite, queue: str) -> Iterator[None]:
    """Fill a queue with messages in every state; add a paused queue, a divided one and batches.

    While the context is open, this process holds two messages.
    """
    url = site.broker
    publish(url, queue, [[[n], {}, {}] for n in range(4)], headers=task("shop.refund", 1))
    reject(url, queue, 4)
    for n in range(60):  # more than one page of a list
        site.send("shop.ship", n, queue=queue)
    for n in range(3):
        site.send("shop.remind", n, queue=queue, countdown=600 * (n + 1))
    publish(url, f"{queue}-paused", [[[1], {}, {}]], headers=task("shop.mail", 2))
    publish(url, f"{queue}-wide", [[[1], {}, {}]], arguments={"x-partitions": 3})
    with Inspector(url) as inspector:
        inspector.pause(f"{queue}-paused")
    with reliq.Batch(f"{queue} prices", app=site.app) as sealed:
        site.send("shop.price", 1, queue=queue)
        site.send("shop.price", 2, queue=queue)
    sealed.close()
    # The producer ends with an exception, so the batch stays open.
    opened = reliq.Batch(f"{queue} open", app=site.app)
    with suppress(_Ended), opened:
        raise _Ended
    opened.close()
    with Connection(url) as connection:
        channel = connection.default_channel
        held = [channel.basic_get(queue) for _ in range(2)]
        yield
        for message in held:
            channel.basic_ack(message.delivery_tag)
