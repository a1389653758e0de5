"""uvicorn: endpoints that publish from a pool of threads."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from tests.outside.web import WebServer
from tests.support.workers import app_environment

REQUESTS = 200


@pytest.mark.parametrize("processes", [1, 3])
def test_each_request_publishes_one_task(site, processes, tmp_path):
    """Each of 200 concurrent requests is answered, and its task is stored and run once.

    Between two halves the broker closes every connection, as a restart of a proxy does.
    """
    command = [sys.executable, "-m", "uvicorn", "tests.outside.programs.web:api"]
    command += ["--port", "{port}", "--workers", str(processes)]
    environment = app_environment(site.broker, site.journal, site.config)
    server = WebServer(command, env=environment, directory=tmp_path)
    try:
        answers = server.post_all((f"/tasks/{n}" for n in range(REQUESTS // 2)), clients=20)
        drop_connections(site.server)
        answers += server.post_all(
            (f"/tasks/{n}" for n in range(REQUESTS // 2, REQUESTS)), clients=20
        )
        server.stop()
    finally:
        server.close()
    assert [200] * REQUESTS == [answer.status_code for answer in answers]
    ids = [answer.json()["id"] for answer in answers]
    site.wait_counts(ready=REQUESTS)

    site.worker(pool="threads", concurrency=4)
    site.settled()
    assert Counter(ids) == site.journal.started()


def drop_connections(server):
    """Make a Redis server close the connections of all its clients."""
    client = server.client()
    client.execute_command("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES")
    client.close()
