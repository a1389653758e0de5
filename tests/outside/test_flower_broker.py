"""Flower's Broker tab and its queue lengths, through the API and the page for browsers."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.outside.web import WebServer
from tests.support.audits import assert_balanced
from tests.support.waiting import wait_until
from tests.support.workers import TASKS_APP, app_environment

# With late acks and a prefetch of one, the worker holds one task and the others wait.
ONE_AT_A_TIME = {"worker_prefetch_multiplier": 1}
MISSING = '<span class="value-missing">&mdash;</span>'


def start_flower(site, directory):
    """Start Flower beside the workers of *site*."""
    command = [sys.executable, "-m", "celery", "-A", TASKS_APP, "flower"]
    command += ["--address=127.0.0.1", "--port={port}", "--inspect_timeout=5000"]
    extra = {"FLOWER_UNAUTHENTICATED_API": "true"}
    environment = app_environment(site.broker, site.journal, site.config, extra)
    return WebServer(command, env=environment, directory=directory, ready="/healthcheck")


def lengths(flower):
    """Return Flower's values of each queue."""
    answer = flower.client.get("/api/queues/length")
    assert 200 == answer.status_code, answer.text
    return {queue.pop("name"): queue for queue in answer.json()["active_queues"]}


def rows(flower):
    """Return the rows of the page's table, without its header."""
    answer = flower.client.get("/broker")
    assert 200 == answer.status_code, answer.text
    cells = re.findall(r"<td[^>]*>\s*(.*?)\s*</td>", answer.text, re.DOTALL)
    return [cells[at : at + 6] for at in range(0, len(cells), 6)]


def test_the_broker_tab_shows_every_queue(site_factory, redis_server, redis_url, tmp_path):
    """Without any setting, the tab shows the counts and consumers of the workers' queues."""
    del redis_url  # emptied
    backend = redis_server.url("redis", db=1)
    site = site_factory(redis_server, result_backend=backend, **ONE_AT_A_TIME)
    site.worker()
    for _ in range(4):
        site.send("record_late", 3600)
    site.send("record_late", countdown=3600)
    site.wait_counts(ready=3, unacked=1, delayed=1)
    flower = start_flower(site, tmp_path)
    try:
        wait_until(lambda: flower.client.get("/api/workers", params={"refresh": 1}).json())
        expected = {
            "messages": 5,
            "messages_ready": 3,
            "messages_unacknowledged": 1,
            "messages_delayed": 1,
            "dead_letters": 0,
            "consumers": 1,
        }
        assert {"celery": expected} == lengths(flower)
        assert [["celery", "5", "1", "3", "1", MISSING]] == rows(flower)
    finally:
        flower.close()
    assert_balanced(site.broker)


def test_the_settings_of_the_application_are_used(
    site_factory, redis_factory, certificates, tmp_path
):
    """Flower uses the application's broker list and its TLS certificate, as the URLs have them."""
    first, second = redis_factory(), redis_factory(tls=certificates, password="geheim-123")
    site = site_factory(first, result_backend=None)
    site.broker = second.url("reliqs")
    site.send("record")
    site.broker = f"{first.url('reliq')};{second.url('reliqs')}"
    first.stop()
    flower = start_flower(site, tmp_path)
    try:
        assert 1 == lengths(flower)["celery"]["messages_ready"]
        second.stop()
        assert 500 == flower.client.get("/api/queues/length").status_code
        assert "is not reachable" in flower.process.log()
        assert "geheim" not in flower.process.log()
    finally:
        flower.close()
    second.start()
    assert_balanced(second.url("reliqs"))


def test_flower_with_another_broker_is_left_alone(redis_server, redis_url):
    """Without a connection of reliq, Flower's classes stay unchanged."""
    del redis_url
    script = (
        "import flower.views, flower.utils.broker as theirs, reliq, celery\n"
        "before = theirs.Broker.__new__\n"
        "app = celery.Celery(broker=%r)\n"
        "with app.connection() as connection:\n"
        "    connection.connect()\n"
        "assert theirs.Broker.__new__ is before\n"
        "assert type(theirs.Broker(%r)) is theirs.Redis\n"
        "with celery.Celery(broker=%r).connection() as connection:\n"
        "    connection.connect()\n"
        "assert theirs.Broker.__new__ is not before\n"
        "assert type(theirs.Broker(%r)) is theirs.Redis\n"
        "try:\n"
        "    theirs.Broker('sqs://')\n"
        "except NotImplementedError:\n"
        "    print('as ever')\n"
    )
    plain, ours = redis_server.url("redis", db=1), redis_server.url("reliq")
    done = subprocess.run(
        [sys.executable, "-c", script % (plain, plain, ours, plain)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ("as ever\n", "") == (done.stdout, done.stderr)
