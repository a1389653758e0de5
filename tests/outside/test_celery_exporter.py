"""The queries of celery-exporter: events of all kinds, workers, queue lengths and consumers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

from tests.support.waiting import wait_until
from tests.support.workers import app_environment


class Exporter:
    """The exporter's process, which prints events as lines, and answers a line with a report."""

    def __init__(self, site, directory):
        self.path = directory / "exporter.log"
        with self.path.open("ab") as log, (directory / "exporter.err").open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.outside.programs.exporter"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=errors,
                env=app_environment(site.broker, site.journal),
            )

    def lines(self, kind=None):
        """Return the values that it has printed so far, of one kind or of all."""
        found = [json.loads(line) for line in self.path.read_text().splitlines()]
        return [what for name, what in found if kind in {None, name}]

    def look(self):
        """Request a report, and return it."""
        before = len(self.lines("look"))
        self._process.stdin.write(b"look\n")
        self._process.stdin.flush()
        wait_until(lambda: len(self.lines("look")) > before, what=self.path.read_text)
        return self.lines("look")[-1]

    def events(self):
        """Return the number of received task events of each kind."""
        found = [json.loads(line) for line in self.path.read_text().splitlines()]
        return Counter(name for name, _ in found if name.startswith("task-"))

    def close(self):
        """End the process."""
        self._process.kill()
        self._process.communicate(timeout=10)


def test_the_exporter_counts_every_event_and_sees_the_queues(
    site_factory, redis_server, redis_url, tmp_path
):
    """Each event is received once; lengths and consumers are right with and without workers."""
    del redis_url  # emptied
    config = {"task_ignore_result": True, "result_backend": None, "task_send_sent_event": True}
    site = site_factory(redis_server, **config)
    worker = site.worker(concurrency=2, arguments=["--events"])
    exporter = Exporter(site, tmp_path)
    try:
        wait_until(lambda: exporter.lines("worker-heartbeat"), what="a heartbeat")
        for number in range(30):
            site.send("add", number, 1)
        site.send("explode")
        site.send("fail_first", 2)
        expected = Counter(
            {
                "task-sent": 34,
                "task-received": 34,
                "task-started": 34,
                "task-succeeded": 31,
                "task-failed": 1,
                "task-retried": 2,
            }
        )
        wait_until(
            lambda: expected == exporter.events(),
            timeout_s=30,
            what=lambda: f"{expected}; have {exporter.events()}",
        )
        site.settled()
        scheme = site.broker.partition(":")[0]
        assert {
            "transport": scheme,
            "processes": {worker.name: 2},
            "length": {"celery": 0},
            "consumers": {"celery": 1},
        } == exporter.look()

        assert 0 == worker.shut_down()
        wait_until(lambda: exporter.lines("worker-offline"), what="the worker's last event")
        for number in range(7):
            site.send("add", number, 1)
        assert {
            "transport": scheme,
            "processes": {},
            "length": {"celery": 7},
            "consumers": {"celery": 0},
        } == exporter.look()
    finally:
        exporter.close()
    site.settled(ready=7)
