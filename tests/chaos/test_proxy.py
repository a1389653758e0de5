"""The proxy applies exactly the requested fault to a connection."""

from __future__ import annotations

import random
import socket
import threading
import time

import pytest

from tests.chaos.proxy import Proxy
from tests.support.servers import free_port
from tests.support.waiting import wait_until


@pytest.fixture
def echo():
    """Return the address of a server that echoes its input."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve(connection):
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(data)
            except OSError:
                pass

    def accept():
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield server.getsockname()
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join(5)


@pytest.fixture
def proxy(echo):
    """Return a proxy in front of the echo server."""
    proxy = Proxy(free_port(), echo).start()
    yield proxy
    proxy.stop()


@pytest.fixture
def client(proxy):
    """Return a socket connected through the proxy, after a successful exchange."""
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as client:
        assert b"hello" == say(client, b"hello")
        yield client


def say(client, data):
    """Send *data*; return a reply of the same length."""
    client.sendall(data)
    got = b""
    while len(got) < len(data):
        chunk = client.recv(65536)
        if not chunk:
            break
        got += chunk
    return got


def ends(client):
    """Return whether the connection is closed without further data."""
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


def test_cut_closes_what_is_open(proxy, client):
    """A cut connection ends, and the next one works."""
    assert 1 == proxy.cut()
    assert ends(client)
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as other:
        assert b"again" == say(other, b"again")


def test_delay_keeps_the_order_of_bytes(proxy, client):
    """Bytes keep their order, however the delay changes."""
    chance = random.Random(1)
    sent = b""
    for number in range(60):
        proxy.delay(chance.choice([0.0, 0.0, 0.05, 0.001]))
        data = b"%06d," % number
        client.sendall(data)
        sent += data
        time.sleep(0.002)  # sends each chunk separately
    proxy.delay(0.0)
    got = b""
    while len(got) < len(sent):
        got += client.recv(65536)
    assert sent == got


def test_a_black_hole_swallows_and_stays_open(proxy, client):
    """A black hole gives no reply and closes no connection; a new connection works."""
    assert 1 == proxy.black_hole()
    client.settimeout(0.3)
    client.sendall(b"anybody?")
    with pytest.raises(TimeoutError):
        client.recv(1)
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as other:
        assert b"here" == say(other, b"here")


def test_a_lost_reply_was_carried_out(proxy, client):
    """If a reply is lost, its request has arrived, and the connection is cut."""
    proxy.lose_replies()
    client.sendall(b"lost")
    assert ends(client)
    wait_until(lambda: proxy.replies_lost == 1)
