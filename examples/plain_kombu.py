"""Kombu without Celery: a producer, and a consumer that acknowledges its messages.

Start Redis on localhost, and run:

    python plain_kombu.py

To use another broker, set RELIQ_URL.
"""

from __future__ import annotations

import os
from typing import Any

from kombu import Connection, Exchange, Queue

import reliq

URL = os.environ.get("RELIQ_URL", "reliq://localhost:6379/0")
media = Exchange("media", type="topic")
videos = Queue("videos", media, routing_key="video.*")


def handle(body: dict[str, Any], message: Any) -> None:
    """Do the work, then acknowledge. If the process is killed in between, the message returns."""
    print(f"received {body['name']}")
    message.ack()


def main() -> None:
    """Publish three messages, and consume until the queue is empty."""
    print(f"reliq {reliq.__version__}")
    with Connection(URL) as connection:
        producer = connection.Producer()
        for name in ("one", "two", "three"):
            producer.publish(
                {"name": name}, exchange=media, routing_key="video.new", declare=[videos]
            )
        with connection.Consumer(videos, callbacks=[handle], prefetch_count=10):
            try:
                while True:
                    connection.drain_events(timeout=1)
            except TimeoutError:
                print("no more messages")


if __name__ == "__main__":
    main()
