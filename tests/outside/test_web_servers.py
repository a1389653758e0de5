"""Web servers that load the application before they fork: answered requests have stored tasks."""

from __future__ import annotations

import os
import re
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from reliq.admin import Inspector
from tests.support.audits import assert_balanced
from tests.support.processes import Process
from tests.support.waiting import wait_until
from tests.support.workers import ROOT

BIN = Path(sys.executable).parent
WORKERS = 4
UWSGI = [
    BIN / "uwsgi",
    "--master",
    f"--processes={WORKERS}",
    "--http-socket={socket}",
    "--module=tests.outside.wsgi",
    "--need-app",
    "--die-on-term",
    "--chmod-socket",
]
SERVERS = {
    "uwsgi": UWSGI,
    "uwsgi-hooks": [*UWSGI, "--py-call-osafterfork"],
    "uwsgi-fork-hooks": [*UWSGI, "--py-call-uwsgi-fork-hooks"],
    "uwsgi-lazy": [*UWSGI, "--lazy-apps"],
    "gunicorn": [
        BIN / "gunicorn",
        "--preload",
        f"--workers={WORKERS}",
        "--bind=unix:{socket}",
        "tests.outside.wsgi",
    ],
}
REQUESTS = 200


class UnixConnection(HTTPConnection):
    """HTTP over a Unix socket, so no other process can take its port."""

    def __init__(self, path):
        super().__init__("localhost", timeout=20)
        self.path = path

    def connect(self):
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


@pytest.fixture
def serve(redis_url, tmp_path):
    """Return a function that starts a server, which ends with the test."""
    started = []

    def start(name, at_start):
        path = tmp_path / "web"
        process = Process(
            [str(part).format(socket=path) for part in SERVERS[name]],
            log_path=tmp_path / "log",
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "RELIQ_TEST_BROKER": redis_url,
                "RELIQ_TEST_AT_START": at_start,
            },
        )
        started.append(process)
        wait_until(lambda: path.exists() and get(path, "/first"), what=process.tail)
        if name == "uwsgi-lazy":  # the workers load the application at different times
            loaded = re.compile(r"WSGI app 0 .* ready in")
            wait_until(lambda: len(loaded.findall(process.log())) == WORKERS, what=process.tail)
        return process, path

    yield start
    for process in started:
        process.kill_group()


def get(path, name):
    """Return the pid of the process that answered; None while no process listens."""
    with closing(UnixConnection(path)) as connection:
        try:
            connection.request("GET", name)
        except ConnectionRefusedError:
            return None
        response = connection.getresponse()
        body = response.read()
    assert (200, b"") == (response.status, body.strip(b"0123456789"))
    return int(body)


@pytest.mark.parametrize(
    ("name", "at_start"),
    [
        *[(name, "publish") for name in SERVERS],
        *[
            (name, "ping")
            if name in {"uwsgi", "gunicorn"}
            else pytest.param(name, "ping", marks=pytest.mark.long)
            for name in SERVERS
        ],
    ],
)
def test_every_answered_request_has_stored_its_task(serve, redis_url, name, at_start):
    """Children do not reuse the master's state from before the fork, and none of them hangs."""
    process, path = serve(name, at_start)
    with ThreadPoolExecutor(8) as pool:
        pids = set(pool.map(lambda n: get(path, f"/{n}"), range(REQUESTS)))
    assert len(pids) > 1
    in_the_master = {"ping": 0, "publish": WORKERS if name == "uwsgi-lazy" else 1}[at_start]
    with Inspector(redis_url) as inspector:
        status = inspector.status("celery")
        tags = [message.tag for message in inspector.peek("celery", limit=1000)]
    expected = REQUESTS + 1 + in_the_master
    assert [expected] * 3 == [status.ledger["published"], status.ready, len(set(tags))]
    process.signal(15)
    process.wait()
    assert_balanced(redis_url)
