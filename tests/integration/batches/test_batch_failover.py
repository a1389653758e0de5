"""Batches with two brokers: each batch is at one of them, and so are its jobs."""

from __future__ import annotations

from contextlib import closing, suppress

import pytest
from celery import Celery
from kombu import Connection

from reliq import BrokerTimeout, PartlyPublished
from reliq.admin import Inspector
from reliq.batches import Batch
from reliq.batches.jobs import Change
from reliq.transports.publish import publishing
from tests.integration.celery.test_celery_failover import brokers  # noqa: F401 - a fixture
from tests.support.waiting import wait_until
from tests.support.workers import pools

APP, QUICK = "tests.integration.apps.jobs", "tests.integration.apps.killed"
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("pool", pools("prefork", of=("prefork", "threads")))
def test_a_job_asks_the_broker_that_its_message_is_from(brokers, pool):  # noqa: F811
    """A job queries its message's broker, even if its process queried the other, reachable one."""
    site = brokers.site
    worker = site.worker(app=APP, pool=pool, concurrency=1)
    brokers.a.kill()
    with Batch("at B", app=site.app) as away:
        site.send("end_late", "succeed")
    assert 1 == away.wait(40).counts["succeeded"]
    away.close()
    brokers.a.start()
    wait_until(lambda: "answers again" in worker.log(), what=worker.tail)
    before = brokers.counts(brokers.a)
    wait_until(
        lambda: brokers.send(1, "end_late", "succeed") and brokers.counts(brokers.a) != before
    )
    wait_until(lambda: brokers.counts(brokers.a) == {}, timeout_s=40, what=worker.tail)
    with Batch("at A", app=site.app) as home:
        job = site.send("end_late", "succeed", countdown=1).id
        home.cancel()
    assert 1 == home.wait(20).counts["cancelled"]
    home.close()
    assert 0 == site.journal.runs(job)


def test_a_batch_at_a_broker_where_no_worker_is(brokers):  # noqa: F811
    """A worker that moves messages home also seals their batch and ends it, with its callback."""
    site = brokers.site
    client = Celery("client of B", broker=brokers.b.url("reliq"), set_as_current=False)
    callback = client.signature("end_late", ("succeed",), immutable=True).set(task_id="said")
    batch = Batch("at B", app=client, on_complete=callback, seal_timeout=1)
    with closing(batch), closing(client):
        with suppress(KeyboardInterrupt), batch:
            job = client.send_task("end_late", ("succeed",)).id
            killed = Change("begin", "killed", token=1, text="a worker that was killed")
            # A pass has found the message before, so the job is lost if the message is nowhere
            # later.
            settled = Change("settle", text=str(10**15))
            batch._connected().batches.change(
                batch.id, [Change("enter", "killed", "waiting"), killed, settled]
            )
            raise KeyboardInterrupt
        worker = site.worker(app=QUICK, pool="threads", concurrency=1)
        ran = site.journal.finished
        wait_until(lambda: {"said", job} <= ran().keys(), timeout_s=40, what=worker.tail)
        assert {"error": 2} == {state: n for state, n in batch.status().counts.items() if n}


def publish_next_try(urls, errback):
    """Publish the second try of the job of :func:`begun`, as Celery does, after another message."""
    headers = {"task": "t", "id": "j", "retries": 1, "reliq-batch": "batch"}
    # Kombu does not pause if the next broker answers; a back-off takes a second.
    policy = {"max_retries": 2000, "interval_start": 0.2, "interval_max": 0.2, "errback": errback}
    with Connection(urls, transport_options={"socket_connect_timeout": 1.0}) as connection:
        producer = connection.Producer()
        producer.publish("no job", routing_key="first")
        producer.publish("job", routing_key="q", headers=headers, retry=True, retry_policy=policy)


def begun(server):
    """Open a batch with one job, which has begun."""
    with Batch("batch", id="batch", url=server.url("reliq")) as batch:
        jobs = batch._connected().batches
        jobs.change("batch", [Change("enter", "j", "waiting"), Change("begin", "j", token=1)])


def test_the_next_try_of_a_job_waits_for_the_first_broker(redis_factory):
    """A job's retry waits for the first broker, since its task could not handle the error."""
    a, b = redis_factory(appendonly=True), redis_factory(appendonly=True)
    begun(a)
    a.kill()
    refused = []

    def refuse(exc, _):
        refused.append(str(exc))
        if "published at the broker of the batch" in refused[-1] and not a.running:
            a.start()

    publish_next_try([a.url("reliq"), b.url("reliq")], refuse)
    assert any("published at the broker of the batch" in text for text in refused)
    with Inspector(a.url("reliq")) as inspector:
        assert 1 == inspector.status("q").ready
        assert {"retrying"} == {job.state for job in inspector.jobs("batch")}


@pytest.mark.parametrize("brokers", [1, 2])
def test_the_next_try_of_a_job_whose_batch_is_not_there(redis_factory, brokers):  # noqa: F811
    """A retry is published without its batch if the first broker answers but has no such batch.

    Publishers do not switch to the second broker while the first one answers.
    """
    a, b = redis_factory(), redis_factory()
    begun(b)
    refused = []
    urls = [server.url("reliq") for server in (a, b)]
    publish_next_try(urls[:brokers], lambda exc, _: refused.append(exc))
    assert refused == []
    with Inspector(a.url("reliq")) as inspector:
        assert 1 == inspector.status("q").ready


def test_jobs_that_the_first_broker_may_have_are_uncertain(redis_factory, monkeypatch):
    """Jobs that the first broker may have stored are reported as uncertain.

    The second broker has no such batch, and cannot know the messages that were sent to the first.
    """
    a, b = redis_factory(appendonly=True), redis_factory(appendonly=True)
    send = publishing.send

    def send_and_hear_nothing(*args):
        send(*args)
        a.kill()
        raise BrokerTimeout("no answer")

    app = Celery(broker=[server.url("reliq") for server in (a, b)], set_as_current=False)
    task = app.task(name="t", shared=False)(send_and_hear_nothing)
    with closing(app), Batch("jobs", app=app) as batch:
        monkeypatch.setattr(publishing, "send", send_and_hear_nothing)
        with pytest.raises(PartlyPublished) as caught:
            batch.map(task, range(3), retry=True)
        found = caught.value
        assert (0, [], 3) == (found.sent, found.unsent, len(found.uncertain))
        a.start()
