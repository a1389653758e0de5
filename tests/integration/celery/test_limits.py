"""Workers that consume a queue with limits: the limit is reached, kept, and never leaks."""

from __future__ import annotations

import datetime as dt
import json
import time

import pytest

from tests.support.journal import FINISHED, STARTED
from tests.support.waiting import wait_until
from tests.support.workers import pools

APP = "tests.integration.apps.limited"
LONG = {"visibility_timeout": 60.0, "restore_interval": 0.5, "poll_interval": 60.0}
"""No lease ends, and no poll finds a message: only notifications wake a consumer."""
SHORT = {"visibility_timeout": 2.0, "restore_interval": 0.3, "orphan_grace": 60.0}
EARLY, LATE = "early", "late"


@pytest.fixture
def limited(redis_server, redis_url, site_factory):
    """Return a function that makes a site whose workers declare a queue with limits."""
    del redis_url

    def make(acks, options=LONG, **limits):
        site = site_factory(
            redis_server,
            broker_transport_options=options,
            task_acks_late=acks == LATE,
            worker_prefetch_multiplier=4,
            result_backend=None,
        )
        start = site.worker
        env = {"RELIQ_TEST_LIMITS": json.dumps({f"x-{name}": limits[name] for name in limits})}
        site.worker = lambda **given: start(app=APP, env=env, **given)
        return site

    return make


def highest_overlap(journal):
    """Return the highest number of tasks that ran at once."""
    running, most = set(), 0
    for entry in sorted(journal.entries(), key=lambda entry: entry.at):
        if entry.event == STARTED:
            running.add(entry.key)
        elif entry.event == FINISHED:
            running.discard(entry.key)
        most = max(most, len(running))
    return most


def started(site):
    """Return the number of tasks that have started."""
    return len(site.journal.started())


class Gates:
    """Tasks that end when they are told to, in the order in which they started."""

    def __init__(self, site, directory, number):
        self._site = site
        self._paths = {}
        self._opened = set()
        for each in range(number):
            path = directory / f"gate{each}"
            self._paths[site.send("record_until", str(path)).id] = path

    def wait_started(self, number, timeout_s=30):
        """Wait until *number* tasks have started; fail if more do."""
        what = lambda: f"{number} starts; have {started(self._site)}"  # noqa: E731
        wait_until(lambda: started(self._site) >= number, timeout_s=timeout_s, what=what)
        assert number == started(self._site)

    def open(self, number=1, pid=None):
        """End the *number* tasks that have run longest, of one process or of all."""
        entries = self._site.journal.entries(STARTED)
        chosen = [
            entry.key
            for entry in entries
            if entry.key not in self._opened and pid in (None, entry.pid)
        ][:number]
        assert number == len(chosen)
        self._opened.update(chosen)
        for key in chosen:
            self._paths[key].touch()
        for key in chosen:
            self._site.journal.wait_finished(key)

    def open_all(self):
        """End all tasks, also those that start later."""
        for path in self._paths.values():
            path.touch()


@pytest.mark.slow
@pytest.mark.parametrize("acks", [EARLY, LATE])
@pytest.mark.parametrize("pool", pools("prefork", "threads", of=("prefork", "threads", "gevent")))
def test_the_limit_is_reached_and_never_exceeded(limited, tmp_path, pool, acks):
    """Two workers of four processes run five tasks at once, and each end starts exactly one."""
    site = limited(acks, concurrency=5)
    gates = Gates(site, tmp_path, 25)
    for _ in range(2):
        site.worker(pool=pool, concurrency=4)
    gates.wait_started(5)
    for ended in range(1, 13):
        gates.open()
        gates.wait_started(5 + ended)
    gates.open(3)
    gates.wait_started(20)
    site.wait_counts(unacked=5, ready=5)
    gates.open_all()
    wait_until(lambda: len(site.journal.finished()) == 25, timeout_s=30)
    site.settled()
    assert 5 == highest_overlap(site.journal)


