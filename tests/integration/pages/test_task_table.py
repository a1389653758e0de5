"""examples/task_table.py: rows match the broker's state when workers are killed."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.audits import assert_balanced, wait_settled
from tests.support.processes import Process
from tests.support.waiting import wait_until
from tests.support.workers import CeleryWorker, app_environment

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
APP = "tests.integration.apps.table"
FAST = {
    "visibility_timeout": 3.0,
    "restore_interval": 0.3,
    "orphan_grace": 0.3,
    "poll_interval": 0.5,
}


class Table:
    """The example's application on one broker: its workers, its client and its rows."""

    def __init__(self, url, journal, directory):
        self.url, self._journal, self.directory = url, journal, directory
        self._database = directory / "tasks.db"
        self.extra = {"RELIQ_URL": url, "TASK_TABLE": str(self._database)}
        # A worker takes no more than it runs.
        self._config = {"broker_transport_options": dict(FAST), "worker_prefetch_multiplier": 1}
        self.started = []

    def worker(self, *, ready=True, **options):
        """Start a prefork worker of the example's application."""
        worker = CeleryWorker(
            None,
            self._journal,
            directory=self.directory,
            name=f"worker{len(self.started) + 1}",
            app=APP,
            config=self._config | {"broker_transport_options": FAST | options.pop("options", {})},
            env=self.extra,
            **options,
        )
        self.started.append(worker)
        return worker.wait_ready() if ready else worker

    def send(self, name, *args, times=1):
        """Publish *times* tasks from a process of the application; return their ids."""
        script = f"from {APP} import *\nfor _ in range({times}): print({name}.delay(*{args!r}).id)"
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=app_environment(None, self._journal, self._config, self.extra),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (0, "") == (done.returncode, done.stderr)
        return done.stdout.split()

    def row(self, task_id):
        """Return (state, retries, error)."""
        statement = "SELECT state, retries, error FROM tasks WHERE id = ?"
        with closing(sqlite3.connect(self._database)) as connection:
            return connection.execute(statement, (task_id,)).fetchone()

    def wait_rows(self, ids, state, retries, error=""):
        """Wait until all these rows have these values."""
        wait_until(
            lambda: {self.row(task_id) for task_id in ids} == {(state, retries, error)},
            what=lambda: f"{state}, {retries}: {Counter(map(self.row, ids))}\n{self.tails()}",
        )

    def tails(self):
        """Return the last log lines of every worker."""
        return "\n".join(f"{worker.name}:\n{worker.tail(15)}" for worker in self.started)


@pytest.fixture
def table(fresh_redis, journal, tmp_path):
    """Return a Table on a separate server; its workers end after the test."""
    table = Table(fresh_redis.url("reliq"), journal, tmp_path)
    yield table
    for worker in table.started:
        worker.kill_group()


@pytest.mark.slow
def test_rows_of_a_killed_worker_go_back_to_pending(table, tmp_path):
    """Running rows of a killed worker are pending with one retry, and another worker runs them."""
    release, busy = tmp_path / "release", tmp_path / "busy"
    killed = table.worker(concurrency=2)
    ids = table.send("hold", str(release), times=2)
    table.wait_rows(ids, "running", 0)
    other = table.worker(concurrency=1)
    # The other worker is busy, so that the returned rows are seen waiting.
    blocker = table.send("hold", str(busy))
    table.wait_rows(blocker, "running", 0)
    killed.kill_group()
    table.wait_rows(ids, "pending", 1)
    table.wait_rows(blocker, "running", 0)
    busy.touch()
    release.touch()
    table.wait_rows(ids, "done", 1)
    table.wait_rows(blocker, "done", 0)
    wait_settled(table.url, "celery")
    assert other.running


@pytest.mark.slow
def test_rows_of_a_poison_task_end_as_failed(table, tmp_path):
    """The row of a task that kills two workers states the reason; another task is done."""
    options = {"delivery_limit": 2}
    first = table.worker(options=options)
    (bad,) = table.send("poison")
    assert -9 == first.wait()
    second = table.worker(options=options, ready=False)
    assert -9 == second.wait()
    assert ("running", 1, "") == table.row(bad)
    table.worker(options=options)
    table.wait_rows([bad], "failed", 2, "delivery_limit: lease ended")
    release = tmp_path / "release"
    release.touch()
    table.wait_rows(table.send("hold", str(release)), "done", 0)
    wait_settled(table.url, "celery", dead=1)


@pytest.mark.slow
def test_the_row_of_an_innocent_neighbour_goes_back_too(table, tmp_path):
    """If another task kills the worker, a task's row is pending with one retry, and done later."""
    kill, busy, release = tmp_path / "kill", tmp_path / "busy", tmp_path / "release"
    (bad,) = table.send("poison", str(kill))
    kill.touch()
    for _ in range(2):  # after two deaths it is a poison candidate
        assert -9 == table.worker(ready=False).wait()
    kill.unlink()
    killed = table.worker(concurrency=2)
    table.wait_rows([bad], "running", 2)
    innocent = table.send("hold", str(release))
    table.wait_rows(innocent, "running", 0)
    table.worker(concurrency=2)
    blockers = table.send("hold", str(busy), times=2)
    table.wait_rows(blockers, "running", 0)
    kill.touch()
    assert -9 == killed.wait()
    table.wait_rows([bad], "pending", 3)
    table.wait_rows(innocent, "pending", 1)
    table.wait_rows(blockers, "running", 0)
    kill.unlink()
    release.touch()
    busy.touch()
    table.wait_rows(blockers, "done", 0)
    table.wait_rows(innocent, "done", 1)
    table.wait_rows([bad], "running", 3)
    assert_balanced(table.url)


def test_rows_of_what_raises_are_failed(table):
    """The row of a task that raises is failed, with Celery's text of the exception."""
    table.worker(concurrency=1)
    table.wait_rows(table.send("explode"), "failed", 0, "ValueError('as told')")
    wait_settled(table.url, "celery")


@pytest.mark.slow
def test_the_example_runs_as_its_comment_says(redis_url, tmp_path):
    """Two processes of the example end with eight rows, all done."""
    environment = {
        **os.environ,
        "RELIQ_URL": redis_url,
        "TASK_TABLE": str(tmp_path / "tasks.db"),
        "TASK_SECONDS": "0.1",
    }
    worker = Process(
        [sys.executable, "-m", "celery", "-A", "task_table", "worker", "--concurrency", "2"],
        log_path=tmp_path / "worker.log",
        env=environment,
        cwd=EXAMPLES,
    )
    try:
        done = subprocess.run(
            [sys.executable, "task_table.py"],
            cwd=EXAMPLES,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (0, "") == (done.returncode, done.stderr), worker.tail()
        last = done.stdout.strip().split("\n\n")[-1].splitlines()
        assert 8 == sum("  done " in line for line in last)
        worker.signal(15)
        assert 0 == worker.wait(30)
    finally:
        worker.kill_group()
    assert_balanced(redis_url)
