"""Commands of an idle Celery worker to a cluster, and the number of its connections."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from benchmarks import idle
from benchmarks.clusters import spread
from benchmarks.model import Figure, Row, Target
from benchmarks.peers import CLUSTER, CLUSTER_OF_ONE, RELIQ
from benchmarks.worker import QUIET, running

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.setting import Setting

QUEUE = "celery"
# Besides one for each node, as documented.
MOST_FOR_NOTIFICATIONS = 8
NODES = 3
# Commands per second that an idle worker may send, and more for each queue.
MOST, MOST_EACH = 0.5, 0.2


def measure(setting: Setting, key: str, queues: int) -> Mapping[str, float]:
    """Return commands per second to all nodes, and connections, after it has settled."""
    nodes = setting.redis_nodes
    names = [QUEUE] if queues == 1 else spread(QUEUE, queues)
    arguments = ("--concurrency", "1", "--loglevel", "INFO", "-Q", ",".join(names), *QUIET)
    before = sum(node.connections() for node in nodes)
    with running(setting.broker, *arguments) as worker:
        worker.wait_until_ready()
        time.sleep(max(1.0, 10 * setting.scale))
        # Before the count, which opens its own connections.
        sockets = sum(node.connections() for node in nodes) - before
        seconds = max(2.0, idle.IDLE_SECONDS * setting.scale)
        rate = idle.commands_in(nodes, seconds) / seconds
    return {f"{key}-commands": rate, f"{key}-sockets": sockets}


def _figure(queues: int) -> Figure:
    key = f"cluster-idle-{queues}"
    title = f"idle Celery worker, {queues} queue{'s' if queues > 1 else ''}"
    most = Target("value_at_most", NODES + MOST_FOR_NOTIFICATIONS, "connections")
    commands = Target("value_at_most", MOST + MOST_EACH * queues, "/s")
    rows = (
        Row(f"{key}-commands", f"{title}, all nodes", "commands/s", (commands,), digits=2),
        Row(f"{key}-sockets", f"{title}, connections to all nodes", "connections", (most,)),
    )
    measured = partial(measure, key=key, queues=queues)
    peers = (CLUSTER, CLUSTER_OF_ONE, RELIQ)
    return Figure(key, rows, measured, peers, most_rounds=1, warm_up=False)


FIGURES = (_figure(1), _figure(20))
