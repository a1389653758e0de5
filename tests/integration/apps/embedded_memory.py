"""Fill the memory of an embedded broker in a small cgroup, then drain it."""

import sys
import time

from kombu import Connection, Exchange, Queue

import reliq


def main():
    """Exit with an error if a confirmed message is lost, or a publish fails for another reason."""
    queue = Queue("q", Exchange("", type="direct"), routing_key="q")
    confirmed, refused = 0, ""
    with Connection(sys.argv[1], transport_options={"embedded_idle": 2}) as connection:
        queue(connection.channel()).declare()
        producer = connection.Producer()
        while not refused:
            try:
                producer.publish(
                    {"i": confirmed, "p": "x" * 20_000},
                    routing_key="q",
                    serializer="json",
                    retry=False,
                )
                confirmed += 1
            except reliq.ReliqError as exc:  # noqa: PERF203 - a failure ends or delays it
                refused = str(exc)
        assert "memory is full" in refused, refused
        seen = set()

        def take(body, message):
            seen.add(body["i"])
            message.ack()

        began = time.monotonic()
        with connection.Consumer([queue], callbacks=[take]):
            while len(seen) < confirmed:
                connection.drain_events(timeout=5)
        assert set(range(confirmed)) == seen
        producer.publish({"i": 0}, routing_key="q", serializer="json", retry=False)
    print(confirmed, time.monotonic() - began)
