"""uvicorn: endpoints that publish from a pool of threads."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from tests.outside.web import WebServer
from tests.support.files import FileBroker
from tests.support.workers import app_environment

REQUESTS = 200


@pytest.fixture(params=["redis", "sqlite"])
def broker_site(request, site_factory, redis_server, redis_url, tmp_path):
    """Give a Celery application over a broker of each engine."""
    if request.param == "redis":
        return site_factory(redis_server)
    return site_factory(FileBroker(tmp_path), result_backend=None)


@pytest.mark.parametrize("processes", [1, 3])
def test_each_request_publishes_one_task(broker_site, processes, tmp_path):
    """Of 200 requests, 20 at a time, each is answered and its task stored and run once.

    Between two halves the broker drops every connection, as a restart of a proxy does.
    """
    command = [sys.executable, "-m", "uvicorn", "tests.outside.programs.web:api"]
    command += ["--port", "{port}", "--workers", str(processes)]
    environment = app_environment(broker_site.broker, broker_site.journal, broker_site.config)
    server = WebServer(command, env=environment, directory=tmp_path)
    try:
        answers = server.post_all((f"/tasks/{n}" for n in range(REQUESTS // 2)), clients=20)
        drop_connections(broker_site.server)
        answers += server.post_all(
            (f"/tasks/{n}" for n in range(REQUESTS // 2, REQUESTS)), clients=20
        )
        server.stop()
    finally:
        server.close()
    assert [200] * REQUESTS == [answer.status_code for answer in answers]
    ids = [answer.json()["id"] for answer in answers]
    broker_site.wait_counts(ready=REQUESTS)

    broker_site.worker(pool="threads", concurrency=4)
    broker_site.settled()
    assert Counter(ids) == broker_site.journal.started()


def drop_connections(server):
    """Have a Redis end the connections of all its clients; a file has none."""
    if isinstance(server, FileBroker):
        return
    client = server.client()
    client.execute_command("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES")
    client.close()
