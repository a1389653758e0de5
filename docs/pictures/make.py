"""Draw the pictures of the documents: what `reliq status`, `top` and `dead list` show.

`python docs/pictures/make.py [FOLDER]` starts a redis-server of its own, lets a shop
publish and consume on it, and writes status.svg, top.svg and dead-list.svg.
"""

from __future__ import annotations

import re
import sys
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kombu import Connection, Consumer, Exchange, Queue
from rich.console import Console

from reliq.admin import Inspector
from reliq.cli.console import of_broker
from reliq.cli.queues import message_table
from reliq.cli.status import readings, screen, status_data, status_tables
from reliq.cli.target import Target
from reliq.testing import broker

if TYPE_CHECKING:
    from collections.abc import Iterable

SHOWN = "reliq://redis.shop.internal:6379/0"
WIDTHS = {"status": 118, "top": 118, "dead-list": 172}


def task(connection: Connection, queue: str, name: str, *numbers: int, **headers: Any) -> None:
    """Publish tasks as Celery would."""
    producer = connection.Producer()
    for number in numbers:
        known = {"task": name, "id": f"{number:08x}-5e1f-4c0d-9b7a-3f2d8c6a1e90"}
        written = {"argsrepr": f"({number},)", "kwargsrepr": "{}"}
        producer.publish(
            [[number], {}, {}], routing_key=queue, headers={**known, **written, **headers}
        )


def shop(connection: Connection) -> list[Consumer]:
    """Fill the queues of a shop; return who consumes, holding what was not finished."""
    channel = connection.default_channel
    for name in ("mail", "orders", "reports", "webhooks"):
        Queue(name, Exchange(""), name)(channel).declare()
    consumers, taken = [], list[Any]()
    for name, count in (("orders", 8), ("mail", 4), ("webhooks", 6)):
        own = connection.channel()
        own.basic_qos(0, count, False)
        consumer = Consumer(own, [Queue(name, Exchange(""), name)], on_message=taken.append)
        consumer.consume()
        consumers.append(consumer)
    task(connection, "webhooks", "shop.notify", *range(7, 13))
    for _ in range(6):
        connection.drain_events(timeout=5)
    for message in taken:
        message.reject()
    task(connection, "orders", "shop.ship", *range(1000, 1042))
    task(connection, "mail", "shop.receipt", *range(2000, 2005))
    task(connection, "reports", "shop.monthly", *range(3), **{"x-delay": 3_600_000})
    task(connection, "reports", "shop.daily", 3)
    for _ in range(12):
        connection.drain_events(timeout=5)
    for message in taken[6:8]:
        message.ack()
    return consumers


def draw(folder: Path, name: str, command: str, renderables: Iterable[Any]) -> None:
    """Write one picture."""
    console = Console(record=True, width=WIDTHS[name], file=StringIO(), force_terminal=True)
    for item in renderables:
        console.print(item)
    svg = console.export_svg(title=command)
    # The reader's own fonts do; a picture should fetch nothing.
    svg = re.sub(r"@font-face \{[^}]*\}", "", svg)
    (folder / f"{name}.svg").write_text(svg, "utf-8")


def renamed(value: Any, name: str) -> Any:
    """Return *value* with the address of the private server replaced by a telling one."""
    if isinstance(value, dict):
        return {key: renamed(item, name) for key, item in value.items()}
    if isinstance(value, list):
        return [renamed(item, name) for item in value]
    return SHOWN if value == name else value


def main(folder: Path) -> None:
    """Draw all pictures into *folder*."""
    with broker() as url, Connection(url) as connection, Inspector(url) as inspector:
        consumers = shop(connection)
        inspector.pause("mail")
        watched = readings(Target((url,)), 1.0, 2)
        next(watched)
        task(connection, "orders", "shop.ship", *range(5000, 5180))
        data = renamed(status_data(next(watched)), inspector.broker)
        draw(folder, "status", "reliq status", status_tables(data))
        draw(folder, "top", "reliq top", [screen(data, 2.0)])
        dead_letters = inspector.dead_letters("webhooks", limit=5)
        rows = [
            of_broker(inspector.broker, inspector.view("webhooks", item)) for item in dead_letters
        ]
        for row in rows:
            row["consumer"] = "worker-3:211:b578c2bc/1"
        draw(folder, "dead-list", "reliq dead list webhooks", [message_table(rows, "dead")])
        for consumer in consumers:
            consumer.cancel()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
