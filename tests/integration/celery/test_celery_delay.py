"""Delayed tasks wait in the broker, and no worker holds them."""

from __future__ import annotations

import datetime as dt
import time
from contextlib import ExitStack
from itertools import pairwise

import pytest
from celery import chain, chord, group
from celery.exceptions import TaskRevokedError

from tests.support.servers import RedisServer
from tests.support.site import CelerySite
from tests.support.waiting import stays_true, wait_until
from tests.support.workers import pools

DAY_S = 86_400
SENT = ("evalsha", "blpop")
RESULT_S = 20
# These tests lose no connection, so leases and polls have their defaults, as for users.
DEFAULTS = {"broker_transport_options": {}}


@pytest.fixture(scope="module", params=pools("prefork", "gevent"))
def pool_site(request, scheme, tmp_path_factory):
    """Return a site with one running worker of the pool."""
    with ExitStack() as stack:
        server = RedisServer()
        stack.callback(server.destroy)
        directory = tmp_path_factory.mktemp(request.param)
        site = CelerySite(server.start(), scheme, directory, dict(DEFAULTS))
        stack.callback(site.close)
        site.running = site.worker(pool=request.param, concurrency=2)
        yield site


@pytest.fixture
def pooled(pool_site):
    """Return the site; at the end, check that the test left nothing behind in the queue."""
    yield pool_site
    pool_site.settled()


@pytest.fixture
def quiet_site(fresh_redis, site_factory):
    """Return a site on a server of its own, with default options."""
    return site_factory(fresh_redis, **DEFAULTS)


def commands_while_watched(site, for_s):
    """Return the number of commands that the worker sends in *for_s* seconds; it holds nothing."""
    client = site.server.client(decode_responses=True)

    def sent():
        stats = client.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in SENT)

    before = sent()
    stays_true(lambda: client.zcard("reliq:{celery}:unacked_index") == 0, for_s=for_s)
    number = sent() - before
    client.close()
    return number


def dues(site, queue="celery"):
    """Return the due times of the delayed messages, ms of the server's clock."""
    client = site.server.client()
    found = client.zrange(f"reliq:{{{queue}}}:delayed", 0, -1, withscores=True)
    client.close()
    return [score for _, score in found]


# -- every pool


@pytest.mark.slow
def test_tasks_run_in_the_order_of_their_etas_and_never_early(pooled):
    """Tasks run in the order of their ETAs, not of their publishes: never early, and soon after."""
    offset = time.monotonic() - time.time()
    now = dt.datetime.now(dt.timezone.utc)
    due = {}
    for tenths in (9, 3, 12, 6, 15):
        eta = now + dt.timedelta(seconds=1 + tenths / 10)
        due[pooled.send("record", eta=eta).id] = eta.timestamp() + offset
    starts = {task_id: pooled.journal.wait_started(task_id).at for task_id in due}
    assert sorted(due, key=due.get) == sorted(starts, key=starts.get)
    for task_id, start in starts.items():
        assert -0.002 <= start - due[task_id] < 5


def test_a_worker_holds_none_of_what_waits(pooled):
    """Delayed tasks stay in the broker, and ready tasks run beside them."""
    waiting = [pooled.send("record", countdown=DAY_S) for _ in range(20)]
    assert {"ready": 0, "delayed": 20, "unacked": 0, "dead": 0} == pooled.counts()
    assert 5 == pooled.send("add", 2, 3).get(timeout=RESULT_S)
    inspect = pooled.app.control.inspect([pooled.running.name], timeout=5)
    (scheduled,) = inspect.scheduled().values()
    assert [pooled.broker.removesuffix("/")] * 20 == [
        item["request"]["hostname"] for item in scheduled
    ]
    assert {pooled.running.name: []} == inspect.reserved()
    assert 20 == pooled.counts()["delayed"]
    assert 0 == sum(pooled.journal.runs(task.id) for task in waiting)
    assert 20 == pooled.app.control.purge()


