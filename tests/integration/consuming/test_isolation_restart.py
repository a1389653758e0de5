"""A broker that restarts before the ack of an isolated delivery arrives."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing

from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

from ..kombu.test_kombu_isolation import LIMIT, candidate
from ..kombu_client import Client, Taker

TAKES_AND_ACKS = f"""
import sys, kombu, reliq
options = {{"delivery_limit": {LIMIT}, "visibility_timeout": 2, "restore_interval": 0.2,
           "orphan_grace": 0.3, "socket_connect_timeout": 1}}
connection = kombu.Connection(sys.argv[1], transport_options=options)
message = connection.default_channel.basic_get("q")
print("got", flush=True)
sys.stdin.readline()
try:
    message.channel.basic_ack(message.delivery_tag)
except connection.connection_errors:
    pass
print("owed", flush=True)
sys.stdin.readline()
"""


def test_an_ack_that_a_restart_kept_from_the_broker(redis_factory, scheme):
    """If a consumer dies with an unsent ack, its message is delivered in isolation once more."""
    server = redis_factory(appendonly=True)
    with closing(Client(server, server.url(scheme))) as client, closing(Proxy(server)) as proxy:
        candidate(client)
        command = [sys.executable, "-u", "-c", TAKES_AND_ACKS, proxy.url(scheme)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as consumer:
            assert "got" == consumer.stdout.readline().strip()
            wait_until(lambda: client.raw.hexists("reliq:{q}:meta", "run"))
            server.stop()
            consumer.stdin.write("\n")
            consumer.stdin.flush()
            assert "owed" == consumer.stdout.readline().strip()
            consumer.kill()
        server.start()
        options = {"delivery_limit": LIMIT, "visibility_timeout": 2, "restore_interval": 0.2}
        (last,) = Taker(client.connect(**options), "q").take(timeout_s=30)
        assert ("last", LIMIT - 1) == (last.payload, last.headers["x-delivery-count"])
        assert 0 == client.status("q").dead
        last.ack()
        client.audit()
