"""The real Flower, used through its API."""

from __future__ import annotations

import sys

import pytest

from tests.outside.web import WebServer
from tests.support.waiting import wait_until
from tests.support.workers import TASKS_APP, app_environment

TASKS = 20


@pytest.fixture
def flower(site, tmp_path):
    """Return a client of Flower, which runs beside a worker that sends events."""
    site.worker(arguments=["--events"], concurrency=2)
    command = [sys.executable, "-m", "celery", "-A", TASKS_APP, "flower"]
    command += ["--address=127.0.0.1", "--port={port}", "--inspect_timeout=5000"]
    environment = app_environment(
        site.broker,
        site.journal,
        site.config,
        {"FLOWER_UNAUTHENTICATED_API": "true"},
    )
    server = WebServer(command, env=environment, directory=tmp_path, ready="/healthcheck")
    yield server.client
    server.close()


def test_flower_shows_workers_and_tasks_and_controls_them(site, flower):
    """Flower shows workers, queues, and finished, failed and revoked tasks as over redis://."""
    name = "worker1@test"

    def known():
        return flower.get("/api/workers", params={"refresh": 1}).json().get(name)

    worker = wait_until(known, what="the worker in Flower's list")
    assert ["celery"] == [queue["name"] for queue in worker["active_queues"]]
    assert 2 == worker["stats"]["pool"]["max-concurrency"]
    assert {name: True} == flower.get("/api/workers", params={"status": 1}).json()
    # Flower learns of tasks from events, and does not show a task whose events it has missed.
    tried = set()
    wait_until(lambda: hears_events(flower, tried), what="Flower's first task event")

    sent = [post(flower, "async-apply/add", args=[number, 1]) for number in range(TASKS)]
    failed = post(flower, "async-apply/explode")
    later = post(flower, "async-apply/record", countdown=3600)
    flower.post(f"/api/task/revoke/{later}", params={"terminate": "false"}).raise_for_status()

    for number, task in enumerate(sent):
        assert number + 1 == site.app.AsyncResult(task).get(timeout=30)
    wait_until(
        lambda: {"SUCCESS": {*sent}, "FAILURE": {failed}} == states(flower, {*sent, failed}),
        what=lambda: f"every task in Flower; have {states(flower, {*sent, failed})}",
    )
    info = flower.get(f"/api/task/info/{sent[7]}").json()
    assert ("add", "[7, 1]", "8", name) == tuple(
        info[key] for key in ("name", "args", "result", "worker")
    )
    assert "flower_events_total" in flower.get("/metrics").text

    # Flower's page of the worker lists a delayed task in the broker as scheduled. Flower requests
    # the lists of tasks only if the query names one worker.
    wait_until(
        lambda: [later] == scheduled_of(flower, name),
        what="the delayed task on Flower's page of the worker",
    )

    # A revoked task stays in the broker until it is due, and is dropped then.
    assert later in site.app.control.inspect().revoked()[name]
    site.settled(delayed=1)

    flower.post(f"/api/worker/shutdown/{name}").raise_for_status()
    wait_until(lambda: not flower.get("/api/workers", params={"status": 1}).json().get(name))


def scheduled_of(flower, name):
    """Return the ids of the tasks that Flower lists as scheduled for a worker, after a refresh."""
    asked = {"refresh": 1, "workername": name}
    known = flower.get("/api/workers", params=asked).json()[name]
    return [item["request"]["id"] for item in known.get("scheduled", ())]


def hears_events(flower, tried):
    """Send a task; return whether Flower has received the events of one, a second later at most."""
    tried.add(post(flower, "async-apply/add", args=[0, 0]))
    return bool(states(flower, tried))


def post(flower, what, **body):
    """Publish a task through Flower; return its id."""
    answer = flower.post(f"/api/task/{what}", json=body)
    answer.raise_for_status()
    return answer.json()["task-id"]


def states(flower, wanted):
    """Return the finished ones of these tasks in Flower, by state."""
    found = {}
    for task, seen in flower.get("/api/tasks").json().items():
        if task in wanted and seen["state"] in {"SUCCESS", "FAILURE"}:
            found.setdefault(seen["state"], set()).add(task)
    return found