@pytest.mark.slow
def test_a_retry_waits_its_countdown(pooled):
    """retry(countdown=) delays the retry in the broker, and keeps the count of retries."""
    result = pooled.send("fail_first", 2, countdown=0.5, kwargs={"countdown": 0.4})
    assert 2 == result.get(timeout=RESULT_S)
    starts = [entry.at for entry in pooled.journal.entries("started", result.id)]
    assert all(later - sooner >= 0.398 for sooner, later in pairwise(starts))


@pytest.mark.slow
def test_a_canvas_with_countdowns(pooled):
    """A chain, a group and a chord with delayed parts give the same results as without delays."""
    add, total = pooled.app.signature("add"), pooled.app.signature("total")
    late = add.clone(kwargs={}).set(countdown=0.3)
    assert 15 == chain(late.clone((1, 2)), late.clone((4,)), late.clone((8,)))().get(RESULT_S)
    numbers = [late.clone((n, n)) for n in range(5)]
    assert [0, 2, 4, 6, 8] == group(numbers, app=pooled.app)().get(RESULT_S)
    body = total.clone().set(countdown=0.3)
    assert 20 == chord(numbers, app=pooled.app)(body).get(RESULT_S)
    delayed_group = group([add.clone((n, n)) for n in range(3)], app=pooled.app)
    assert [0, 2, 4] == delayed_group.apply_async(countdown=0.3).get(RESULT_S)


@pytest.mark.slow
def test_a_task_that_expires_before_its_eta_is_revoked(pooled):
    """The broker delivers an expired task when it is due, and Celery reports that it is revoked."""
    # The time to live starts again when the task is due; the broker drops it only after that.
    result = pooled.send("record", countdown=2.5, expires=2)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=RESULT_S)
    assert 0 == pooled.journal.runs(result.id)


def test_a_task_that_expires_after_its_eta_runs(pooled):
    """The time to live of a task does not pass while the task is delayed."""
    result = pooled.send("record", countdown=0.5, expires=60)
    assert result.id == result.get(timeout=RESULT_S)


@pytest.mark.slow
def test_a_delayed_task_can_be_revoked(pooled):
    """A worker that knows the revocation when the task arrives does not run it."""
    result = pooled.send("record", countdown=2)
    result.revoke()
    with pytest.raises(TaskRevokedError):
        result.get(timeout=RESULT_S)
    assert 0 == pooled.journal.runs(result.id)


@pytest.mark.slow
def test_a_header_delays_a_task_but_not_its_retries(pooled):
    """Celery copies the header x-delay to retries, but it applies only to the first publish."""
    sent = time.monotonic()
    result = pooled.send("fail_first", 2, headers={"x-delay": 3000}, kwargs={"countdown": 0})
    assert 2 == result.get(timeout=RESULT_S)
    starts = [entry.at for entry in pooled.journal.entries("started", result.id)]
    assert starts[0] - sent >= 2.998
    assert starts[2] - starts[0] < 3


# -- many tasks, distant due times, and failures


@pytest.mark.slow
@pytest.mark.long
def test_ten_thousand_future_tasks_burden_no_worker(quiet_site):
    """A worker beside them holds none and sends no more commands than an idle one."""
    worker = quiet_site.worker(concurrency=2)
    idle = commands_while_watched(quiet_site, 6)
    with quiet_site.app.producer_or_acquire() as producer:
        for n in range(10_000):
            quiet_site.send("record", countdown=DAY_S + n, producer=producer)
    assert {"ready": 0, "delayed": 10_000, "unacked": 0, "dead": 0} == quiet_site.counts()
    # One more for each command that may fall only into these six seconds: wait, survey, look,
    # heartbeat, the running tasks, and a query for each of two queues.
    assert commands_while_watched(quiet_site, 6) <= idle + 7
    inspect = quiet_site.app.control.inspect([worker.name], timeout=5)
    # Tasks that the worker held would be marked with its own name; these are the broker's next.
    ((name, shown),) = inspect.scheduled().items()
    assert (worker.name, 100) == (name, len(shown))
    assert worker.name not in {task["request"]["hostname"] for task in shown}
    assert {worker.name: []} == inspect.reserved()
    ready = [quiet_site.send("record").id for _ in range(50)]
    for task_id in ready:
        quiet_site.journal.wait_finished(task_id)
    quiet_site.settled(delayed=10_000)


