"""Redis commands and bytes of one Celery task, from its publish to its ack."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

from benchmarks import child, idle
from benchmarks.model import Figure, Row
from benchmarks.worker import QUIET, publish_tasks, running

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.setting import Setting

COMMANDS, BYTES = "commands-per-task", "bytes-per-task"
TASKS = 2_000
RUN_WITHIN_S = 120.0
# Time for the ack of the last task to reach Redis.
SETTLE_S = 0.5


def measure(setting: Setting) -> Mapping[str, float]:
    """Return commands and bytes per no-op task of a quiet worker with one thread.

    Commands are counted in a separate run, because MONITOR would add to the bytes.
    """
    server, count = setting.redis, setting.paced(TASKS, least=50)
    arguments = ("--pool", "solo", "--loglevel", "INFO", *QUIET)
    with running(setting.broker, *arguments) as worker:
        worker.wait_until_ready()
        before = server.bytes_moved()
        child.run(publish_tasks, broker=setting.broker, count=count)
        worker.wait_for_tasks(count, RUN_WITHIN_S)
        time.sleep(SETTLE_S)
        moved = server.bytes_moved() - before
        with closing(idle.Counter(server)) as counted:
            counting = threading.Thread(target=counted.run)
            counting.start()
            child.run(publish_tasks, broker=setting.broker, count=count)
            worker.wait_for_tasks(2 * count, RUN_WITHIN_S)
            time.sleep(SETTLE_S)
            server.client.echo(idle.END)
            counting.join()
    return {COMMANDS: counted.sent / count, BYTES: moved / count}


FIGURES = (
    Figure(
        "traffic",
        (
            Row(COMMANDS, "Redis commands per Celery task", "commands", digits=2),
            Row(BYTES, "bytes to and from Redis per Celery task", "bytes"),
        ),
        measure,
        most_rounds=1,
        warm_up=False,
    ),
)
