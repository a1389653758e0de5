"""A Celery app that keeps a table of its tasks in step with the broker.

With a Redis on localhost, in this folder, two workers and then some work:

    celery -A task_table worker --hostname one@%h --concurrency 2
    celery -A task_table worker --hostname two@%h --concurrency 2
    python task_table.py

The third command publishes tasks and prints their rows until all are done. Kill a
worker and its children meanwhile (`pkill -9 -f one@`): some seconds later its rows
are "pending" again, with one retry more, and the other worker runs them.

Celery's own retries (`self.retry`) are left out: such a row stays "running" until the
task runs again. The table is a SQLite file, by default task_table.db; TASK_TABLE names another.
RELIQ_URL names another broker.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import task_failure, task_prerun, task_success

from reliq.signals import message_dead, message_published, message_restored

DATABASE = Path(os.environ.get("TASK_TABLE", "task_table.db")).resolve()

app = Celery("task_table", broker=os.environ.get("RELIQ_URL", "reliq://localhost:6379/0"))
app.conf.update(
    # Acknowledge when the task is done, not when it starts.
    task_acks_late=True,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": 60},
)


# -- the table


def execute(statement: str, **values: Any) -> list[tuple[Any, ...]]:
    """Run one statement in a transaction of its own; return the rows it yields."""
    # A new connection each time: it must not be shared across the pool's forks.
    with closing(sqlite3.connect(DATABASE, timeout=5)) as connection, connection:
        return connection.execute(statement, values).fetchall()


execute("PRAGMA journal_mode = WAL")  # readers and the writer do not wait for each other
execute(
    """
    CREATE TABLE IF NOT EXISTS tasks (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL,
        state TEXT NOT NULL,               -- pending, running, done, failed
        retries INTEGER NOT NULL DEFAULT 0,  -- runs that were cut off
        error TEXT NOT NULL DEFAULT '',
        updated TEXT NOT NULL DEFAULT (datetime('now'))
    )
    """
)


# -- what the broker tells: these run in whichever process published or restored a message.
# What happened meanwhile may already be in the table: a task can be done before its
# publisher says "published". So each statement says which states it may change.


@message_published.connect
def on_published(_broker: str, *, task_id: str | None, headers: dict[str, Any], **_: Any) -> None:
    """Enter a new task."""
    if task_id is None:
        return  # not a task: an event, or a broadcast to the workers
    execute(
        """
        INSERT INTO tasks (id, name, state) VALUES (:id, :name, 'pending')
        ON CONFLICT (id) DO NOTHING
        """,
        id=task_id,
        name=headers["task"],
    )


@message_restored.connect
def on_restored(_broker: str, *, task_id: str | None, count: int, **_: Any) -> None:
    """Put it back: its worker is gone and the message waits again."""
    # A higher count than the row's is news. Each run that was cut off counts, whichever task
    # of the worker was to blame (docs/leases.md, "Messages that kill").
    execute(
        """
        UPDATE tasks SET state = 'pending', retries = :count, updated = datetime('now')
        WHERE id = :id AND state IN ('pending', 'running') AND retries < :count
        """,
        id=task_id,
        count=count,
    )


@message_dead.connect
def on_dead(
    _broker: str, *, task_id: str | None, count: int, reason: str, error: str, **_: Any
) -> None:
    """Mark it as failed, as the broker did: its workers died, or nobody could read it."""
    execute(
        """
        UPDATE tasks SET state = 'failed', retries = :count, error = :error,
            updated = datetime('now')
        WHERE id = :id AND state <> 'done'
        """,
        id=task_id,
        count=count,
        error=f"{reason}: {error}",
    )


# -- what Celery tells: these run in the process that runs the task


@task_prerun.connect
def on_start(task_id: str, task: Any, **_: Any) -> None:
    """Mark it as running, and note which run this is."""
    execute(
        """
        INSERT INTO tasks (id, name, state, retries) VALUES (:id, :name, 'running', :count)
        ON CONFLICT (id) DO UPDATE SET state = 'running', retries = :count,
            updated = datetime('now')
        """,
        id=task_id,
        name=task.name,
        count=task.request.get("x-delivery-count", 0),
    )


@task_success.connect
def on_success(sender: Any, **_: Any) -> None:
    """Mark it as done."""
    execute(
        "UPDATE tasks SET state = 'done', error = '', updated = datetime('now') WHERE id = :id",
        id=sender.request.id,
    )


@task_failure.connect
def on_failure(task_id: str, exception: BaseException, **_: Any) -> None:
    """Mark it as failed: it raised, and Celery does not run it again."""
    execute(
        """
        UPDATE tasks SET state = 'failed', error = :error, updated = datetime('now')
        WHERE id = :id
        """,
        id=task_id,
        error=repr(exception),
    )


# -- the work


@app.task(name="task_table.work")
def work(seconds: float) -> None:
    """Take that long."""
    time.sleep(seconds)


def main() -> None:
    """Publish eight tasks and show the table until they are through."""
    seconds = float(os.environ.get("TASK_SECONDS", "3"))
    ids = [work.delay(seconds).id for _ in range(8)]
    states: dict[str, str] = {}
    while not {"pending", "running"}.isdisjoint(states.values()) or not states:
        rows = execute("SELECT id, state, retries, error FROM tasks")
        states = {task_id: state for task_id, state, _, _ in rows if task_id in ids}
        for task_id, state, retries, error in rows:
            if task_id in ids:
                print(f"{task_id[:8]}  {state:8} retries {retries}  {error}")
        print(flush=True)
        time.sleep(1.0)


if __name__ == "__main__":
    main()