@pytest.mark.slow
def test_native_delay_false_is_celerys_own_behaviour(fresh_redis, site_factory):
    """With native_delay=False the worker holds a task until it is due, and inspect shows it."""
    site = site_factory(fresh_redis, broker_transport_options={"native_delay": False})
    worker = site.worker()
    task = site.send("record", countdown=DAY_S)
    site.wait_counts(unacked=1, delayed=0, ready=0)
    inspect = site.app.control.inspect([worker.name], timeout=5)
    (held,) = wait_until(lambda: (inspect.scheduled() or {}).get(worker.name))
    assert task.id == held["request"]["id"]
    assert 0 == worker.shut_down()
    site.settled(ready=1)


@pytest.mark.parametrize("years", [1, 10, 1000])
def test_any_horizon(quiet_site, years):
    """A task that is due in years is stored with that due time, to the ms."""
    eta = dt.datetime.now(dt.timezone.utc) + dt.timedelta(days=365 * years)
    before = time.time()
    quiet_site.send("record", eta=eta, expires=eta + dt.timedelta(days=365))
    spent_ms = (time.time() - before) * 1000
    (due,) = dues(quiet_site)
    assert -1 <= due - eta.timestamp() * 1000 <= spent_ms + 2
    quiet_site.settled(delayed=1)


def test_a_task_without_utc_is_due_at_the_same_moment(fresh_redis, site_factory):
    """A task without UTC, in another timezone, is due at the same moment: its ETA has an offset."""
    site = site_factory(fresh_redis, enable_utc=False, timezone="Asia/Tokyo", **DEFAULTS)
    before = time.time()
    site.send("record", countdown=1000)
    (due,) = dues(site)
    assert -1 <= due - (before + 1000) * 1000 <= 60_000
    site.settled(delayed=1)


@pytest.mark.slow
def test_an_eta_in_the_body_is_celerys(fresh_redis, site_factory):
    """A worker holds a delayed task of protocol 1, which has no headers, as on any transport."""
    site = site_factory(fresh_redis, task_protocol=1, **DEFAULTS)
    task = site.send("record", countdown=10)  # a worker takes some seconds to start
    assert {"ready": 1, "delayed": 0, "unacked": 0, "dead": 0} == site.counts()
    site.worker()
    site.wait_counts(unacked=1)
    assert 0 == site.journal.runs(task.id)
    site.journal.wait_finished(task.id)
    site.settled()


@pytest.mark.slow
@pytest.mark.parametrize("pool", pools("prefork", of=("prefork", "threads")))
def test_a_killed_worker_takes_no_delayed_task_with_it(quiet_site, pool):
    """A killed worker held no delayed task: another worker runs the tasks when they are due."""
    killed = quiet_site.worker(pool=pool)
    tasks = [quiet_site.send("record", countdown=3).id for _ in range(20)]
    killed.kill_group()
    assert 20 == quiet_site.counts()["delayed"]
    quiet_site.worker(pool=pool)
    for task_id in tasks:
        quiet_site.journal.wait_finished(task_id)
    quiet_site.settled()
    assert set(quiet_site.journal.started().values()) == {1}


@pytest.mark.slow
def test_a_restart_of_redis_keeps_delayed_tasks(redis_factory, site_factory):
    """A restart of Redis with AOF keeps delayed tasks: they are due as before, and run once."""
    server = redis_factory(appendonly=True)
    site = site_factory(server, **DEFAULTS)
    worker = site.worker(pool="threads")
    tasks = [site.send("record", countdown=6).id for _ in range(10)]
    before = dues(site)
    server.restart()
    assert before == dues(site)
    for task_id in tasks:
        site.journal.wait_finished(task_id)
    site.settled()
    assert set(site.journal.started().values()) == {1}
    assert worker.running
