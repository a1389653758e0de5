"""Each managed service, as a user with the rights that its page names: all of reliq works."""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from kombu import Connection

from reliq.admin import Inspector
from reliq.client import refusals
from tests.support.audits import assert_balanced
from tests.support.cluster import RedisCluster
from tests.support.managed import PROVIDERS, Provider, printed, table
from tests.support.processes import Process
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

from ..kombu_client import FAST, Taker, declare, publish

# The user without any of the commands that reliq can work around; each other refusal belongs to a
# service above.
WORST = Provider(
    "worst", "", "", "", "-client -evalsha -script -info -config -scan -role -wait -acl"
)
NOT_NAMED = Provider("no ids", "", "", "", "-client +client|unblock +client|list")
USERS = {item.name: item for item in (*PROVIDERS, WORST, NOT_NAMED)}
# Celery's own events are traffic, as a task is.
QUIET = ("--without-gossip", "--without-heartbeat")
HOLDER = f"""
import sys, time
import reliq
from kombu import Connection, Consumer, Queue

with Connection(sys.argv[1], transport_options={FAST!r}) as connection:
    say = lambda message: print("took", message.payload, flush=True)
    with Consumer(connection, Queue("q"), on_message=say):
        while True:
            connection.drain_events()
"""


@pytest.fixture(scope="module")
def server():
    """Return a server that all services share."""
    server = RedisServer()
    yield server.start()
    server.destroy()


@pytest.fixture
def login(server, redis_factory, monkeypatch):
    """Return a function that creates the user of a service, and returns its server and URL."""
    monkeypatch.setattr(refusals, "_known", set())

    def make(name):
        provider = USERS[name]
        own = server
        if provider.unknown:
            renamed = [word for item in provider.unknown for word in ("--rename-command", item, "")]
            own = redis_factory(extra=renamed)
            return own, own.url()
        raw = own.client()
        raw.flushall()
        raw.config_resetstat()
        user = "".join(char for char in name if char.isalnum())
        rule = ["reset", "on", ">p", "~*", "&*", "+@all", *provider.rule.split()]
        raw.execute_command("ACL", "SETUSER", user, *rule)
        return own, own.url().replace("://", f"://{user}:p@")

    return make


def idle(server, worker, for_s=8.0):
    """Return the commands of clients, including refused ones, and the worker's CPU seconds."""
    raw = server.client(decode_responses=True)

    def refused():
        return sum(item["count"] for item in raw.info("errorstats").values())

    def cpu():
        times = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")

    before, used = refused(), cpu()
    seen = b""
    with socket.create_connection(("127.0.0.1", server.port)) as monitor:
        monitor.sendall(b"MONITOR\r\n")
        ends_at = time.monotonic() + for_s
        while (left_s := ends_at - time.monotonic()) > 0:
            monitor.settimeout(left_s)
            with suppress(TimeoutError):
                seen += monitor.recv(65536)
    sent = [line for line in seen.splitlines() if b" lua]" not in line and line != b"+OK"]
    return [*sent, *[b"refused"] * (refused() - before)], cpu() - used


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Memorystore for Valkey", "worst"])
def test_an_idle_worker_sends_little_and_begins_at_once(login, name, site_factory):
    """An idle worker sends at most two commands a second, never spins, and starts tasks at once."""
    server, url = login(name)
    site = site_factory(server, broker_transport_options={})
    worker = site.worker(pool="threads", broker=url, arguments=QUIET)
    site.send("add", 1, 1).get(timeout=30)  # one-time work of the client
    assert site.app.control.add_consumer("second", reply=True, timeout=20, limit=1)
    for queue in ("second", "celery", "second"):
        began = time.monotonic()
        site.send("add", 1, 1, queue=queue).get(timeout=10)
        assert time.monotonic() - began < 3
    idle(server, worker, for_s=5.0)  # one-time work of the worker
    sent, cpu_s = idle(server, worker)
    assert len(sent) <= 16, b"\n".join(line[:140] for line in sent).decode()
    assert cpu_s < 1
    site.settled()


@pytest.mark.slow
def test_an_idle_worker_of_a_cluster_sends_no_more_than_with_all_rights(site_factory):
    """A restricted worker waits for each slot separately, and sends no more commands."""
    counts = []
    with RedisCluster(1, 0) as cluster:
        (node,) = cluster.nodes
        node.ask("ACL", "SETUSER", "worst", "on", ">p", "~*", "&*", "+@all", *WORST.rule.split())
        for user in ("", "worst:p@"):
            url = cluster.url().replace("://", f"://{user}")
            site = site_factory(node, broker_transport_options={}, result_backend=None)
            worker = site.worker(pool="threads", broker=url, arguments=QUIET)
            began = time.monotonic()
            site.app.conf.broker_url = url
            task = site.send("record")
            site.journal.wait_finished(task.id)
            assert time.monotonic() - began < 4
            idle(node, worker, for_s=5.0)
            counts.append(len(idle(node, worker)[0]))
            worker.kill_group()
            cluster.flush()
    assert counts[1] <= counts[0] + 3, counts


@pytest.mark.slow
@pytest.mark.parametrize("name", [item.name for item in (*PROVIDERS, WORST, NOT_NAMED)])
def test_publish_consume_kill_restore_and_delay(login, name, tmp_path, caplog):
    """Messages of a killed process go to another one, delayed ones come in time, none is lost."""
    _, url = login(name)
    options = {**FAST, "poll_interval": 5}
    with Connection(url, transport_options=options) as connection:
        declare(connection, "q")
        declare(connection, "r")
        publish(connection, "q", "held")
        holder = Process([sys.executable, "-c", HOLDER, url], log_path=tmp_path / "log")
        try:
            wait_until(lambda: "took held" in holder.log(), what=holder.tail)
        finally:
            holder.kill_group()
        taker = Taker(connection, "q")
        assert ["held"] == taker.take_bodies(1)
        with suppress(TimeoutError):
            connection.drain_events(timeout=0.3)  # now it waits for q
        second = Taker(connection, "r", channel=taker.channel)
        with suppress(TimeoutError):
            connection.drain_events(timeout=0.3)  # and now for r as well
        with Connection(url, transport_options=options) as other:
            began = time.monotonic()
            publish(other, "r", "woken")
            connection.drain_events(timeout=5)
            assert time.monotonic() - began < 3
            assert ["woken"] == [message.payload for message in second.messages]
            second.messages[0].ack()
            publish(other, "q", "later", headers={"x-delay": 300})
            assert ["later"] == taker.take_bodies(1)
    assert_balanced(url)
    with Inspector(url) as inspector:
        findings = [item for item in inspector.doctor() if item.check == "acl"]
    assert not [item for item in findings if item.severity == "error"]
    for command in refusals.COSTS:
        said = [record for record in caplog.records if f"without {command}, " in record.message]
        assert len(said) <= 1
        if said:
            assert any(f"may not use {command}:" in item.message for item in findings)
    assert (name in {"Memorystore for Valkey", "Upstash"}) is (
        "without CLIENT UNBLOCK" in caplog.text
    )
    assert name != "worst" or len(caplog.records) >= 4


def test_the_page_prints_the_table():
    """The table in the documentation is the tested one."""
    assert table() == printed(), "run python -m tests.support.managed"