@pytest.mark.slow
@pytest.mark.parametrize("acks", [EARLY, LATE])
def test_short_tasks_keep_to_the_limit(limited, acks):
    """Tasks of different lengths fill all slots, and never more than these."""
    site = limited(acks, concurrency=5)
    workers = [site.worker(pool="prefork", concurrency=4) for _ in range(2)]
    tasks = [site.send("record", 0.05 + number % 5 / 20).id for number in range(80)]
    for task in tasks:
        site.journal.wait_finished(task)
    site.settled()
    assert dict.fromkeys(tasks, 1) == dict(site.journal.started())
    assert 5 == highest_overlap(site.journal)
    for worker in workers:
        assert 0 == worker.shut_down()
    site.settled()


@pytest.mark.slow
@pytest.mark.parametrize("acks", [EARLY, LATE])
@pytest.mark.parametrize("limits", [{"concurrency": 100}, {"rate": "1000/s burst 1000"}])
def test_a_worker_holds_no_more_than_it_can_start(limited, tmp_path, acks, limits):
    """Whatever the prefetch multiplier, each message in hand runs; the log says so once."""
    site = limited(acks, **limits)
    gates = Gates(site, tmp_path, 20)
    workers = [site.worker(pool="prefork", concurrency=4) for _ in range(2)]
    gates.wait_started(8)
    site.wait_counts(unacked=8, ready=12)
    gates.open(4)
    gates.wait_started(12)
    site.wait_counts(unacked=8, ready=8)
    gates.open_all()
    wait_until(lambda: len(site.journal.finished()) == 20, timeout_s=30)
    site.settled()
    for worker in workers:
        assert 1 == worker.log().count("has limits")


@pytest.mark.slow
@pytest.mark.parametrize("acks", [EARLY, LATE])
def test_the_slots_of_a_killed_worker_are_free_after_its_lease(limited, tmp_path, acks):
    """Its slots are taken by others; what it had acked does not return, the rest does."""
    site = limited(acks, SHORT, concurrency=3)
    gates = Gates(site, tmp_path, 12)
    victim = site.worker(pool="prefork", concurrency=2)
    gates.wait_started(2)
    other = site.worker(pool="prefork", concurrency=4)
    gates.wait_started(3)
    lost = {entry.key for entry in site.journal.entries(STARTED)[:2]}
    victim.kill_group()
    if acks == EARLY:
        gates.wait_started(5, timeout_s=15)
        assert dict.fromkeys(lost, 1).items() <= dict(site.journal.started()).items()
    else:
        wait_until(
            lambda: site.journal.started().total() == 5,
            timeout_s=15,
            what=lambda: f"5 starts; have {site.journal.started()}",
        )
    site.wait_counts(unacked=3)
    gates.open_all()
    wait_until(
        lambda: len(site.journal.finished()) == 12 - 2 * (acks == EARLY),
        timeout_s=30,
        what=lambda: f"the ends; have {len(site.journal.finished())}",
    )
    site.settled()
    assert other.running
    runs = site.journal.started()
    assert {1 if acks == EARLY else 2} == {runs[key] for key in lost}


ENDS = ("return", "raise", "ignore", "retry", "reject", "time limit", "kill")


@pytest.mark.slow
@pytest.mark.parametrize("acks", [EARLY, LATE])
def test_however_a_task_ends_its_slot_is_free(limited, acks):
    """With one slot, the next task runs after any end, though no lease ends."""
    site = limited(acks, concurrency=1)
    worker = site.worker(pool="prefork", concurrency=2)
    for how in ENDS:
        site.send("end_as", how)
        follower = site.send("record").id
        site.journal.wait_finished(follower, timeout_s=40)
        dead = site.counts()["dead"]
        site.wait_counts(ready=0, unacked=0, delayed=0, timeout_s=20)
    assert worker.running
    assert dead == (acks == LATE)  # the rejected one


@pytest.mark.slow
@pytest.mark.parametrize("acks", [EARLY, LATE])
def test_however_a_message_never_becomes_a_task_its_slot_is_free(limited, acks):
    """Revoked, expired and unknown tasks, and a task that is terminated, free their slot."""
    site = limited(acks, concurrency=1)
    worker = site.worker(pool="prefork", concurrency=2)
    for send in (_send_revoked, _send_expired, _send_unknown, _send_terminated):
        send(site)
        follower = site.send("record").id
        site.journal.wait_finished(follower, timeout_s=30)
        site.wait_counts(ready=0, unacked=0, delayed=0, timeout_s=20)
    assert worker.running


