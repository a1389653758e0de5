"""publish_many to a cluster whose node dies in the middle: each task is stored once."""

from __future__ import annotations

from ast import literal_eval

import pytest
from celery import Celery
from kombu import Queue

import reliq
from reliq.admin import Inspector
from reliq.lua.keys import queue_key
from reliq.message.queue_names import partition_names
from tests.support.audits import assert_balanced
from tests.support.site import close_app
from tests.support.waiting import wait_until

from ..cluster.test_cluster_spool import owner, restart_one

pytestmark = pytest.mark.slow

OPTIONS = {
    "socket_timeout": 2,
    "socket_connect_timeout": 1,
    "probe_interval": 0.5,
    "restore_interval": 0.5,
}
POLICY = {"max_retries": 5, "interval_start": 0, "interval_max": 0.2}
TASK = "many.take"


@pytest.fixture
def make_app():
    """Return a function that makes an application, which is closed at the end."""
    apps = []

    def make(broker, **conf):
        app = Celery("many", broker=broker, set_as_current=False)
        app.conf.update(
            result_backend=None,
            broker_transport_options=OPTIONS,
            task_publish_retry_policy=POLICY,
            **conf,
        )
        apps.append(app)
        return app

    yield make
    for app in apps:
        close_app(app)


def numbers(url):
    """Return the arguments of all ready messages in the queue "celery"."""
    with Inspector(url) as inspector:
        if "celery" not in inspector.queues():
            return []
        return [literal_eval(item.args)[0] for item in inspector.peek("celery", limit=10_000)]


def numbers_until(node):
    """Yield numbers, and kill the node in between."""
    yield from range(700)
    node.kill()
    yield from range(700, 2000)


def test_the_node_of_the_queue_dies(bare_cluster, make_app, tmp_path):
    """The rest of the tasks goes to the spool, and to the queue when the node is back."""
    home = bare_cluster.url()
    app = make_app(f"{home};reliq-spool:///{tmp_path}/spool.db")
    victim = owner(bare_cluster, queue_key("", "celery", "meta"))
    assert 2000 == reliq.publish_many(TASK, numbers_until(victim), app=app)
    restart_one(bare_cluster, victim)
    wait_until(lambda: len(numbers(home)) >= 2000, timeout_s=60)
    assert list(range(2000)) == sorted(numbers(home))
    assert_balanced(home)


def test_a_node_of_a_divided_queue_dies(bare_cluster, make_app):
    """Unsent tasks go to other partitions, and the batch stores uncertain ones once."""
    home = bare_cluster.url()
    queue = Queue("celery", queue_arguments={"x-partitions": 8})
    app = make_app(home, task_queues=[queue])
    own, *others = [
        owner(bare_cluster, queue_key("", name, "meta")) for name in partition_names("celery", 8)
    ]
    victim = next(node for node in others if node is not own)
    sent, given = 0, numbers_until(victim)
    uncertain = None
    try:
        sent = reliq.publish_many(TASK, given, app=app)
    except reliq.PartlyPublished as exc:
        sent, uncertain = exc.sent, exc
    restart_one(bare_cluster, victim)
    if uncertain is not None:
        assert [] == uncertain.unsent
        uncertain.batch.flush()
        sent += len(uncertain.uncertain)
        sent += reliq.publish_many(TASK, given, app=app)
    assert 2000 == sent
    assert list(range(2000)) == sorted(numbers(home))
    assert_balanced(home)
