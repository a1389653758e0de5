"""Tasks behave the same in every pool: one worker per pool runs them all."""

from __future__ import annotations

import datetime as dt
from contextlib import ExitStack, suppress

import pytest
from celery import chain, chord, group
from celery.exceptions import TaskRevokedError
from kombu.utils.uuid import uuid

from tests.support.servers import RedisServer
from tests.support.site import CelerySite
from tests.support.waiting import wait_until
from tests.support.workers import POOLS

RESULT_S = 20


@pytest.fixture(scope="module", params=POOLS)
def pool_site(request, scheme, tmp_path_factory):
    """Return a site with one running worker of the pool."""
    with ExitStack() as stack:
        server = RedisServer()
        stack.callback(server.destroy)
        site = CelerySite(server.start(), scheme, tmp_path_factory.mktemp(request.param))
        stack.callback(site.close)
        concurrency = {"prefork": 2, "threads": 4, "gevent": 20}.get(request.param, 1)
        site.running = site.worker(
            pool=request.param, concurrency=concurrency, arguments=["--task-events"], mingle=True
        )
        yield site


@pytest.fixture
def pooled(pool_site):
    """Return the site; at the end, check that the test left nothing behind in the queue."""
    yield pool_site
    pool_site.settled()


@pytest.mark.slow
def test_result_comes_back(pooled):
    """A task runs and its result is read from the backend."""
    result = pooled.send("add", 2, 3)
    assert result.get(timeout=RESULT_S) == 5


@pytest.mark.slow
def test_failure_comes_back(pooled):
    """A task that raises is acked, and its error is the result."""
    result = pooled.send("explode")
    with pytest.raises(ValueError, match="as told"):
        result.get(timeout=RESULT_S)


def test_idle_worker_takes_a_task_at_once(pooled):
    """An idle worker is woken by each single task; it does not wait for the next poll."""
    for _ in range(5):
        result = pooled.send("add", 1, 1)
        assert result.get(timeout=pooled.transport_options["poll_interval"] / 2) == 2


@pytest.mark.slow
@pytest.mark.parametrize("late", [True, False], ids=["late", "early"])
def test_message_is_acked_early_or_late(pooled, tmp_path, late):
    """With acks_late a message is held while its task runs; otherwise it is gone by then.

    Solo holds it in both cases: Celery delays even an early ack there until the next turn of its
    loop, which is after the task.
    """
    held = late or pooled.running.pool == "solo"
    go = tmp_path / "go"
    task = pooled.send("record_until_late" if late else "record_until", str(go))
    pooled.journal.wait_started(task.id)
    pooled.wait_counts(unacked=1 if held else 0, ready=0)
    assert pooled.journal.finished()[task.id] == 0
    go.touch()
    pooled.journal.wait_finished(task.id)


@pytest.mark.slow
def test_every_task_of_many_runs_once(pooled):
    """Each of 200 tasks runs exactly once."""
    ids = [pooled.send("record").id for _ in range(200)]
    wait_until(lambda: set(ids) <= set(pooled.journal.finished()), what="200 tasks")
    runs = pooled.journal.started()
    assert dict.fromkeys(ids, 1) == {task_id: runs[task_id] for task_id in ids}


@pytest.mark.slow
def test_countdown_and_eta_are_kept(pooled):
    """A task with a countdown or an ETA starts when it is due, once, and not before."""
    sent = pooled.journal.wait_finished(pooled.send("record").id).at
    due = dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=1)
    ids = [pooled.send("record", countdown=1).id, pooled.send("record", eta=due).id]
    for task_id in ids:
        pooled.journal.wait_finished(task_id)
        (start,) = pooled.journal.entries("started", task_id)
        assert 0.8 <= start.at - sent <= 6


def test_retry_runs_again(pooled):
    """A task that retries twice runs three times and succeeds."""
    result = pooled.send("fail_first", 2)
    assert result.get(timeout=RESULT_S) == 2
    assert pooled.journal.runs(result.id) == 3


def test_chain_runs_in_order(pooled):
    """Each task of a chain gets the result of the one before."""
    add = pooled.app.signature("add")
    result = chain(add.clone((1, 2)), add.clone((4,)), add.clone((8,))).apply_async()
    assert result.get(timeout=RESULT_S) == 15


