"""Dead workers leave nothing permanent, and no command that the next worker obeys."""

from __future__ import annotations

import signal

import pytest
from kombu import Connection

from reliq.admin import Inspector
from tests.support.waiting import wait_until

QUIET = {"task_ignore_result": True, "result_backend": None}


@pytest.fixture
def make_site(fresh_redis, site_factory):
    """Return a function that makes a Celery application with the given settings."""
    return lambda **config: site_factory(fresh_redis, **QUIET, **config)


def second(site, **options):
    """Start another worker with the name of an earlier one, whose log it continues."""
    worker = site.worker(ready=False, **options)
    worker.wait_log(" ready.", times=2, timeout_s=40)
    return worker


def answers(site, worker):
    """Whether *worker* answers a ping."""
    return bool(site.app.control.ping(destination=[worker.name], timeout=2))


def left(site):
    """Return all queues and all bindings."""
    with (
        Inspector(site.broker, site.transport_options) as inspector,
        Connection(site.broker, transport_options=site.transport_options) as connection,
    ):
        return inspector.queues(), sorted(connection.default_channel.list_bindings())


def test_an_old_command_is_not_for_a_new_worker(make_site):
    """A new worker ignores a shutdown command for a killed worker of the same name.

    The options are the defaults, so that the broker saw the dead worker a moment ago.
    """
    site = make_site(broker_transport_options={})
    killed = site.worker(pool="threads", name="one")
    killed.kill_group()
    site.app.control.shutdown()
    again = second(site, pool="threads", name="one")
    assert answers(site, again)
    assert answers(site, again)  # by now it would have obeyed an earlier command
    assert again.running


@pytest.mark.slow
def test_what_killed_workers_leave_goes(make_site):
    """A living worker removes killed workers' temporary queues, even if it consumes from others."""
    site = make_site()
    site.worker(pool="threads", name="living", queues=["living"])
    before = left(site)
    for number in range(3):
        killed = site.worker(pool="threads", name=f"killed{number}", queues=["killed"])
        killed.kill_group()
    wait_until(
        lambda: (
            [q for q in left(site)[0] if q.startswith(("killed", "celeryev.killed"))] == ["killed"]
        ),
        timeout_s=30,
        what=lambda: str(left(site)),
    )
    queues, bindings = left(site)
    assert [*before[0], "killed"] == sorted(queues, key=lambda name: name == "killed")
    assert before[1] == [row for row in bindings if row[0] != "killed"]


@pytest.mark.slow
def test_a_worker_that_stood_still_can_be_spoken_to(make_site):
    """A frozen worker that was taken for dead declares its mailbox again after the thaw."""
    site = make_site()
    site.worker(pool="threads", name="other", queues=["other"])
    frozen = site.worker(pool="threads", name="frozen")
    mailbox = "frozen@test.celery.pidbox"

    def there():
        return any(name.startswith(mailbox) for name in left(site)[0])

    assert there()
    frozen.freeze()
    wait_until(lambda: not there(), timeout_s=30)
    frozen.signal(signal.SIGCONT)
    wait_until(lambda: answers(site, frozen), timeout_s=20)
    assert "is declared again" in frozen.log()
