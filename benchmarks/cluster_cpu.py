"""Processor time of a message, for each node of a cluster and for the client.

Nodes on one machine compete for its processors with each other and with the client. A rate would
therefore not apply to nodes on separate machines. The processor time of each, as counted by the
system, does: the time of the busiest node for a message limits the rate.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

import redis
from kombu import Consumer, Exchange, Producer

from benchmarks import child, consume
from benchmarks.clusters import spread
from benchmarks.fill import fill
from benchmarks.model import Figure, Row, Target
from benchmarks.peers import CLUSTER, CLUSTER_OF_ONE, RELIQ, connect, queue_of
from benchmarks.publish import ANONYMOUS, CONTENT, NAMED, QUEUE, SIZE, body_of, wait_until_stored
from benchmarks.servers import cpu_seconds
from reliq.message.queue_names import partition_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kombu import Message

    from benchmarks.peers import Broker
    from benchmarks.setting import Setting

COUNT = 20_000
PREFETCH = 64
# The work of a busy server, which processes many messages at a time.
BATCH, ACKED_AT_ONCE = 500, 32
QUEUES = 8
PARTITIONS = 8
# Least ratio of messages in a queue with partitions: three nodes compared with one.
LEAST_MORE = Target("ratio_at_least", 2.2, against=CLUSTER_OF_ONE)
# Largest cost of a publisher over a cluster, compared with one over a server.
MOST_OF_CLIENT = Target("ratio_at_most", 1.05, against=RELIQ)


class Used(TypedDict):
    """Microseconds of processor time per message, of each node and of the client."""

    nodes: list[float]
    client: float


class Meter:
    """Adds up the processor time of servers and of this process."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._clients = [redis.Redis(port=port, decode_responses=True) for port in ports]
        self._nodes: list[float] = []
        self._client = 0.0

    def begin(self) -> None:
        """Count from now on."""
        self._nodes = [cpu_seconds(client) for client in self._clients]
        self._client = time.process_time()

    def end(self, count: int) -> Used:
        """Return the time per message, for *count* messages since `begin`."""
        client = time.process_time() - self._client
        nodes = [
            cpu_seconds(client) - before
            for client, before in zip(self._clients, self._nodes, strict=True)
        ]
        for asked in self._clients:
            asked.close()
        return {"nodes": [1e6 * each / count for each in nodes], "client": 1e6 * client / count}


