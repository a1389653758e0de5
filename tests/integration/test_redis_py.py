"""redis-py opens the connections: the oldest and the newest version, and its silence."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from reliq import BrokerUnavailable
from reliq.client.connect import Address
from reliq.options import Options
from reliq.store.urls import address

ROOT = Path(__file__).resolve().parents[2]
USED = """
import sys
import redis, reliq
from kombu import Connection, Queue
assert redis.__version__ == sys.argv[1] or not sys.argv[1], redis.__version__
for url in sys.argv[2:]:
    with Connection(url) as connection, connection.SimpleQueue("q") as queue:
        queue.put("x")
        message = queue.get(timeout=10)
        message.ack()
        print(message.payload)
"""
LOGIN = {"auth", "select", "client|setname"}
NEEDED = ("id", "list", "setname", "unblock")
ADMIN = {"acl", "acl|setuser", "config", "config|resetstat", "info"}


def sent(admin):
    """Return the commands that the server has run since CONFIG RESETSTAT, but those of *admin*.

    A new connection of the test's own client would send CLIENT SETINFO. Redis 6.2 counts a
    subcommand as its command, and has no CLIENT SETINFO.
    """
    found = admin.info("commandstats")
    names = {name.removeprefix("cmdstat_") for name in found}
    return {"client|setname" if name == "client" else name for name in names} - ADMIN


def test_a_connection_sends_only_its_login(redis_factory):
    """A connection sends AUTH, SELECT and CLIENT SETNAME: neither HELLO nor CLIENT SETINFO."""
    server = redis_factory()
    admin = server.client()
    admin.acl_setuser(
        "worker",
        enabled=True,
        passwords=["+pw"],
        keys="*",
        categories=["-@all"],
        commands=["+select", "+client|setname"],
    )
    admin.config_resetstat()
    found = address(f"reliq://worker:pw@127.0.0.1:{server.port}/3")
    before = time.monotonic()
    found.connect(Options(), "x").close()
    assert time.monotonic() - before < 5
    assert LOGIN == sent(admin)
    assert [] == admin.acl_log()


def test_a_connection_is_tried_once():
    """A server that closes each connection is asked once; nothing is retried within a connect."""
    accepted = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                accepted.append(peer.recv(1024))
                peer.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        found = Address("127.0.0.1", server.getsockname()[1], password="x")
        with pytest.raises(BrokerUnavailable, match="closed the connection"):
            found.connect(Options(), "x")
        server.shutdown(socket.SHUT_RDWR)
        thread.join(60)
    assert 1 == len(accepted)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["5.1.0", "6.4.0", "7.1.1", "7.4.1", ""])
def test_each_version_opens_connections(version, redis_factory, certificates, tmp_path):
    """TCP, TLS and Unix sockets work with the oldest and the newest redis-py that is allowed."""
    folders = [str(ROOT)]
    if version:
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target"]
        subprocess.run([*command, tmp_path, f"redis=={version}"], check=True, timeout=120)
        folders.insert(0, str(tmp_path))
    plain = redis_factory(unix_socket=True)
    secure = redis_factory(tls=certificates, password="pw")
    admin = plain.client()
    admin.acl_setuser(
        "worker",
        enabled=True,
        passwords=["+pw"],
        keys="*",
        channels="*",
        categories=["+@all"],
        commands=["-hello", "-client", *(f"+client|{name}" for name in NEEDED)],
    )
    login = plain.url("reliq").replace("//", "//worker:pw@")
    urls = [login, plain.url("reliq-unix"), secure.url("reliqs")]
    admin.config_resetstat()
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning", "-c", USED, version, *urls],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (0, "x\nx\nx\n") == (done.returncode, done.stdout), done.stderr
    assert set() == sent(admin) & {"hello", "client|setinfo"}
    assert [] == admin.acl_log()
