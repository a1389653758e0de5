"""Real Celery workers as subprocesses, and their tasks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import redis

from benchmarks import record
from benchmarks.child import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.peers import Broker

BROKER, ACKS_LATE, PROFILE = "BENCHMARK_BROKER", "BENCHMARK_ACKS_LATE", "BENCHMARK_PROFILE"
BACKEND = "BENCHMARK_BACKEND"
QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")
PARKED = "parked"
READY_WITHIN_S = 60.0
STOP_WITHIN_S = 60.0
LOOK_EVERY_S = 0.05


def publish_tasks(broker: Broker, count: int, task: str = "noop") -> None:
    """Publish tasks in a separate process."""
    os.environ[BROKER] = json.dumps(broker)
    from benchmarks import celery_app

    chosen = getattr(celery_app, task)
    for _ in range(count):
        chosen.delay()
    celery_app.app.close()


def begin_consuming(broker: Broker) -> None:
    """Make every worker that was started on the parked queue consume tasks now."""
    os.environ[BROKER] = json.dumps(broker)
    from benchmarks.celery_app import app

    app.control.add_consumer("celery")
    app.close()


def memory_of_tasks(broker: Broker, port: int, warm_up: int, count: int) -> tuple[float, float]:
    """Publish no-op tasks; return the bytes of Redis memory before, and added by the `count`."""
    os.environ[BROKER] = json.dumps(broker)
    from benchmarks.celery_app import app, noop

    with redis.Redis(port=port) as client:
        for _ in range(warm_up):
            noop.delay()
        before = client.info("memory")["used_memory"]
        for _ in range(count):
            noop.delay()
        after = client.info("memory")["used_memory"]
    app.close()
    return float(before), float(after - before)


@contextmanager
def running(
    broker: Broker,
    *arguments: str,
    records: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Worker]:
    """Run a Celery worker with Celery's defaults; shut it down warmly when the block ends.

    Workers with the same directory of `records` are counted together.
    """
    with tempfile.TemporaryDirectory(prefix="reliq-benchmark-") as directory:
        log = Path(directory) / "log"
        if records is None:
            records = Path(directory) / "records"
            records.mkdir()
        command = [sys.executable, "-m", "celery", "-A", "benchmarks.celery_app", "worker"]
        variables = {
            **os.environ,
            BROKER: json.dumps(broker),
            record.DIRECTORY: str(records),
            **(environment or {}),
        }
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, *arguments], cwd=ROOT, env=variables, stdout=output, stderr=output
            )
        try:
            yield Worker(process, records, log)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@dataclass(frozen=True)
class Worker:
    """A worker subprocess, the directory with the records of its tasks, and its log."""

    process: subprocess.Popen[bytes]
    records: Path
    log: Path

    def wait_for_tasks(self, count: int, within_s: float) -> record.Ran:
        """Return the record after `count` tasks; raise if more run, or if time is up."""
        deadline = time.monotonic() + within_s
        while (ran := record.read(self.records)).tasks < count:
            self._check(deadline, f"{ran.tasks} of {count} tasks ran")
        if ran.tasks > count:
            raise AssertionError(f"{ran.tasks} tasks ran, {count} were published")
        return ran

    def wait_for_callback(self, within_s: float, look: Callable[[], None]) -> float:
        """Return the seconds from the first task to the callback; call `look` meanwhile."""
        deadline = time.monotonic() + within_s
        while not (finished_ns := record.finished_ns(self.records)):
            self._check(deadline, f"no callback, {record.read(self.records).tasks} tasks ran")
            look()
        return (finished_ns - record.read(self.records).began_ns) / 1e9

    def wait_until_ready(self) -> None:
        """Return when the worker has logged that it is ready, which needs `--loglevel INFO`."""
        deadline = time.monotonic() + READY_WITHIN_S
        while b" ready." not in self.log.read_bytes():
            self._check(deadline, "not ready")

    def cpu_seconds(self) -> float:
        """Return the processor time of the main process, without its children."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _check(self, deadline: float, state: str) -> None:
        if self.process.poll() is not None or time.monotonic() > deadline:
            log = self.log.read_text(errors="replace")[-4000:]
            raise AssertionError(f"{state}, exit status {self.process.poll()}; its log:\n{log}")
        time.sleep(LOOK_EVERY_S)
