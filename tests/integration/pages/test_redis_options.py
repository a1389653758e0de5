"""The options of Kombu's own Redis transport: the change of one line leaves them in place."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from kombu import Connection
from redis.credentials import UsernamePasswordCredentialProvider

from reliq import ConfigurationError, kombu_options
from reliq.errors import BrokerTimeout, BrokerUnavailable
from reliq.kombu_options import KEPT, UNUSED
from reliq.options import parse
from reliq.store.urls import address
from tests.support.processes import Process
from tests.support.sentinels import MASTER_NAME, SentinelGroup
from tests.support.waiting import wait_until

from ..kombu_client import Taker, get, publish

README = Path(__file__).resolve().parents[3] / "README.md"

# An application as Celery documents it, with all documented options of its Redis transport.
SHOP = """\
import socket
from celery import Celery

app = Celery("shop")
app.conf.broker_url = "redis://localhost:6379/0"
app.conf.task_acks_late = True
app.conf.task_reject_on_worker_lost = True
app.conf.broker_transport_options = {
    "visibility_timeout": 3600,
    "priority_steps": list(range(10)),
    "sep": ":",
    "queue_order_strategy": "priority",
    "fanout_prefix": True,
    "fanout_patterns": True,
    "global_keyprefix": "shop:",
    "max_connections": 20,
    "retry_on_timeout": True,
    "health_check_interval": 30,
    "socket_timeout": 30,
    "socket_connect_timeout": 5,
    "socket_keepalive": True,
    "socket_keepalive_options": {socket.TCP_KEEPIDLE: 60},
    "socket_read_size": 65536,
    "unacked_restore_interval": 10,
}

@app.task
def ship(order):
    print(f"shipped {order}", flush=True)

if __name__ == "__main__":
    for order in range(3):
        ship.apply_async((order,), priority=order)
"""


def test_the_change_of_one_line(redis_server, redis_url, tmp_path):
    """README's change of one line is enough for an application that sets Kombu's own options."""
    text = README.read_text("utf-8")
    before, after = re.findall(r"^[-+](app.conf.broker_url = .*)$", text, re.MULTILINE)
    assert before in SHOP
    here = f"127.0.0.1:{redis_server.port}"
    (tmp_path / "shop.py").write_text(SHOP.replace(before, after).replace("localhost:6379", here))
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = f"{sys.executable} -m celery -A shop worker -P solo --without-mingle".split()
    worker = Process(command, log_path=tmp_path / "worker.log", env=env, cwd=tmp_path)
    publisher = Process(
        [sys.executable, "shop.py"], log_path=tmp_path / "publisher.log", env=env, cwd=tmp_path
    )
    try:
        assert 0 == publisher.wait(60), publisher.log()
        done = [f"shipped {order}" for order in range(3)]
        wait_until(lambda: all(line in worker.log() for line in done), what=worker.log)
        (warning,) = re.findall(r"options of Kombu's Redis transport.*", worker.log())
        for name in ("sep", "priority_steps", "max_connections", "unacked_restore_interval"):
            assert re.search(rf"\b{name}\b", warning)
        assert "visibility_timeout" not in warning
    finally:
        worker.kill_group()
        worker.wait()
        publisher.kill_group()


def test_one_warning_in_a_process(redis_url, monkeypatch, caplog):
    """The first connection logs all options without an effect, with their substitutes."""
    monkeypatch.setattr(kombu_options, "_reported", [])
    options = dict.fromkeys(UNUSED, 5) | {"sentinel_kwargs": {"socket_timeout": 1, "password": "x"}}
    for _ in range(2):
        with Connection(redis_url, transport_options=options) as connection:
            publish(connection, "q", 1)
    (record,) = [item for item in caplog.records if "Kombu's Redis" in item.getMessage()]
    text = record.getMessage()
    assert "WARNING" == record.levelname
    assert "; unacked_restore_interval, unacked_restore_throttle (restore_interval does" in text
    assert "password" not in text
    assert set(UNUSED) == {name for name in UNUSED if re.search(rf"\b{name}\b", text)}


def test_all_problems_in_one_error(redis_url):
    """One error names each unknown name and each wrong value."""
    options = {
        "socket_timeout": "soon",
        "visibility_timout": 5,
        "retry_on_timeot": True,
        "zzz": 1,
        "socket_keepalive_options": {"idle": 1},
        "sentinel_kwargs": "hush",
        "credential_provider": object(),
        "sep": ":",
    }
    with (
        Connection(redis_url, transport_options=options) as connection,
        pytest.raises(ConfigurationError) as caught,
    ):
        connection.connect()
    text = str(caught.value)
    for part in (
        "expected socket_timeout to be a number of seconds",
        "'visibility_timout': did you mean visibility_timeout?",
        "'retry_on_timeot': did you mean retry_on_timeout?",
        "'zzz': known: ",
        "expected socket_keepalive_options to be a mapping of TCP options",
        "expected sentinel_kwargs to be a mapping",
        "expected credential_provider to be a CredentialProvider of redis-py",
    ):
        assert part in text
    assert "hush" not in text
    assert "'sep'" not in text


# -- one test for each option with an effect


def test_each_option_is_tried():
    """Each option with an effect has its test below."""
    tried = {name.removeprefix("test_effect_of_") for name in globals() if "_effect_of_" in name}
    assert set(KEPT) == tried


@pytest.fixture
def full():
    """Return the port of a server that accepts no connection: its queue of them is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, socket.socket() as other:
        other.connect(listener.getsockname())
        yield listener.getsockname()[1]


