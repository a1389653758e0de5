"""A batch learns the fate of its jobs' messages while a worker makes passes over the queues."""

from __future__ import annotations

import contextlib

import pytest
from celery import Celery
from kombu import Connection, Consumer, Queue

from reliq.admin import Inspector
from reliq.batches import Batch
from reliq.batches.jobs import Change
from reliq.errors import MessageRefused, QueueFull
from reliq.message.delivery_tag import new_tag
from reliq.message.envelope import Envelope, encode
from reliq.values.job_headers import BATCH
from tests.contract.steps import message
from tests.integration.kombu_client import FAST
from tests.support.site import close_app
from tests.support.waiting import wait_until

ENDS_S = 30


@pytest.fixture
def app(url):
    """Return an app that publishes to the broker."""
    app = Celery("client", broker=url, set_as_current=False)
    app.conf.broker_transport_options = FAST
    yield app
    close_app(app)


@contextlib.contextmanager
def looking_after(url, queue):
    """Run a consumer of *queue* with its background loop; it takes no message."""
    with (
        Connection(url, transport_options=FAST) as connection,
        Consumer(connection, [Queue(queue)], prefetch_count=1) as consumer,
    ):
        consumer.register_callback(lambda *_: None)
        yield


def ended(batch):
    """Wait for the end of a batch; return the reasons of its failed jobs."""
    return {one.reason for one in batch.wait(ENDS_S).failures}


@pytest.mark.parametrize("consumed", [True, False], ids=["consumed", "not consumed"])
def test_a_purge_is_told(app, url, consumed):
    """A purge is reported to the batch by a consumer of the queue, or of any other queue."""
    with Batch("purged", url=url, transport_options=FAST) as batch:
        for _ in range(3):
            app.send_task("t", (), queue="jobs")
    with Inspector(url) as inspector, contextlib.closing(batch):
        assert 3 == inspector.purge("jobs")
        with looking_after(url, "jobs" if consumed else "other"):
            assert {"purged from its queue"} == ended(batch)


def test_a_job_that_expires(app, url):
    """A job that expires before its delivery ends in error."""
    with Batch("late", url=url, transport_options=FAST) as batch:
        app.send_task("t", (), queue="jobs", expiration=0.1)
    with contextlib.closing(batch), looking_after(url, "other"):
        assert {"expired"} == ended(batch)


def test_a_job_that_no_queue_takes(app, url):
    """A message that no queue takes is dropped, as in AMQP, and is no job of the batch."""
    with Batch("nowhere", url=url, transport_options=FAST) as batch:
        app.send_task("t", (), exchange="nobody", exchange_type="direct", routing_key="x")
        batch.map("t", range(2), app=app, exchange="nobody", routing_key="x")
    status = batch.status()
    batch.close()
    assert (0, True) == (status.total, status.ended_ms is not None)


def test_a_job_without_a_name(app, url):
    """A task id that is no text, or too long a text, is refused, since it cannot be counted."""
    with Batch("numbers", url=url, transport_options=FAST) as batch:
        for wrong in (7, "x" * 256):
            with pytest.raises(MessageRefused, match="task id"):
                app.send_task("t", (), task_id=wrong)
    assert 0 == batch.status().total
    batch.close()
    with Inspector(url) as inspector:
        assert 0 == inspector.status("celery").stored


def test_a_full_queue(app, url):
    """A full queue drops its oldest job as an error; a refused new message is no job."""
    strict = {"x-max-length": 1, "x-overflow": "reject-publish"}
    app.conf.task_queues = [
        Queue("short", queue_arguments={"x-max-length": 1}),
        Queue("strict", queue_arguments=strict),
    ]
    with Batch("many", url=url, transport_options=FAST) as batch:
        for _ in range(3):
            app.send_task("t", (), queue="short")
        app.send_task("t", (), queue="strict")
        with pytest.raises(QueueFull):
            app.send_task("t", (), queue="strict")
    with contextlib.closing(batch), looking_after(url, "other"):
        wait_until(lambda: 2 == batch.status().counts["error"], what="two to give way")
        assert {"dead letter: its queue was full"} == {
            one.reason for one in batch.status().failures
        }
        assert 4 == batch.status().total


