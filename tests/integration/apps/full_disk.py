"""What a broker in a file does on a disk that is full; prints what it saw, as JSON."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
from pathlib import Path

from kombu import Connection

from reliq import BrokerRefused
from reliq.admin import Inspector
from tests.integration.apps.filling import fill
from tests.integration.kombu_client import Taker, declare, publish

OPTIONS = {"visibility_timeout": 60, "poll_interval": 0.5}


def main(directory: str) -> None:
    """Fill a disk with messages, and with something else; consume; make room; go on."""
    path, filler = Path(directory, "broker.db"), Path(directory, "something else")
    url = f"reliq-sqlite:///{path}"
    seen: dict[str, object] = {}
    with Connection(url, transport_options=OPTIONS) as connection:
        declare(connection, "q")
        stored = []
        try:
            while True:
                publish(connection, "q", {"n": len(stored), "padding": "x" * 20_000})
                stored.append(len(stored))
        except BrokerRefused as exc:
            seen["refused"] = str(exc)
        fill(filler)
        seen["stored"] = len(stored)
        with Inspector(url) as inspector:
            seen["kept"] = inspector.status("q").ready
        with Connection(url, transport_options=OPTIONS) as other:
            taker = Taker(other, "q")
            got = []
            while len(got) < len(stored):
                for message in taker.take(1):
                    got.append(message.payload["n"])
                    message.ack()
                taker.messages.clear()
            seen["in order"] = got == stored
            refused = 0
            try:
                publish(other, "q", {"n": -1})
            except BrokerRefused:
                refused = 1
            seen["refused while full"] = refused
        filler.unlink()
        publish(connection, "q", {"n": -2})
    with Inspector(url) as inspector:
        seen["ready at the end"] = inspector.status("q").ready
        seen["balanced"] = all(result.balanced for result in inspector.audit())
    with contextlib.closing(sqlite3.connect(path)) as file:
        seen["integrity"] = file.execute("PRAGMA integrity_check").fetchone()[0]
    print(json.dumps(seen))


main(*sys.argv[1:])
