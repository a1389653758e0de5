"""Forks while the failback probes a primary broker that accepts connections and never answers.

Argument: the URLs, the primary broker first.
"""

from __future__ import annotations

import os
import sys
import time

from kombu import Connection

import reliq

assert reliq  # registers the scheme
options = {"probe_interval": 0.2, "socket_timeout": 1, "socket_connect_timeout": 1}
with Connection(sys.argv[1], transport_options=options, failover_strategy="primary") as connection:
    connection.ensure_connection(max_retries=5, interval_start=0, interval_step=0.1)
    assert connection.as_uri() in {
        url.replace("://", "://:**@") for url in sys.argv[1].split(";")[1:]
    }
    for _ in range(8):
        time.sleep(0.35)
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        connection.Producer().publish("x", routing_key="q")
print("forked", flush=True)
os._exit(0)