@pytest.mark.parametrize("confirm", ["none", "accepted"])
def test_where_its_message_is(app, url, confirm):
    """A batch knows where a job's message is, even if the publish did not wait for storage."""
    with Batch("jobs", url=url, transport_options=FAST) as batch:
        app.send_task("t", (), queue="jobs", confirm=confirm)
    with contextlib.closing(batch):
        store = batch._connected()
        (job,) = [job for part in store.batches.jobs(batch.id) for job in part]
        assert {job.tag: "there"} == store.reads.whereabouts("jobs", [job.tag])


@pytest.mark.parametrize("confirm", ["none", "accepted"])
def test_where_the_messages_of_many_are(app, url, confirm):
    """Calls that are packed once and sent together are known to the broker as jobs."""

    @app.task(name="t", shared=False)
    def task(value):
        """Take one argument."""

    with Batch("mapped", url=url, transport_options=FAST) as batch:
        batch.map(task, range(3), queue="jobs", confirm=confirm)
    with Inspector(url) as inspector, contextlib.closing(batch):
        store = batch._connected()
        tags = [job.tag for part in store.batches.jobs(batch.id) for job in part]
        assert dict.fromkeys(tags, "there") == store.reads.whereabouts("jobs", tags)
        assert 3 == inspector.purge("jobs") == len(tags)
        with looking_after(url, "other"):
            assert {"purged from its queue"} == ended(batch)


def test_an_id_that_is_used_again(app, url, redis_server):
    """A batch whose data was lost, and which is opened again, publishes its own callback.

    As on a cluster, if the node of the batch was restored from an older copy.
    """
    callback = app.signature("ended", immutable=True).set(queue="callbacks")
    with Inspector(url) as inspector, redis_server.client() as raw:
        for count in (1, 2):
            made = Batch(
                "nightly", id="nightly", on_complete=callback, url=url, transport_options=FAST
            )
            with contextlib.closing(made), made:
                pass
            assert count == inspector.status("callbacks").ready
            for key in raw.scan_iter("reliq:batch:{nightly}:*"):
                raw.delete(key)


@pytest.mark.parametrize("job", ["x" * 256, ""], ids=["long", "empty"])
def test_a_message_that_cannot_be_a_job(url, job):
    """A message whose headers name an invalid job, from a foreign publisher, is acked as it is."""
    headers = {"task": "t", "id": job, BATCH: "b"}
    envelope = encode(Envelope(b"[]", "text/plain", "utf-8", headers, {}, "", "q"))
    with Connection(url, transport_options=FAST) as connection:
        queue = connection.SimpleQueue("q")
        connection.default_channel.transport.link.store.publish(
            (message(envelope=envelope, tag=new_tag(5, {BATCH: "b"})),)
        )
        queue.get(timeout=ENDS_S).ack()
        assert connection.default_channel.transport.link.session.reports.is_empty
        queue.close()
    with Inspector(url) as inspector:
        assert 0 == inspector.status("q").stored


def test_a_job_that_is_recovered(app, url):
    """A running job whose message basic.recover returns waits again."""
    with Batch("recovered", url=url, transport_options=FAST) as batch:
        app.send_task("t", (), queue="jobs")
    with Connection(url, transport_options=FAST) as connection, contextlib.closing(batch):
        channel = connection.default_channel
        taken = wait_until(lambda: channel.basic_get("jobs"), what="the job's message")
        begun = Change("begin", taken.headers["id"], "", 0, int(taken.token), taken.delivery_tag)
        batch._connected().batches.change(batch.id, (begun,))
        taken.begun = True  # by a pool
        assert 1 == batch.status().counts["working"]
        channel.basic_recover(requeue=True)
        wait_until(lambda: 1 == batch.status().counts["waiting"], what="the job to wait")
