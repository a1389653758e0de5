"""A task and its worker see the same of a message over reliq as over Kombu's redis://."""

from __future__ import annotations

import datetime as dt
import json

import pytest

from tests.support.workers import pools

APP = "tests.integration.apps.seen"
RESULT_S = 20
DEFAULTS = {"broker_transport_options": {}}

# Fields that differ for each message or run; only their types are compared.
OF_THE_RUN = {"id", "root_id", "parent_id", "correlation_id", "reply_to", "delivery_tag", "eta"}
OF_THE_RUN |= {"expires", "message_id"}
# Fields that only one of the two has, by the field that contains them.
ONE_SIDED = {
    "properties": {"body_encoding"},  # redis:// keeps the body in base64
    "delivery_info": {"priority"},  # reliq's, in a message; a request has it over both
}


@pytest.fixture
def seen(tmp_path, redis_server, site_factory):
    """Return a function that starts a worker over a scheme; its site has the worker's records."""

    def start(scheme, **options):
        client = redis_server.client()
        client.flushall()
        client.close()
        site = site_factory(redis_server, **DEFAULTS)
        site.broker = redis_server.url(scheme)
        path = tmp_path / f"seen-{scheme}"
        site.seen = lambda: [json.loads(line) for line in path.read_text().splitlines()]
        site.running = site.worker(
            app=APP, env={"RELIQ_TEST_SEEN": str(path)}, name="seen", **options
        )
        return site

    return start


@pytest.mark.slow
@pytest.mark.parametrize("pool", pools("prefork", "gevent"))
def test_a_task_sees_the_eta_that_it_waited_for(seen, pool):
    """A task sees its ETA as text, as over redis://; the worker did not hold the task for it."""
    site = seen("reliq", pool=pool)
    eta = dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=0.5)
    request = site.send("seen", eta=eta).get(timeout=RESULT_S)
    assert (eta.isoformat(), None) == (request["eta"], request["headers"])
    assert "x-eta" not in request
    (received,) = site.seen()
    assert None is received["eta"]  # Celery's worker would hold the task until then
    site.settled()


@pytest.mark.slow
def test_a_retry_has_the_eta_of_its_own(seen):
    """A retry with a countdown has another ETA, and a retry without one has none."""
    site = seen("reliq")
    first = dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=0.3)
    again = site.send("seen_again", 0.2, eta=first).get(timeout=RESULT_S)
    assert first < dt.datetime.fromisoformat(again["eta"])
    assert None is site.send("seen_again", 0, eta=first).get(timeout=RESULT_S)["eta"]
    site.settled()


def test_a_consumer_without_celery_reads_the_eta_of_a_task(seen):
    """A consumer without Celery reads a task's ETA; only Celery's worker would hold the message."""
    site = seen("reliq")
    eta = dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=0.2)
    site.send("seen", eta=eta, queue="other")
    with site.app.connection() as connection:
        queue = connection.SimpleQueue("other")
        message = queue.get(timeout=10)
        assert eta.isoformat() == message.headers["eta"]
        assert "x-eta" not in message.headers
        message.ack()
        queue.close()
    site.settled("other")


def outcomes(site):
    """Return the records of tasks and worker for messages of each kind, over the site's broker."""
    asked = {
        "plain": {"args": (1,), "kwargs": {"a": 2}},
        "with a priority": {"priority": 3},
        "with a countdown": {"countdown": 0.3},
        "that expires": {"expires": 60},
        "with headers": {"headers": {"mine": 1}},
        "with a reply": {"reply_to": "somebody", "correlation_id": "7"},
    }
    found = {
        kind: site.app.send_task("seen", **options).get(timeout=RESULT_S)
        for kind, options in asked.items()
    }
    found["retried"] = site.send("seen_again", 0.2).get(timeout=RESULT_S)
    found["retried at once"] = site.send("seen_again", 0, countdown=0.2).get(timeout=RESULT_S)
    found["received"] = site.seen()
    for message in found["received"]:
        del message["headers"]["eta"], message["eta"]  # Celery's worker must hold none of ours
    inspect = site.app.control.inspect([site.running.name], timeout=5)
    for name in ("ping", "active_queues", "active", "reserved", "registered"):
        (found[name],) = getattr(inspect, name)().values()
    (stats,) = inspect.stats().values()
    found["broker"] = stats["broker"]
    found["priorities"] = [
        message["request"]["delivery_info"]["priority"] for message in found["received"]
    ]
    return comparable(found)


