"""The cost of a slot's move to another node, for its queue and for other queues.

The slot is moved as redis-cli does it: opened at both nodes, its keys moved in calls of ten, and
assigned to the target. A MIGRATE blocks both servers. Meanwhile, programs publish to the queue,
consume from it, and publish to queues of the same nodes and of a third node. The result is the
longest wait of each program for one call.
"""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from kombu import Consumer, Producer

from benchmarks import child
from benchmarks.clusters import slot_of
from benchmarks.fill import fill
from benchmarks.model import Figure, Row
from benchmarks.peers import CLUSTER, connect, queue_of
from benchmarks.publish import CONTENT, QUEUE, body_of
from benchmarks.servers import cpu_seconds

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping, Sequence

    from kombu import Message

    from benchmarks.clusters import Cluster
    from benchmarks.peers import Broker
    from benchmarks.servers import RedisServer
    from benchmarks.setting import Setting

SIZES = (1_000, 100_000)
BODY_SIZE = 300
RATE = 100.0
QUIET_SECONDS, AFTER_SECONDS = 2.0, 0.5
NEXT_WITHIN_S = 30.0
# Keys of one MIGRATE; redis-cli's default.
KEYS_A_CALL = 10
MIGRATE_WITHIN_MS = 60_000


def publish_steadily(broker: Broker, name: str) -> list[tuple[int, int]]:
    """Publish until SIGTERM; return begin and end of each call (monotonic, ns)."""
    with connect(broker) as connection:
        channel = connection.default_channel
        queue_of(broker, name)(channel).declare()
        producer, body = Producer(channel, routing_key=name), body_of(BODY_SIZE)
        return _steadily(lambda: producer.publish(body, **CONTENT))


def take_steadily(broker: Broker, name: str) -> list[tuple[int, int]]:
    """Consume and ack one message at a time until SIGTERM; return as `publish_steadily`."""
    connection = connect(broker)
    came = 0

    def received(message: Message) -> None:
        nonlocal came
        message.ack()
        came += 1

    def take() -> None:
        before = came
        while came == before:
            connection.drain_events(timeout=NEXT_WITHIN_S)

    options: dict[str, Any] = {"on_message": received, "prefetch_count": 1}
    with Consumer(connection.default_channel, [queue_of(broker, name)], **options):
        calls = _steadily(take)
    connection.close()
    return calls


def _steadily(call: Callable[[], object]) -> list[tuple[int, int]]:
    ended = False

    def end(*_: object) -> None:
        nonlocal ended
        ended = True

    signal.signal(signal.SIGTERM, end)
    call()
    calls: list[tuple[int, int]] = []
    print("ready", flush=True)
    while not ended:
        begun = time.monotonic_ns()
        call()
        calls.append((begun, time.monotonic_ns()))
        time.sleep(1 / RATE)
    return calls


@dataclass(frozen=True)
class Move:
    """Begin and end of a slot's move (ns), its longest MIGRATE, and its processor time.

    The processor time of both servers is shorter than the move if others use the processors.
    """

    begun: int
    ended: int
    longest_s: float
    cpu_s: float


def move(cluster: Cluster, slot: int, source: RedisServer, target: RedisServer) -> Move:
    """Move a slot in the way of redis-cli."""
    begun = time.monotonic_ns()
    target.ask("CLUSTER SETSLOT", slot, "IMPORTING", source.ask("CLUSTER MYID"))
    source.ask("CLUSTER SETSLOT", slot, "MIGRATING", target.ask("CLUSTER MYID"))
    where = ("127.0.0.1", target.port, "", 0, MIGRATE_WITHIN_MS, "KEYS")
    longest_s, cpu_s = 0.0, 0.0
    while keys := source.ask("CLUSTER GETKEYSINSLOT", slot, KEYS_A_CALL):
        used = -_cpu_seconds(source, target)
        before = time.monotonic()
        source.ask("MIGRATE", *where, *keys)
        took_s = time.monotonic() - before
        used += _cpu_seconds(source, target)
        if took_s > longest_s:
            longest_s, cpu_s = took_s, used
    for node in (target, source, *cluster.nodes):
        node.ask("CLUSTER SETSLOT", slot, "NODE", target.ask("CLUSTER MYID"))
    return Move(begun, time.monotonic_ns(), longest_s, cpu_s)


def _cpu_seconds(*servers: RedisServer) -> float:
    return sum(cpu_seconds(server.client) for server in servers)


def measure(setting: Setting, full: int) -> Mapping[str, float]:
    """Return the longest MIGRATE, the move and each program's longest call, in ms."""
    cluster, slot = setting.cluster, slot_of(QUEUE)
    source = cluster.owner(slot)
    target, third = (node for node in cluster.nodes if node != source)
    # The number in a figure's name is not scaled down, only limited.
    fill(setting, min(full, setting.largest), size=BODY_SIZE)
    publish = partial(child.start, publish_steadily, broker=setting.broker)
    with ExitStack() as stack:
        programs: dict[str, subprocess.Popen[str]] = {}
        for name, start in (
            ("publish", partial(publish, name=QUEUE)),
            ("reserve", partial(child.start, take_steadily, broker=setting.broker, name=QUEUE)),
            ("source", partial(publish, name=cluster.queue_at(source))),
            ("target", partial(publish, name=cluster.queue_at(target))),
            ("third", partial(publish, name=cluster.queue_at(third))),
        ):
            programs[name] = start()
            stack.callback(child.stop, programs[name])
        for process in programs.values():
            child.wait_for_line(process)
        quiet = time.monotonic_ns()
        time.sleep(setting.seconds(QUIET_SECONDS))
        moved = move(cluster, slot, source, target)
        time.sleep(AFTER_SECONDS)
        for process in programs.values():
            process.terminate()
        calls = {name: child.result(process) for name, process in programs.items()}
    key = f"cluster-move-{full}"
    until = moved.ended + round(AFTER_SECONDS * 1e9)
    beside = [call for name in ("source", "target", "third") for call in calls[name]]
    return {
        f"{key}-migrate": 1e3 * moved.longest_s,
        f"{key}-cpu": 1e3 * moved.cpu_s,
        f"{key}-whole": (moved.ended - moved.begun) / 1e6,
        **{f"{key}-{name}": _longest(calls[name], moved.begun, until) for name in calls},
        f"{key}-quiet": _longest(beside, quiet, moved.begun),
    }


def _longest(calls: Sequence[tuple[int, int]], begun: int, ended: int) -> float:
    """Return the longest call in ms among those that overlap the period."""
    within = [end - begin for begin, end in calls if end >= begun and begin <= ended]
    if not within:
        raise AssertionError("a program did nothing while the slot was moved")
    return max(within) / 1e6


def _figure(full: int) -> Figure:
    key, text = f"cluster-move-{full}", f"slot move, queue of {full:,}"
    titles = {
        "migrate": "longest MIGRATE",
        "cpu": "CPU of both nodes for that MIGRATE",
        "whole": "first command to last",
        "publish": "longest publish to the queue",
        "reserve": "longest reserve and ack from the queue",
        "source": "longest publish to another queue on the source",
        "target": "longest publish to another queue on the target",
        "third": "longest publish to another queue on a third node",
        "quiet": "longest publish to other queues before the move",
    }
    rows = tuple(
        Row(f"{key}-{name}", f"{text}, {title}", "ms", digits=1) for name, title in titles.items()
    )
    return Figure(key, rows, partial(measure, full=full), (CLUSTER,), 3, warm_up=False)


FIGURES = tuple(_figure(full) for full in SIZES)
