"""Who starts on a disk that is full, where nobody has the file open; prints what was taken."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kombu import Connection

from tests.integration.apps.filling import fill
from tests.integration.kombu_client import Taker, declare, publish

COUNT = 100


def main(directory: str) -> None:
    """Publish, close, fill the disk to the last byte, and consume."""
    path = Path(directory, "broker.db")
    url = f"reliq-sqlite:///{path}"
    with Connection(url) as connection:
        declare(connection, "q")
        publish(connection, "q", *range(COUNT))
    fill(Path(directory, "something else"))
    with Connection(url) as connection:
        print(json.dumps(Taker(connection, "q").take_bodies(COUNT)))


main(*sys.argv[1:])
