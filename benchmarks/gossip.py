"""The server's work for idle Celery workers, over reliq and over Kombu's Redis transport at once.

`python -m benchmarks.gossip 24 50 --clients 100` starts 24 workers for each transport, then 50, and
then 100 bare clients that replay the traffic of a worker. Each transport has a server of its own,
and both run at the same time, so that the load of the machine affects both alike. Workers have the
solo pool and Celery's defaults: each sends a heartbeat every 2 s, and reads all others'.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kombu import Connection, Consumer, Exchange, Producer, Queue

import reliq
from tests.support.journal import Journal
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.support.workers import CeleryWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SCHEMES = ("redis", "reliq")
HEARTBEAT_S = 2.0
_EVENT = {"hostname": "worker@" + "h" * 20, "utcoffset": 0, "pid": 1234, "clock": 1, "freq": 2.0}


def client(url: str, number: int) -> None:
    """Consume as an idle worker does, and send heartbeats, until killed."""
    assert reliq
    temporary = {"durable": False, "auto_delete": True, "expires": 60}
    events, mailboxes = Exchange("celeryev", "fanout"), Exchange("celery.pidbox", "fanout")
    queues = (
        Queue("celery", Exchange("celery"), "celery"),
        Queue(f"w{number}.celery.pidbox", mailboxes, message_ttl=300, **temporary),
        Queue(f"celeryev.{number}", events, "worker.#", message_ttl=HEARTBEAT_S, **temporary),
    )
    with Connection(url) as connection, Connection(url) as publishing, ExitStack() as stack:
        for queue in queues:
            no_ack = queue.name != "celery"
            taking = Consumer(connection.channel(), [queue], on_message=_read, no_ack=no_ack)
            stack.enter_context(taking)
        producer = Producer(publishing.channel(), events)
        due = time.monotonic() + random.uniform(0, HEARTBEAT_S)
        while True:
            with suppress(TimeoutError):
                connection.drain_events(timeout=max(due - time.monotonic(), 0.001))
            if time.monotonic() >= due:
                due += HEARTBEAT_S
                producer.publish(_EVENT, routing_key="worker.heartbeat", delivery_mode=1)


def _read(message: object) -> None:
    del message


def _clients(stack: ExitStack, url: str, n: int) -> Sequence[int | None]:
    context = multiprocessing.get_context("fork")
    started = [context.Process(target=client, args=(url, i), daemon=True) for i in range(n)]
    for process in started:
        stack.callback(process.kill)
        process.start()
    return [process.pid for process in started]


def _workers(stack: ExitStack, url: str, n: int) -> Sequence[int | None]:
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="reliq-gossip-")))
    journal = Journal(directory / "journal")
    stack.callback(journal.close)
    started = []
    for i in range(n):
        worker = CeleryWorker(
            url, journal, directory=directory, name=f"w{i}", pool="solo", mingle=True
        )
        stack.callback(worker.kill_group)
        started.append(worker)
        if i % 4 == 3:  # a few at a time
            worker.wait_ready()
    for worker in started:
        worker.wait_ready(300)
    return [worker.pid for worker in started]


def measure(
    n: int, start: Callable[[ExitStack, str, int], Sequence[int | None]], seconds: float
) -> dict[str, dict[str, float]]:
    """Return, by transport, the loads over *seconds* by *n* idle participants."""
    with ExitStack() as stack:
        servers = {scheme: RedisServer() for scheme in SCHEMES}
        pids = {}
        for scheme, server in servers.items():
            stack.callback(server.destroy)
            server.start()
            pids[scheme] = start(stack, server.url(scheme), n)
        for server in servers.values():
            subscribed = partial(_subscribed, server, n)
            wait_until(subscribed, timeout_s=300, what=f"{n} participants to subscribe")
        time.sleep(5)  # the clients have sent their first heartbeats
        before = {scheme: _look(servers[scheme], pids[scheme]) for scheme in SCHEMES}
        time.sleep(seconds)
        after = {scheme: _look(servers[scheme], pids[scheme]) for scheme in SCHEMES}
    return {
        scheme: {key: (after[scheme][key] - value) / seconds for key, value in one.items()}
        for scheme, one in before.items()
    }


def _subscribed(server: RedisServer, n: int) -> bool:
    with server.client() as raw:
        subscribed = sum(one["sub"] + one["psub"] != "00" for one in raw.client_list())
        return subscribed + raw.hlen("reliq:bindings:{celeryev}") // 2 >= n


def _look(server: RedisServer, pids: Sequence[int | None]) -> dict[str, float]:
    with server.client() as raw:
        cpu, stats = raw.info("cpu"), raw.info("commandstats")
    return {
        "server": 100 * (cpu["used_cpu_user"] + cpu["used_cpu_sys"]),
        "all of them": 100 * sum(_cpu_s(pid) for pid in pids if pid),
        "commands": sum(one["calls"] for one in stats.values()),
    }


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure each size, and print one row for each transport."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gossip", description=__doc__)
    parser.add_argument("workers", type=int, nargs="*", help="numbers of Celery workers")
    parser.add_argument("--clients", type=int, nargs="*", default=[], help="of bare clients")
    parser.add_argument("--seconds", type=float, default=30.0)
    told = parser.parse_args()
    print("| idle | | server, % of a core | all of them, % of a core | commands/s |")
    print("| --- | --- | --- | --- | --- |")
    sizes = [(n, "workers", _workers) for n in told.workers]
    sizes += [(n, "clients", _clients) for n in told.clients]
    for n, kind, start in sizes:
        found = measure(n, start, told.seconds)
        for scheme, one in found.items():
            figures = f"{one['server']:.2f} | {one['all of them']:.1f} | {one['commands']:.0f}"
            print(f"| {n} {kind} | {scheme}:// | {figures} |")
        ratio = found["reliq"]["server"] / found["redis"]["server"]
        print(f"the server's time of reliq:// is {ratio:.2f} times that of redis://", flush=True)


if __name__ == "__main__":
    sys.exit(main())