def _send_revoked(site):
    blocker = site.send("record", 1.0).id
    site.journal.wait_started(blocker)
    task = site.send("record")
    site.app.control.revoke(task.id)
    inspect = site.app.control.inspect(timeout=5)
    wait_until(lambda: any(task.id in ids for ids in (inspect.revoked() or {}).values()))
    site.journal.wait_finished(blocker)
    assert 0 == site.journal.runs(task.id)


def _send_expired(site):
    past = dt.datetime.now(dt.timezone.utc) - dt.timedelta(seconds=5)
    site.send("record", expires=past)


def _send_unknown(site):
    site.send("no such task")


def _send_terminated(site):
    task = site.send("record", 60.0)
    site.journal.wait_started(task.id)
    site.app.control.revoke(task.id, terminate=True)


@pytest.mark.slow
@pytest.mark.parametrize("acks", [EARLY, LATE])
def test_a_warm_shutdown_hands_back_what_has_not_begun(limited, tmp_path, acks):
    """A worker that ends finishes what runs; its slots go to the other one."""
    site = limited(acks, concurrency=3)
    gates = Gates(site, tmp_path, 9)
    first = site.worker(pool="prefork", concurrency=4)
    gates.wait_started(3)
    second = site.worker(pool="prefork", concurrency=4)
    first.terminate()
    gates.open(3)
    assert 0 == first.wait(60)
    gates.wait_started(6)
    gates.open_all()
    wait_until(lambda: len(site.journal.finished()) == 9, timeout_s=30)
    site.settled()
    assert second.running
    assert 3 == highest_overlap(site.journal)


@pytest.mark.slow
@pytest.mark.parametrize("acks", [EARLY, LATE])
def test_a_rate_is_kept_and_used(limited, acks):
    """Tasks start at the rate: never more of them, and without a poll in between."""
    rate, burst, number = 20, 2, 60
    site = limited(acks, rate=f"{rate}/s burst {burst}")
    workers = [site.worker(pool="prefork", concurrency=4) for _ in range(2)]
    began = time.monotonic()
    tasks = [site.send("record").id for _ in range(number)]
    for task in tasks:
        site.journal.wait_finished(task, timeout_s=40)
    starts = sorted(entry.at for entry in site.journal.entries(STARTED))
    assert number == len(starts)
    for count, at in enumerate(starts, 1):
        assert count <= burst + (at - began) * rate
    # A start is noted some time after its reserve.
    for first in range(number):
        for last in range(first, number):
            elapsed_s = starts[last] - starts[first] + 0.5
            assert last - first + 1 <= burst + elapsed_s * rate
    site.settled()
    for worker in workers:
        assert 0 == worker.shut_down()


@pytest.mark.slow
@pytest.mark.parametrize("acks", [EARLY, LATE])
def test_a_changed_limit_applies_at_once(limited, tmp_path, acks):
    """A raised limit starts tasks of waiting workers; a lowered one ends none."""
    from reliq.admin import Inspector

    site = limited(acks, concurrency=2)
    gates = Gates(site, tmp_path, 20)
    for _ in range(2):
        site.worker(pool="prefork", concurrency=4)
    gates.wait_started(2)
    with Inspector(site.broker, transport_options=site.transport_options) as inspector:
        inspector.configure("celery", {"x-concurrency": 6})
        gates.wait_started(6)
        inspector.configure("celery", {"x-concurrency": 3})
        gates.open(3)
        site.wait_counts(unacked=3)
        assert 6 == started(site)
        gates.open()
        gates.wait_started(7)
        inspector.configure("celery", {"x-concurrency": 100})
        gates.wait_started(12)
        inspector.configure("celery", {"x-concurrency": -1})
    gates.open_all()
    wait_until(lambda: len(site.journal.finished()) == 20, timeout_s=30)
    site.settled()
