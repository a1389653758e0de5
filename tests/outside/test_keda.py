"""KEDA's query, sent to a real Prometheus that scrapes a real exporter."""

from __future__ import annotations

import re
import shutil
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest
import yaml

from tests.outside.web import WebServer
from tests.support.journal import FINISHED
from tests.support.processes import Process
from tests.support.waiting import wait_until

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def trigger():
    """Return the documented trigger's settings, as KEDA gets them."""
    block = re.search(r"```yaml\n(triggers:.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)[1]
    (found,) = yaml.safe_load(block)["triggers"]
    assert "prometheus" == found["type"]
    return found["metadata"]


class Asked:
    """The query of KEDA's prometheus scaler, and its reading of the answer."""

    def __init__(self, prometheus, metadata):
        self._prometheus = prometheus
        self._metadata = metadata

    def value(self):
        """Return the metric, or None if KEDA reports an error and leaves the replicas alone."""
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
        answer = self._prometheus.client.get(
            "/api/v1/query", params={"query": self._metadata["query"], "time": now}
        )
        assert 200 == answer.status_code, answer.text
        result = answer.json()["data"]["result"]
        assert len(result) <= 1, result
        if not result:
            return 0 if self._metadata.get("ignoreNullValues", "true") == "true" else None
        return float(result[0]["value"][1])

    def active(self):
        """Return whether KEDA keeps at least one replica; None after an error."""
        value = self.value()
        return None if value is None else value > float(self._metadata["activationThreshold"])


@pytest.fixture
def exporter(redis_server, redis_url, tmp_path):
    """Start `reliq exporter`; return (process, host:port)."""
    del redis_url  # emptied
    command = [sys.executable, "-m", "reliq.cli", "exporter", "--port", "0"]
    process = Process(
        [*command, "--url", redis_server.url("reliq")], log_path=tmp_path / "exporter.log"
    )
    found = wait_until(
        lambda: re.search(r"serving metrics on http://([^/]+)/", process.log()), what=process.tail
    )
    yield process, found[1]
    process.kill_group()


@pytest.fixture
def asked(exporter, tmp_path):
    """Start Prometheus, which scrapes the exporter; return a client that queries as KEDA does."""
    program = shutil.which("prometheus")
    assert program, "Prometheus is not installed: apt-get install prometheus"
    job = {"job_name": "reliq", "static_configs": [{"targets": [exporter[1]]}]}
    config = {"global": {"scrape_interval": "250ms"}, "scrape_configs": [job]}
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    command = [program, "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    command += ["--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    server = WebServer(command, env={}, directory=tmp_path, ready="/-/ready")
    wait_until(lambda: 200 == server.client.get("/-/ready").status_code, what=server.process.tail)
    yield Asked(server, trigger())
    server.close()


@pytest.mark.parametrize("task", ["record", "record_late"])
def test_a_scaler_keeps_a_worker_that_runs_a_task(
    task, asked, exporter, site_factory, redis_server
):
    """The scaler is active from soon after the publish until soon after the end of the task."""
    site = site_factory(redis_server, result_backend=None, task_ignore_result=True)
    worker = site.worker()
    site.send("add", 1, 1)  # creates the queue
    wait_until(lambda: asked.active() is False, what=asked.value)
    sent = site.send(task, 6)
    wait_until(asked.active, what=asked.value)
    seen = []
    while not site.journal.entries(FINISHED, sent.id):
        answer = asked.active()
        if not site.journal.entries(FINISHED, sent.id):
            seen.append(answer)
    # If a busy machine does not answer a scrape in time, KEDA gets an error and keeps the worker.
    assert False not in seen
    assert seen.count(True) > 20
    wait_until(lambda: asked.active() is False, timeout_s=10, what=asked.value)
    assert 0 == worker.shut_down()

    # An unreachable exporter is an error, not a reason to scale to zero.
    exporter[0].kill_group()
    import httpx  # of the extra `outside`; these tests can be collected without it

    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{exporter[1]}/metrics", trust_env=False)
    wait_until(lambda: asked.active() is None, timeout_s=10, what=asked.value)
    site.settled()
