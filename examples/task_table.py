"""A Celery app that keeps an SQL table of its tasks in step with the broker.

Start Redis on localhost. In this folder, start two workers and publish tasks:

    celery -A task_table worker --hostname one@%h --concurrency 2
    celery -A task_table worker --hostname two@%h --concurrency 2
    python task_table.py

The third command publishes tasks and prints their rows until all are done. Meanwhile,
kill a worker and its children (`pkill -9 -f one@`). Some seconds later its rows are
"pending" again, with one more retry, and the other worker runs the tasks.

The table does not track Celery's own retries (`self.retry`): such a row stays "running"
until the task runs again. The table is the SQLite file task_table.db; to use another
file, set TASK_TABLE. To use another broker, set RELIQ_URL.
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
    # Acknowledge a task when it ends, not when it starts.
    task_acks_late=True,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": 60},
)


# -- the table


def execute(statement: str, **values: Any) -> list[tuple[Any, ...]]:
    """Run one statement in its own transaction; return its rows."""
    # A new connection each time: the pool's forks must not share one.
    with closing(sqlite3.connect(DATABASE, timeout=5)) as connection, connection:
        return connection.execute(statement, values).fetchall()


execute("PRAGMA journal_mode = WAL")  # readers and the writer do not block each other
execute(
    """
    CREATE TABLE IF NOT EXISTS tasks (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL,
        state TEXT NOT NULL,               -- pending, running, done, failed
        retries INTEGER NOT NULL DEFAULT 0,  -- interrupted runs
        error TEXT NOT NULL DEFAULT '',
        updated TEXT NOT NULL DEFAULT (datetime('now'))
    )
    """
)


# -- signals of the broker: these run in the process that published or restored the message.
# They may run late: a task can be done before its publisher records it. Each statement
# therefore names the states that it may change.


@message_published.connect
def on_published(_broker: str, *, task_id: str | None, headers: dict[str, Any], **_: Any) -> None:
    """Insert a new task."""
    if task_id is None:
        return  # not a task, but an event or a broadcast to the workers
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
    """Set the task to pending: its worker is gone, and its message waits again."""
    # Only a higher count than the row's is new. Each interrupted run counts, even if another
    # task killed the worker (docs/leases.md).
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
    """Mark the task as failed: its message became a dead letter."""
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


# -- signals of Celery: these run in the process that runs the task


@task_prerun.connect
def on_start(task_id: str, task: Any, **_: Any) -> None:
    """Mark the task as running, and record the number of the run."""
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
    """Mark the task as done."""
    execute(
        "UPDATE tasks SET state = 'done', error = '', updated = datetime('now') WHERE id = :id",
        id=sender.request.id,
    )


@task_failure.connect
def on_failure(task_id: str, exception: BaseException, **_: Any) -> None:
    """Mark the task as failed: it raised, and Celery does not retry it."""
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
    """Sleep for that time."""
    time.sleep(seconds)


def main() -> None:
    """Publish eight tasks, and print the table until they end."""
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
