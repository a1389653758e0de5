"""Publishes into a spool on a small disk until it is full; prints the number confirmed."""

from __future__ import annotations

import sys

from kombu import Connection

from reliq.errors import BrokerRefused
from reliq.spool.journal import JOURNALS


def main(directory: str) -> None:
    """Fill the disk at *directory*; print the numbers of confirmed and of stored messages."""
    spool = f"{directory}/spool.db"
    confirmed = 0
    policy = {"max_retries": 5, "interval_start": 0, "interval_step": 0.1}
    with Connection(["reliq://127.0.0.1:1/0", f"reliq-spool:///{spool}"]) as connection:
        producer = connection.Producer()
        try:
            while confirmed < 100_000:
                producer.publish("x" * 1000, routing_key="q", retry=True, retry_policy=policy)
                confirmed += 1
        except BrokerRefused as exc:
            print(exc)
    print(confirmed, JOURNALS.at(spool).status()["publishes"])
    journal = JOURNALS.at(spool)
    forwarded = 0
    while items := journal.take(0, "broker", "data")[0]:
        journal.done(items)
        forwarded += len(items)
    print(forwarded)


main(*sys.argv[1:])