def test_effect_of_visibility_timeout(client):
    """A lease ends after this time, by the server's clock."""
    connection = client.connect(visibility_timeout=1000)
    publish(connection, "q", "x")
    assert "x" == get(connection, "q").payload
    seconds, _ = client.raw.time()
    ((_, until_ms),) = client.raw.zrange("reliq:{q}:unacked_index", 0, -1, withscores=True)
    assert 990 < until_ms / 1000 - seconds < 1001


def test_effect_of_global_keyprefix(client):
    """Every key begins with the prefix."""
    publish(client.connect(global_keyprefix="shop:"), "q", "x")
    assert {True} == {key.startswith(b"shop:reliq:") for key in client.raw.scan_iter()}


@pytest.mark.parametrize(
    ("strategy", "expected"), [("priority", ["b1", "b2", "a1"]), ("sorted", ["a1", "b1", "b2"])]
)
def test_effect_of_queue_order_strategy(client, strategy, expected):
    """The queues are read in the order of their declaration, or of their names."""
    connection = client.connect(queue_order_strategy=strategy)
    publish(connection, "b", "b1", "b2")
    publish(connection, "a", "a1")
    taker = Taker(connection, "b", "a", prefetch_count=1)
    assert expected == [taker.take_bodies(1)[0] for _ in range(3)]


def test_effect_of_socket_timeout(client, redis_server):
    """A reply that does not come ends the wait after this time."""
    connection = client.connect(socket_timeout=0.3)
    publish(connection, "q", "x")
    redis_server.freeze()
    began = time.monotonic()
    try:
        with pytest.raises(BrokerUnavailable):
            connection.default_channel.queue_declare("other")
        assert time.monotonic() - began < 3
    finally:
        redis_server.thaw()


def test_effect_of_socket_connect_timeout(full):
    """A connection that cannot be opened ends the wait after this time."""
    options = {"socket_connect_timeout": 0.2}
    with Connection(f"reliq://127.0.0.1:{full}/0", transport_options=options) as connection:
        began = time.monotonic()
        with pytest.raises(BrokerTimeout, match=r"within 0\.2 s"):
            connection.transport.establish_connection()
    assert time.monotonic() - began < 3


def dialled(url, **options):
    """Return the socket of a connection with these transport options."""
    connection = address(url).connect(parse(options), "test")
    return closing(connection), connection.sock


def test_effect_of_socket_keepalive(redis_url):
    """TCP keepalive is on unless the option is False."""
    for value, expected in ((None, 1), (True, 1), (False, 0)):
        closing_, sock = dialled(redis_url, socket_keepalive=value)
        with closing_:
            assert expected == bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))


def test_effect_of_socket_keepalive_options(redis_url):
    """The socket has these TCP options, and reliq's values for the others."""
    given = {socket.TCP_KEEPIDLE: 71, socket.TCP_KEEPINTVL: 7}
    closing_, sock = dialled(redis_url, socket_keepalive_options=given)
    with closing_:
        expected = {**given, socket.TCP_KEEPCNT: 3}
        found = {name: sock.getsockopt(socket.IPPROTO_TCP, name) for name in expected}
        assert expected == found


@pytest.mark.parametrize(("interval_s", "checked"), [(1, True), (0, False)])
def test_effect_of_health_check_interval(client, interval_s, checked):
    """A connection that was silent for this time is checked before its next use; 0: never."""
    connection = client.connect(health_check_interval=interval_s)
    publish(connection, "q", "x")
    before = client.raw.info("commandstats").get("cmdstat_ping", {"calls": 0})["calls"]
    silent_since = time.monotonic()
    wait_until(lambda: time.monotonic() - silent_since > 1.1, what="the end of the interval")
    connection.default_channel.queue_declare("q", passive=True)
    after = client.raw.info("commandstats").get("cmdstat_ping", {"calls": 0})["calls"]
    assert checked == (after > before)


def test_effect_of_client_name(client):
    """The names of all connections begin with it."""
    publish(client.connect(client_name="shop-7"), "q", "x")
    names = {item["name"].split(":")[0] for item in client.raw.client_list() if item["name"]}
    assert {"shop-7"} == names


@pytest.fixture(scope="module")
def group():
    """Return a Sentinel with a password, and its master."""
    group = SentinelGroup(replicas=0, sentinels=1, sentinel_password="theirs")
    try:
        yield group.start()
    finally:
        group.destroy()


@pytest.mark.parametrize("right", [True, False])
def test_effect_of_master_name(group, right):
    """The Sentinels are asked for the master of this name."""
    options = {**group.options, "master_name": MASTER_NAME if right else "other"}
    with Connection(group.url(), transport_options=options) as connection:
        if right:
            publish(connection, "q", "x")
            return
        with pytest.raises(BrokerUnavailable, match="knows no master 'other'"):
            connection.transport.establish_connection()


@pytest.mark.parametrize("password", ["theirs", "guessed"])
def test_effect_of_sentinel_kwargs(group, password):
    """Its password logs in at the Sentinels."""
    options = {"master_name": MASTER_NAME, "sentinel_kwargs": {"password": password}}
    with Connection(group.url(), transport_options=options) as connection:
        if password == "theirs":
            publish(connection, "q", "x")
            return
        with pytest.raises(BrokerUnavailable, match="refused the login"):
            connection.transport.establish_connection()


def test_effect_of_credential_provider(client):
    """Its credentials log in."""
    provider = UsernamePasswordCredentialProvider("default", "any")
    publish(client.connect(credential_provider=provider), "q", "x")
    assert {"default"} == {item["user"] for item in client.raw.client_list()}
