"""Publishes to a broker that answers, beside a spool on a full disk, and then a read-only one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kombu import Connection

from reliq.errors import ReliqError
from reliq.spool.journal import JOURNALS

PUBLISH = ("", "q", 0, b"", None, None, None)


def publish(connection: Connection) -> None:
    """Publish with a retry policy, as Celery does."""
    policy = {"max_retries": 3, "interval_start": 0, "interval_step": 0.1}
    connection.Producer().publish(1, routing_key="q", retry=True, retry_policy=policy)


def main(directory: str) -> None:
    """Publish over two connections in each state; print what the spool says."""
    urls = [os.environ["RELIQ_TEST_URL"], f"reliq-spool:///{directory}/spool.db"]
    filler = Path(directory, "filler")
    once = {"transport_options": {"probe_interval": 60}, "failover_strategy": "primary"}
    with Connection(urls, **once) as old, Connection(urls, **once) as new:
        publish(old)
        for state in ("full", "read-only"):
            if state == "full":
                filler.write_bytes(bytes(8_000_000))
            else:
                filler.unlink()
                JOURNALS.at(f"{directory}/spool.db").close()  # a disk in use stays writable
                subprocess.run(["mount", "-o", "remount,ro", directory], check=True)
            publish(old)
            publish(new)
            try:
                JOURNALS.at(f"{directory}/spool.db").add([PUBLISH], 10**9)
            except ReliqError as exc:
                print(f"{state}: {exc}")
        print("published 5")


main(*sys.argv[1:])
