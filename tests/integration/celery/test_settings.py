"""Celery's settings that decide when messages are reserved, acked and returned."""

from __future__ import annotations

import pytest
from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded, WorkerLostError

from tests.support.waiting import stays_true, wait_until

LATE = {"task_acks_late": True}
ONE_AHEAD = {"worker_prefetch_multiplier": 1}


@pytest.mark.slow
def test_unlimited_prefetch_takes_all(site, tmp_path):
    """With a prefetch multiplier of 0 one worker takes every waiting message."""
    site.worker(config={**LATE, "worker_prefetch_multiplier": 0})
    go = tmp_path / "go"
    site.send("record_until", str(go))
    ids = [site.send("record").id for _ in range(39)]
    site.wait_counts(ready=0, unacked=40)
    assert site.journal.finished()[ids[-1]] == 0
    go.touch()
    site.journal.wait_finished(ids[-1])
    site.settled()


@pytest.mark.slow
def test_prefetch_of_one_takes_one_per_process(site, tmp_path):
    """With a prefetch multiplier of 1 and two processes two late-acked messages are held."""
    site.worker(concurrency=2, config={**LATE, **ONE_AHEAD})
    go = tmp_path / "go"
    ids = [site.send("record_until", str(go)).id for _ in range(6)]
    wait_until(lambda: len(site.journal.started()) == 2, what="two running tasks")
    site.wait_counts(unacked=2, ready=4)
    go.touch()
    for task_id in ids:
        site.journal.wait_finished(task_id)
    assert max(site.journal.started().values()) == 1
    site.settled()


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_disabled_prefetch_takes_only_what_can_run(site, tmp_path, pool):
    """With worker_disable_prefetch nothing is reserved beyond the free processes."""
    config = {"task_acks_late": True, "worker_prefetch_multiplier": 4}
    go = tmp_path / "go"
    ids = [site.send("record_until", str(go)).id for _ in range(6)]
    worker = site.worker(pool=pool, concurrency=2, config=config, arguments=["--disable-prefetch"])
    wait_until(lambda: len(site.journal.started()) == 2, what="two running tasks")
    stays_true(
        lambda: site.counts()["unacked"] <= 2 and site.counts()["ready"] == 4,
        for_s=0.3,
        what="four messages left for others",
    )
    go.touch()
    for task_id in ids:
        site.journal.wait_finished(task_id)
    assert max(site.journal.started().values()) == 1
    assert "disable_prefetch" not in worker.log()  # no warning that the broker does not support it.
    site.settled()


@pytest.mark.slow
def test_autoscale_grows_and_shrinks(site):
    """A worker with autoscale 3,1 runs three tasks at once and goes back to one process."""
    config = {**LATE, **ONE_AHEAD}
    options = {"env": {"AUTOSCALE_KEEPALIVE": "1"}, "arguments": ["--autoscale", "3,1"]}
    worker = site.worker(config=config, **options)
    ids = [site.send("record", 2.0).id for _ in range(3)]
    starts = [site.journal.wait_started(task_id) for task_id in ids]
    wait_until(lambda: site.journal.finished().total() == 3, what="three tasks")
    ends = [site.journal.entries("finished", task_id)[0].at for task_id in ids]
    assert max(start.at for start in starts) < min(ends)
    assert len({start.pid for start in starts}) == 3
    worker.wait_log("Scaling up")
    worker.wait_log("Scaling down")
    site.settled()


@pytest.mark.slow
@pytest.mark.parametrize("requeue", [True, False])
def test_lost_process_requeues_or_fails(site, requeue):
    """A task whose process is killed runs again with task_reject_on_worker_lost, else fails."""
    site.worker(config={"task_reject_on_worker_lost": requeue})
    task = site.send("die_first", 1)
    if requeue:
        site.journal.wait_finished(task.id)
        assert site.journal.runs(task.id) == 2
    else:
        with pytest.raises(WorkerLostError):
            task.get(timeout=20)
        assert site.journal.runs(task.id) == 1
    site.settled()


@pytest.mark.slow
def test_hard_time_limit_ends_the_task(site):
    """A task past its hard limit is killed and fails; the worker goes on."""
    site.worker(config=LATE)
    task = site.send("record", 20.0, time_limit=0.6)
    with pytest.raises(TimeLimitExceeded):
        task.get(timeout=20)
    site.journal.wait_finished(site.send("record").id)
    assert site.journal.runs(task.id) == 1
    site.settled()


@pytest.mark.slow
def test_soft_time_limit_raises_in_the_task(site):
    """A task past its soft limit gets the exception and fails with it."""
    site.worker(config=LATE)
    task = site.send("record", 20.0, soft_time_limit=0.6)
    with pytest.raises(SoftTimeLimitExceeded):
        task.get(timeout=20)
    assert site.journal.runs(task.id) == 1
    site.settled()


@pytest.mark.slow
def test_revoke_terminates_a_running_task(site):
    """A running task that is revoked with terminate ends; its message is settled."""
    site.worker(config=LATE)
    task = site.send("record", 20.0)
    site.journal.wait_started(task.id)
    task.revoke(terminate=True, signal="SIGKILL")
    site.settled()
    site.journal.wait_finished(site.send("record").id)
    assert site.journal.runs(task.id) == 1
    site.settled()


@pytest.mark.slow
def test_priorities_are_served_in_order(site):
    """Waiting tasks are taken by priority, 0 first, and in the order sent within one."""
    ids = {priority: [site.send("where", priority=priority).id] for priority in (9, 0, 5)}
    for priority in (5, 9, 0):
        ids[priority].append(site.send("where", priority=priority).id)
    site.worker(config={**LATE, **ONE_AHEAD}, pool="solo")
    wait_until(lambda: site.journal.started().total() == 6, what="six tasks")
    ran = [entry.key for entry in site.journal.entries("started")]
    assert ran == ids[0] + ids[5] + ids[9]
    site.settled()


def test_two_queues_share_a_worker(site):
    """A worker of two queues runs the tasks of both, and only of those."""
    site.worker(queues=["left", "right"])
    left, right = (site.send("record", queue=name).id for name in ("left", "right"))
    other = site.send("record", queue="other").id
    site.journal.wait_finished(left)
    site.journal.wait_finished(right)
    assert site.journal.runs(other) == 0
    site.settled("left")
    site.settled("right")
    site.settled("other", ready=1)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["priority", "sorted"])
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_the_order_of_queues(site_factory, redis_factory, pool, strategy):
    """With two processes, the tasks of a lower queue start after those of all higher queues."""
    options = {"queue_order_strategy": strategy}
    site = site_factory(redis_factory(), broker_transport_options=options)
    names = ["high", "low", "middle"] if strategy == "sorted" else ["middle", "high", "low"]
    sent = {
        name: [site.send("record_late", 0.02, queue=name).id for _ in range(40)] for name in names
    }
    site.worker(pool=pool, concurrency=2, queues=names, config=LATE)
    for name in names:
        for task_id in sent[name]:
            site.journal.wait_finished(task_id)
    started = list(site.journal.started())
    for n, name in enumerate(names):
        # Two processes start at the same moment, in any order.
        block = started[n * 40 + 1 : n * 40 + 39]
        assert set(block) <= set(sent[name]), name
    for name in names:
        site.settled(name)
