"""Celery workers with one node name: replicas that were started with the same `-n`."""

from __future__ import annotations

import pytest

from tests.support.waiting import wait_until
from tests.support.workers import pools

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("pool", pools("threads", "prefork"))
def test_workers_with_one_node_name_get_every_command(site_factory, redis_factory, pool):
    """Both answer a ping, and learn of a revoke and a rate limit; one of them warns.

    After one has stopped or was killed, the other still gets each command.
    """
    site = site_factory(redis_factory())

    def start(ready):
        worker = site.worker(pool=pool, name="same")
        worker.wait_log(" ready.", times=ready)  # all write to one file
        return worker

    def answers():
        return len(site.app.control.ping(timeout=2))

    one = start(1)
    warning = "another running worker has the node name 'same@test'"
    assert warning not in one.log()
    two = start(2)
    one.wait_log(warning)
    assert [2, 2] == [answers(), answers()]
    site.app.control.revoke("a-task")
    one.wait_log("flagged as revoked: a-task", times=2)
    site.app.control.rate_limit("record", "1/m")
    one.wait_log("New rate limit for tasks of type record", times=2)
    assert 0 == one.shut_down()
    assert [1, 1] == [answers(), answers()]
    three = start(3)
    assert 2 == answers()
    three.kill_group()
    assert [1, 1, 1] == [answers() for _ in range(3)]
    wait_until(lambda: _mailboxes(site) == 1, what="the mailbox of the killed worker to go")
    assert 1 == answers()
    assert 0 == two.shut_down()


def _mailboxes(site):
    with site.server.client() as raw:
        return len(list(raw.scan_iter("reliq:{*celery.pidbox*}:meta")))