def comparable(value, key=None):
    """Return *value* without differences between runs and fields of only one transport."""
    if key in OF_THE_RUN and value is not None:
        return type(value).__name__
    if isinstance(value, dict):
        apart = ONE_SIDED.get(key, set())
        return {name: comparable(value[name], name) for name in value.keys() - apart}
    if isinstance(value, list):
        return [comparable(item, key) for item in value]
    return value


@pytest.mark.slow
def test_a_worker_sees_what_it_sees_over_redis(seen):
    """Requests, messages and replies to remote control equal those over redis:// in each field."""
    theirs, ours = (outcomes(seen(scheme)) for scheme in ("redis", "reliq"))
    assert ["redis", "reliq"] == [found["broker"].pop("transport") for found in (theirs, ours)]
    assert [0, 3, 0] == ours["priorities"][:3]
    for kind in theirs:
        assert theirs[kind] == ours[kind], kind
    assert theirs.keys() == ours.keys()


# -- inspect scheduled


@pytest.mark.slow
@pytest.mark.parametrize("pool", pools("prefork", "gevent"))
def test_inspect_scheduled_shows_what_waits_in_the_broker(seen, pool):
    """`inspect scheduled` shows delayed tasks as Celery shows held ones, and changes nothing.

    The hostname is the broker's.
    """
    site = seen("reliq", pool=pool)
    eta = dt.datetime.now(dt.timezone.utc) + dt.timedelta(hours=1)
    later = site.send("seen", 1, eta=eta + dt.timedelta(hours=1), priority=2)
    first = site.send("seen", 1, {"b": [2]}, kwargs={"c": "d"}, eta=eta)
    held = site.app.send_task("seen", headers={"x-delay": 3_000_000})
    inspect = site.app.control.inspect([site.running.name], timeout=5)
    waiting = inspect.scheduled()[site.running.name]
    assert [held.id, first.id, later.id] == [item["request"]["id"] for item in waiting]
    (address,) = {item["request"]["hostname"] for item in waiting}
    assert address == site.broker.removesuffix("/")
    assert {
        "eta": eta.isoformat(),
        "priority": 6,
        "request": {
            "id": first.id,
            "name": "seen",
            "args": [1, {"b": [2]}],
            "kwargs": {"c": "d"},
            "type": "seen",
            "hostname": address,
            "time_start": None,
            "acknowledged": False,
            "delivery_info": {
                "exchange": "",
                "routing_key": "celery",
                "priority": 0,
                "redelivered": False,
            },
            "worker_pid": None,
        },
    } == waiting[1]
    assert 3 == site.counts()["delayed"]
    assert 3 == site.app.control.purge()


def test_inspect_scheduled_is_bounded(seen):
    """`inspect scheduled` shows the next hundred due tasks of a worker, and at most a MiB."""
    site = seen("reliq", queues=["celery", "other"])
    inspect = site.app.control.inspect([site.running.name], timeout=5)
    sent = [site.send("seen", countdown=3600 + number) for number in range(90)]
    other = [site.send("seen", countdown=4000 + number, queue="other") for number in range(20)]
    waiting = inspect.scheduled()[site.running.name]
    expected = [task.id for task in [*sent, *other]][:100]
    assert expected == [item["request"]["id"] for item in waiting]

    for _ in range(5):
        site.send("seen", "x" * 400_000, countdown=60)
    waiting = inspect.scheduled()[site.running.name]
    assert 1 < len(waiting) < 100
    assert waiting[0]["request"]["args"].startswith("('xxx")  # Celery's own text for people
    assert len(json.dumps(waiting)) < 100_000
    assert 115 == site.app.control.purge() + site.app.connection().default_channel.queue_purge(
        "other"
    )