def publish_all(
    broker: Broker,
    ports: Sequence[int],
    names: Sequence[str],
    exchange_name: str,
    waits: bool,
    warm_up: int,
    count: int,
    bulk: bool = False,
) -> Used:
    """Publish `warm_up` messages, then `count`, to each queue in turn; measure the latter.

    With `waits`, each is stored before the next; otherwise, wait for all at the end. `bulk`: in
    batches. Both counts are multiples of the number of queues.
    """
    confirm = {} if waits or bulk else {"confirm": "none"}
    meter = Meter(ports)
    exchange = Exchange(exchange_name, type="direct")
    with connect(broker) as connection:
        channel = connection.default_channel
        queues = [
            queue_of(broker, name, exchange=exchange, routing_key=name)(channel) for name in names
        ]
        for queue in queues:
            queue.declare()
        producer, body = Producer(channel, exchange=exchange), body_of(SIZE)

        def publish(messages: int) -> None:
            with producer.batch(max_size=BATCH) if bulk else nullcontext():
                for _ in range(messages // len(names)):
                    for name in names:
                        producer.publish(body, routing_key=name, **CONTENT, **confirm)

        def wait(messages: int) -> None:
            for queue in queues:
                wait_until_stored(queue, messages // len(names))

        publish(warm_up)
        wait(warm_up)
        meter.begin()
        publish(count)
        wait(warm_up + count)
        return meter.end(count)


def consume_all(
    broker: Broker,
    ports: Sequence[int],
    names: Sequence[str],
    warm_up: int,
    count: int,
    bulk: bool = False,
) -> Used:
    """Consume and ack `warm_up` messages (1 or more), then `count`; measure the latter.

    `bulk`: several messages are acked at once. The connection is closed within the measurement, so
    that no ack is in transit.
    """
    meter = Meter(ports)
    connection = connect(broker)
    seen = 0

    def received(_body: Any, message: Message) -> None:
        nonlocal seen
        seen += 1
        if not bulk:
            message.ack()
        elif seen % ACKED_AT_ONCE == 0:
            message.ack(multiple=True)
        if seen == warm_up:
            meter.begin()

    queues = [queue_of(broker, name) for name in names]
    options: dict[str, Any] = {"callbacks": [received], "prefetch_count": PREFETCH}
    Consumer(connection.default_channel, queues, **options).consume()
    while seen < warm_up + count:
        connection.drain_events(timeout=consume.NEXT_WITHIN_S)
    connection.close()
    return meter.end(count)


def measure(
    setting: Setting, key: str, names: Sequence[str], partitions: int = 1
) -> Mapping[str, float]:
    """Return the cost of a message for nodes and client, to publish and to consume.

    Also returns the cost if servers process many messages at a time, as they do when they are
    busy. Over a cluster, each queue has *partitions* partitions.
    """
    given = _given(setting, names)
    if partitions > 1 and setting.peer.place.startswith("cluster"):
        given["broker"]["queue_arguments"]["x-partitions"] = partitions
        names = [part for name in names for part in partition_names(name, partitions)]
    given_to_publish = {**given, "exchange_name": ANONYMOUS}
    waited: Used = child.run(publish_all, waits=True, **given_to_publish)
    setting.server.empty()
    posted: Used = child.run(publish_all, waits=False, **given_to_publish)
    setting.server.empty()
    fill(setting, given["warm_up"] + given["count"], given["names"], broker=given["broker"])
    consumed: Used = child.run(consume_all, **given)
    consume.check_all_acked(setting, names)
    setting.server.empty()
    in_batches: Used = child.run(publish_all, waits=False, bulk=True, **given_to_publish)
    setting.server.empty()
    fill(setting, given["warm_up"] + given["count"], given["names"], broker=given["broker"])
    at_once: Used = child.run(consume_all, bulk=True, **given)
    return {
        **_values(f"{key}-publish", waited),
        **_values(f"{key}-post", posted),
        **_values(f"{key}-consume", consumed),
        f"{key}-capacity": _capacity(posted, consumed),
        **_values(f"{key}-batch", in_batches),
        **_values(f"{key}-multiple", at_once),
        f"{key}-bulk-capacity": _capacity(in_batches, at_once),
    }


def _capacity(published: Used, consumed: Used) -> float:
    both = [sum(pair) for pair in zip(published["nodes"], consumed["nodes"], strict=True)]
    return 1e6 / max(both)


def measure_named(setting: Setting) -> Mapping[str, float]:
    """Return the cost of a publish to a named exchange, whose bindings may be on another node."""
    given = {**_given(setting, [QUEUE]), "exchange_name": NAMED, "waits": True}
    return _values(_NAMED, child.run(publish_all, **given))


def _given(setting: Setting, names: Sequence[str]) -> dict[str, Any]:
    warm_up, count = (len(names) * setting.size(n // len(names)) for n in (COUNT // 20, COUNT))
    return {
        "broker": setting.broker,
        "ports": [node.port for node in setting.redis_nodes],
        "names": list(names),
        "warm_up": warm_up,
        "count": count,
    }


def _values(key: str, used: Used) -> dict[str, float]:
    return {
        f"{key}-busiest": max(used["nodes"]),
        f"{key}-all": sum(used["nodes"]),
        f"{key}-client": used["client"],
    }


def _rows(key: str, title: str, *targets: Target) -> tuple[Row, ...]:
    return (
        Row(f"{key}-busiest", f"{title}: CPU of the busiest node", "µs", digits=1),
        Row(f"{key}-all", f"{title}: CPU of all nodes", "µs", digits=1),
        Row(f"{key}-client", f"{title}: CPU of the client", "µs", targets, digits=1),
    )


def _figure(
    key: str, title: str, names: Sequence[str], partitions: int = 1, *targets: Target
) -> Figure:
    rows = (
        *_rows(f"{key}-publish", f"{title}, publish", MOST_OF_CLIENT),
        *_rows(f"{key}-post", f'{title}, publish with confirm="none"'),
        *_rows(f"{key}-consume", f"{title}, reserve and ack"),
        Row(
            f"{key}-capacity",
            f"{title}, computed capacity of the busiest node",
            "messages/s",
            targets,
        ),
        *_rows(f"{key}-batch", f"{title}, publish in batches of {BATCH}"),
        *_rows(f"{key}-multiple", f"{title}, reserve and ack {ACKED_AT_ONCE} at once"),
        Row(
            f"{key}-bulk-capacity",
            f"{title}, computed capacity of the busiest node, in batches",
            "messages/s",
            targets,
        ),
    )
    measured = partial(measure, key=key, names=names, partitions=partitions)
    return Figure(key, rows, measured, PEERS)


PEERS = (CLUSTER, CLUSTER_OF_ONE, RELIQ)
_NAMED = "cluster-named"
FIGURES = (
    _figure("cluster-1-queue", "one queue", [QUEUE]),
    Figure(_NAMED, _rows(_NAMED, "named exchange, publish"), measure_named, PEERS),
    _figure(f"cluster-{QUEUES}-queues", f"{QUEUES} queues", spread(QUEUE, QUEUES)),
    _figure(
        f"cluster-{PARTITIONS}-partitions",
        f"one queue in {PARTITIONS} partitions",
        [QUEUE],
        PARTITIONS,
        LEAST_MORE,
    ),
)
