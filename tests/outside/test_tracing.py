"""OpenTelemetry's and Sentry's Celery integrations: their headers through retry and countdown."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.support.audits import wait_settled
from tests.support.waiting import wait_until
from tests.support.workers import app_environment

APP = "tests.outside.programs.traced"


def publish(redis_url, journal, outcome, env):
    """Publish the task from a separate process."""
    done = subprocess.run(
        [sys.executable, "-m", APP, outcome],
        env=app_environment(redis_url, journal, extra=env),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def spans(redis_url, journal, worker_factory, tmp_path):
    """Return the spans of a task with two delayed retries, by name."""
    path = tmp_path / "spans"
    env = {"SPANS": str(path)}
    worker_factory(redis_url, app=APP, env=env)
    publish(redis_url, journal, "succeed", env)

    def read():
        found = {}
        for text in path.read_text().splitlines():
            span = json.loads(text)
            found.setdefault(span["name"], []).append(span)
        return found

    wait_until(lambda: len(read().get("run/retry_twice", [])) == 3, what=read)
    wait_settled(redis_url, "celery")
    found = read()
    for same in found.values():
        same.sort(key=lambda span: span["start_time"])
    return found


def test_opentelemetry_follows_a_task_through_its_retries(spans):
    """The request, three publishes and three runs are one trace, each run below its publish."""
    (request,) = spans["request"]
    published, run = spans["apply_async/retry_twice"], spans["run/retry_twice"]
    traces = {span["context"]["trace_id"] for span in [request, *published, *run]}
    assert {request["context"]["trace_id"]} == traces

    parents = [span["parent_id"] for span in run]
    assert [span["context"]["span_id"] for span in published] == parents
    above = [request, *run[:2]]
    assert [span["context"]["span_id"] for span in above] == [
        span["parent_id"] for span in published
    ]
    assert len({span["attributes"]["messaging.message.id"] for span in run}) == 1


def test_opentelemetry_says_when_a_retry_was_due(spans):
    """The spans of delayed runs have an eta attribute, and that of the first run has none."""
    etas = ["celery.eta" in span["attributes"] for span in spans["run/retry_twice"]]
    assert [False, True, True] == etas


class Sentry:
    """An HTTP server that receives the reports of the SDK, with its own DSN."""

    def __init__(self):
        events = self.events = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                events.extend(items(body))
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.dsn = f"http://key@127.0.0.1:{self._server.server_port}/1"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def of(self, kind, transaction=None):
        """Return the received items of a kind, in the order of time."""
        found = [
            item
            for item in self.events
            if item.get("type", "event") == kind and transaction in {None, item.get("transaction")}
        ]
        return sorted(found, key=lambda item: item["timestamp"])

    def close(self):
        """Stop the server."""
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()


def items(envelope):
    """Yield the JSON items of an envelope of Sentry's protocol: each has a header and a payload."""
    lines = envelope.split(b"\n")
    for header, payload in zip(lines[1::2], lines[2::2], strict=False):
        if json.loads(header).get("type") in {"event", "transaction"}:
            yield json.loads(payload)


@pytest.fixture
def sentry():
    """Return a server that receives the reports of Sentry's SDK."""
    sentry = Sentry()
    yield sentry
    sentry.close()


def test_sentry_follows_a_task_through_its_retries(redis_url, journal, worker_factory, sentry):
    """The request, three runs and the last run's error are one trace, and nothing is lost."""
    env = {"REPORTS": sentry.dsn}
    worker_factory(redis_url, app=APP, env=env)
    publish(redis_url, journal, "fail", env)
    wait_until(
        lambda: len(sentry.of("transaction", "retry_twice")) == 3 and sentry.of("event"),
        what=lambda: [(item.get("type"), item.get("transaction")) for item in sentry.events],
    )
    wait_settled(redis_url, "celery")

    (request,) = sentry.of("transaction", "request")
    runs = sentry.of("transaction", "retry_twice")
    (error,) = sentry.of("event")
    trace = request["contexts"]["trace"]["trace_id"]
    assert {trace} == {item["contexts"]["trace"]["trace_id"] for item in [*runs, error]}
    assert "ValueError" == error["exception"]["values"][0]["type"]
    submitted = {
        span["span_id"] for span in request["spans"] if span["op"] == "queue.submit.celery"
    }
    assert runs[0]["contexts"]["trace"]["parent_span_id"] in submitted
    assert [0, 1, 2] == [retries(run) for run in runs]


def retries(run):
    """Return the number of retries that Sentry read from the message of a run."""
    (process,) = [span for span in run["spans"] if span["op"] == "queue.process"]
    return process["data"]["messaging.message.retry.count"]
