"""Moves dead letters until it is killed: `replay` by an operator, `route` by a background loop.

Arguments: replay or route, and the broker's URL.
"""

from __future__ import annotations

import signal
import sys

from kombu import Connection, Consumer, Queue

from reliq.admin import Inspector

how, url = sys.argv[1:]
if how == "replay":
    with Inspector(url) as inspector:
        inspector.replay("source", to="target")
    print("done", flush=True)
else:
    options = {"restore_interval": 0.1, "visibility_timeout": 1}
    # It consumes from an unrelated queue: its background loop makes passes over all others.
    with (
        Connection(url, transport_options=options) as connection,
        Consumer(connection, [Queue("busy")], callbacks=[print]),
    ):
        signal.pause()