def test_group_gathers_all_results(pooled):
    """A group's results come back in its order."""
    add = pooled.app.signature("add")
    result = group([add.clone((n, n)) for n in range(10)], app=pooled.app).apply_async()
    assert result.get(timeout=RESULT_S) == [2 * n for n in range(10)]


def test_chord_calls_back_once(pooled):
    """A chord's body runs once, with the results of its header."""
    add, total = pooled.app.signature("add"), pooled.app.signature("total")
    result = chord([add.clone((n, n)) for n in range(10)], app=pooled.app)(total)
    assert result.get(timeout=RESULT_S) == 90


@pytest.mark.slow
def test_ignored_by_expiry(pooled):
    """A task that expires before its countdown is over is revoked, not run."""
    result = pooled.send("record", countdown=1.0, expires=0.2)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=RESULT_S)
    assert pooled.journal.runs(result.id) == 0


def test_revoked_task_does_not_run(pooled):
    """A task that is revoked before it is sent never runs."""
    task_id = uuid()
    inspect = pooled.app.control.inspect([pooled.running.name], timeout=5)
    pooled.app.control.revoke(task_id)
    wait_until(
        lambda: any(task_id in known for known in (inspect.revoked() or {}).values()),
        what="the worker to know the revocation",
    )
    result = pooled.send("record", task_id=task_id)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=RESULT_S)
    assert pooled.journal.runs(task_id) == 0


@pytest.mark.slow
def test_rate_limit_spreads_tasks(pooled):
    """With a rate limit of 4 a second five tasks take at least three quarters of a second."""
    name = pooled.running.name
    control = pooled.app.control
    replies = control.rate_limit("record", "4/s", reply=True, destination=[name], timeout=5)
    assert [{name: {"ok": "new rate limit set successfully"}}] == replies
    try:
        ids = [pooled.send("record").id for _ in range(5)]
        starts = [pooled.journal.wait_started(task_id).at for task_id in ids]
        assert max(starts) - min(starts) >= 0.75
    finally:
        control.rate_limit("record", "0", reply=True, destination=[name], timeout=5)


@pytest.mark.slow
def test_inspect_answers(pooled):
    """A worker answers ping, active, stats and registered, even while a task runs."""
    name = pooled.running.name
    running = pooled.send("record", 1.5)
    pooled.journal.wait_started(running.id)
    if pooled.running.pool == "solo":  # its only thread is in the task: answers come after it.
        pooled.journal.wait_finished(running.id)
    inspect = pooled.app.control.inspect([name], timeout=5)
    assert inspect.ping() == {name: {"ok": "pong"}}
    if pooled.running.pool != "solo":
        assert [task["id"] for task in inspect.active()[name]] == [running.id]
    stats = inspect.stats()[name]
    assert stats["total"]["record"] >= 1
    assert stats["broker"]["transport"] == pooled.broker.partition(":")[0]
    assert "add" in inspect.registered()[name]
    assert [queue["name"] for queue in inspect.active_queues()[name]] == ["celery"]
    pooled.journal.wait_finished(running.id)


@pytest.mark.slow
def test_events_are_received(pooled):
    """A receiver of events sees a task's life and the worker's heartbeats."""
    seen: list[tuple[str, str | None]] = []
    with pooled.app.connection_for_read() as connection:
        receiver = pooled.app.events.Receiver(
            connection,
            handlers={"*": lambda event: seen.append((event["type"], event.get("uuid")))},
        )
        with receiver.consumer_context() as (receiving, _channel, _consumers):
            result = pooled.send("add", 1, 1)

            def complete() -> bool:
                with suppress(TimeoutError):
                    receiving.drain_events(timeout=0.5)
                wanted = {("task-received", result.id), ("task-succeeded", result.id)}
                return wanted <= set(seen) and "worker-heartbeat" in {kind for kind, _ in seen}

            wait_until(complete, interval_s=0, what=lambda: f"events; have {seen}")


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_as_many_tasks_run_at_once_as_the_pool_can(site, pool):
    """Long tasks that wait together begin together, not one with each turn of the loop."""
    ids = [site.send("record", 8.0).id for _ in range(12)]
    site.worker(pool=pool, concurrency=6, config={"worker_prefetch_multiplier": 2})
    wait_until(lambda: len(site.journal.started()) == 6, timeout_s=30)
    assert site.journal.finished().total() == 0
    assert set(site.journal.started()) <= set(ids)
