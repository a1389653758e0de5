"""Real Celery workers as subprocesses, and the tasks they are given."""

from __future__ import annotations

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
    from collections.abc import Iterator

BROKER = "BENCHMARK_BROKER"
READY_WITHIN_S = 60.0
STOP_WITHIN_S = 60.0
LOOK_EVERY_S = 0.05


def publish_tasks(url: str, count: int) -> None:
    """Publish no-op tasks, in a process of its own."""
    os.environ[BROKER] = url
    from benchmarks.celery_app import app, noop

    for _ in range(count):
        noop.delay()
    app.close()


def memory_of_tasks(url: str, port: int, warm_up: int, count: int) -> float:
    """Publish no-op tasks; return the bytes of Redis memory that each one takes while it waits."""
    os.environ[BROKER] = url
    from benchmarks.celery_app import app, noop

    with redis.Redis(port=port) as client:
        for _ in range(warm_up):
            noop.delay()
        before = client.info("memory")["used_memory"]
        for _ in range(count):
            noop.delay()
        after = client.info("memory")["used_memory"]
    app.close()
    return float(after - before) / count


@contextmanager
def running(url: str, *arguments: str) -> Iterator[Worker]:
    """Run a Celery worker with Celery's defaults; shut it down warmly when the block ends."""
    with tempfile.TemporaryDirectory(prefix="reliq-benchmark-") as directory:
        records, log = Path(directory) / "records", Path(directory) / "log"
        records.mkdir()
        command = [sys.executable, "-m", "celery", "-A", "benchmarks.celery_app", "worker"]
        environment = {**os.environ, BROKER: url, record.DIRECTORY: str(records)}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, *arguments], cwd=ROOT, env=environment, stdout=output, stderr=output
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
    """A worker subprocess, where its tasks note that they ran, and its log."""

    process: subprocess.Popen[bytes]
    records: Path
    log: Path

    def wait_for_tasks(self, count: int, within_s: float) -> record.Ran:
        """Return what ran once `count` tasks have run; raise if more run, or if time is up."""
        deadline = time.monotonic() + within_s
        while (ran := record.read(self.records)).tasks < count:
            self._check(deadline, f"{ran.tasks} of {count} tasks ran")
        if ran.tasks > count:
            raise AssertionError(f"{ran.tasks} tasks ran, {count} were published")
        return ran

    def wait_until_ready(self) -> None:
        """Return once the worker has logged that it is ready, which needs `--loglevel INFO`."""
        deadline = time.monotonic() + READY_WITHIN_S
        while b" ready." not in self.log.read_bytes():
            self._check(deadline, "not ready")

    def _check(self, deadline: float, state: str) -> None:
        if self.process.poll() is not None or time.monotonic() > deadline:
            log = self.log.read_text(errors="replace")[-4000:]
            raise AssertionError(f"{state}, exit status {self.process.poll()}; its log:\n{log}")
        time.sleep(LOOK_EVERY_S)
