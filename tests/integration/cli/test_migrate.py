"""`reliq migrate`, run like an operator does: from Kombu's own Redis transport and back."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from datetime import datetime, timedelta, timezone

import jsonschema
import pytest
from kombu import Connection, Exchange, Queue

from reliq import ConfigurationError
from reliq.admin import Inspector
from reliq.cli.schema import SCHEMAS
from reliq.client.cluster.slots import slot_of
from reliq.lua.keys import queue_key
from reliq.message.envelope import unpack
from reliq.migration.migrate import Migration, Plan
from tests.integration.kombu_client import Taker, publish
from tests.support import commands
from tests.support.audits import assert_balanced
from tests.support.cluster import RedisCluster
from tests.support.processes import Process
from tests.support.waiting import wait_until

MESSAGES, KILLS = 2000, 4
# Kombu's own layout of the lists.
LAYOUT = ("--sep", "default", "--priority-steps", "default")


@pytest.fixture
def other(redis_factory):
    """Return another server; the ledgers of reliq there balance at the end."""
    server = redis_factory()
    yield server
    assert_balanced(server.url("reliq"))


@pytest.fixture
def cluster():
    """Return a cluster; the ledgers of reliq there balance at the end."""
    cluster = RedisCluster(2)
    try:
        yield cluster.start()
        assert_balanced(cluster.url())
    finally:
        cluster.destroy()


@pytest.fixture(
    params=["one server", "two servers", pytest.param("a cluster", marks=pytest.mark.slow)]
)
def places(request, client, redis_server):
    """Return the servers of Kombu's and of reliq's side."""
    if request.param == "one server":
        return redis_server, redis_server
    name = "cluster" if request.param == "a cluster" else "other"
    return redis_server, request.getfixturevalue(name)


def node_of(server, queue):
    """Return the server that has the queue."""
    if isinstance(server, RedisCluster):
        return server.owner(slot_of(queue_key("", queue, "meta")))
    return server


def command(*arguments):
    """Return the command line."""
    if str(arguments[0]).startswith("reliq"):
        arguments += LAYOUT
    return [sys.executable, "-m", "reliq.cli", "migrate", *map(str, arguments)]


def migrate(*arguments):
    """Run the command, which has to succeed; return its output as values."""
    done = run(*arguments)
    assert 0 == done.returncode, done.stderr
    found = json.loads(done.stdout)
    jsonschema.validate(found, SCHEMAS["migrate"])
    return {item.pop("queue"): item for item in found}


def run(*arguments):
    """Run the command; on the way to Kombu with its own layout, if none is given."""
    back = str(arguments[0]).startswith("reliq") and "--sep" not in arguments
    layout = LAYOUT if back else ()
    return commands.run(None, "migrate", *arguments, *layout, "--json")


def kombu(server, **options):
    """Return a connection of Kombu's own Redis transport."""
    return Connection(server.url("redis"), transport_options=options)


def moved(count, **others):
    """Return the output for a queue."""
    return {"moved": count, "delayed": 0, "dead": 0, "early": 0, **others}


def drained(connection, queue, count):
    """Take and ack *count* messages; return them."""
    with connection.SimpleQueue(queue) as simple:
        messages = [simple.get(timeout=10) for _ in range(count)]
        for message in messages:
            message.ack()
        with pytest.raises(simple.Empty):
            simple.get(block=False)
    return messages


# -- the parts of a message


@pytest.mark.parametrize("direction", ["to reliq", "to kombu"])
def test_a_message_is_what_it_was(client, redis_server, direction):
    """Bodies, headers and properties of all kinds survive both ways."""
    urls = [redis_server.url("redis"), redis_server.url("reliq")]
    if direction == "to kombu":
        urls.reverse()
    moment = datetime(2031, 2, 3, 4, 5, 6, 7, tzinfo=timezone.utc)
    headers = {"x": b"\xff\x00", "when": moment, "nested": {"list": [1, None, 2.5, "ä"]}}
    with Connection(urls[0]) as one, Connection(urls[1]) as two:
        producer = one.Producer()
        queue = Queue("q", Exchange("q"), "q")(one.default_channel)
        queue.declare()
        for body in ("text ä", {"a": [1, 2]}, b"\x00\xff" * 9):
            producer.publish(
                body,
                exchange="q",
                routing_key="q",
                headers=headers,
                priority=3,
                correlation_id="c",
                reply_to="r",
                compression="gzip",
            )
        assert {"q": moved(3)} == migrate(*urls)
        messages = drained(two, "q", 3)
    assert ["text ä", {"a": [1, 2]}, b"\x00\xff" * 9] == [m.payload for m in messages]
    for message in messages:
        assert headers == {name: message.headers[name] for name in headers}
        assert "redelivered" not in message.headers
        properties = message.properties
        assert (3, "c", "r") == (
            properties["priority"],
            properties["correlation_id"],
            properties["reply_to"],
        )
        assert ("q", "q") == (
            message.delivery_info["exchange"],
            message.delivery_info["routing_key"],
        )
    assert len({message.delivery_tag for message in messages}) == 3


def test_there_and_back_again(client, redis_server):
    """A message that went to reliq and back is unchanged, apart from its tag."""
    there, here = redis_server.url("redis"), redis_server.url("reliq")
    raw = redis_server.client()
    with kombu(redis_server) as connection:
        publish(connection, "q", "one", {"b": 2}, headers={"id": "x"})
    before = [json.loads(item) for item in raw.lrange("q", 0, -1)]
    assert {"q": moved(2)} == migrate(there, here, "q")
    assert 0 == raw.exists("q")
    assert {"q": moved(2)} == migrate(here, there, "q")
    after = [json.loads(item) for item in raw.lrange("q", 0, -1)]
    for item in (*before, *after):
        del item["properties"]["delivery_tag"]
    assert before == after


@pytest.mark.slow
def test_order_and_priorities(client, redis_server):
    """Priorities keep their order, and each keeps its order of publication, in both directions."""
    there, here = redis_server.url("redis"), redis_server.url("reliq")
    with kombu(redis_server) as connection:
        for number in range(20):
            publish(connection, "q", number, priority=(0, 9, 4, 3)[number % 4])
    strict = sorted(range(20), key=lambda n: ((0, 9, 4, 3)[n % 4], n))
    (plan,) = json.loads(run(there, here, "q", "--dry-run").stdout)
    assert {"0": 5, "3": 10, "6": 0, "9": 5} == plan["priorities"]
    assert {"q": moved(20)} == migrate(there, here, "q")
    assert {"q": moved(20)} == migrate(here, there, "q")
    assert {"q": moved(20)} == migrate(there, here, "q")
    assert strict == Taker(client.connect(), "q").take_bodies(20)


@pytest.mark.slow
def test_another_layout(client, redis_server):
    """A prefix, a separator and priority steps of the application work in both directions."""
    there, here = redis_server.url("redis"), redis_server.url("reliq")
    options = {"global_keyprefix": "sh*p:", "sep": ":", "priority_steps": [0, 5]}
    flags = ["--kombu-prefix", "sh*p:", "--sep", r"\x3a", "--priority-steps", "0,5"]
    raw = redis_server.client()
    raw.sadd("shop:_kombu.binding.q", "decoy:x:decoy")
    with kombu(redis_server, **options) as connection:
        queue = Queue("q", Exchange("q"), "q")(connection.default_channel)
        queue.declare()
        publish(connection, "q", 4, priority=4)
        publish(connection, "q", 5, priority=5)
        assert (1, 1) == (raw.llen("sh*p:q"), raw.llen("sh*p:q:5"))
        assert {"q": moved(2)} == migrate(there, here, *flags)
        assert {"q": moved(2)} == migrate(here, there, *flags)
        assert (1, 1) == (raw.llen("sh*p:q"), raw.llen("sh*p:q:5"))
        assert [4, 5] == [message.payload for message in drained(connection, "q", 2)]


SHOP = """
from celery import Celery

app = Celery("shop", broker="redis://localhost:1/0")
app.conf.broker_transport_options = {options}
"""
THEIRS = {"sep": ":", "priority_steps": list(range(10)), "global_keyprefix": "shop:"}
FLAGS = {
    "sep": ("--sep", ":"),
    "priority_steps": ("--priority-steps", "0,1,2,3,4,5,6,7,8,9"),
    "global_keyprefix": ("--kombu-prefix", "shop:"),
}


def ten_tasks(server, **options):
    """Publish a task of each priority to queue orders over Kombu's own transport."""
    with kombu(server, **options) as connection:
        Queue("orders", Exchange("shop"), "orders")(connection.default_channel).declare()
        for priority in range(10):
            publish(connection, "orders", priority, priority=priority)


def of_app(tmp_path, *arguments, options=THEIRS):
    """Run the command for an application with these options of its redis:// broker."""
    (tmp_path / "shop.py").write_text(SHOP.format(options=options))
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "shop", "reliq", "migrate", *arguments, "--json"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    return done.returncode, done.stdout and json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("missing", [*FLAGS, "queue"])
@pytest.mark.parametrize("named", [(), ("orders",)])
def test_lists_of_another_layout(client, redis_server, missing, named):
    """Messages in lists of another layout are named, with exit code 2, until all have moved."""
    there, here = redis_server.url("redis"), redis_server.url("reliq")
    options = {} if missing == "queue" else THEIRS
    ten_tasks(redis_server, **options)
    if named:  # the list of another queue
        with kombu(redis_server, **options) as connection:
            publish(connection, "orders-archive", 1)
    flags = [flag for name in options for flag in FLAGS[name]]
    less = [flag for name in options if name != missing for flag in FLAGS[name]]
    wrong, expected = named, "'shop:orders"
    if missing == "queue":
        wrong, expected = ("order",), "no queue 'order' at the source; did you mean 'orders'?"
    for dry in (("--dry-run",), ()):
        done = run(there, here, *wrong, *less, *dry)
        assert 2 == done.returncode
        assert expected in done.stderr
    if missing == "sep":
        remain = 9 if named else 10  # without the separator, no binding is readable
        assert f"{remain} waiting messages remain at the source" in done.stderr
        assert "'shop:orders:3' (1)" in done.stderr
    assert 10 >= migrate(there, here, *named, *flags)["orders"]["moved"] > 0
    assert set(range(10)) == set(Taker(client.connect(), "orders").take_bodies(10))


def test_a_source_without_queues(redis_server, redis_url):
    """A source without any queue, such as another database, is an error in both directions."""
    there, here = redis_server.url("redis"), redis_server.url("reliq")
    for source, target in ((there, here), (here, there)):
        for dry in (("--dry-run",), ()):
            done = run(source, target, *dry)
            assert 2 == done.returncode
            assert f"no queues at {source}: check the number of the database" in done.stderr


def test_back_without_a_layout(client, redis_server):
    """The way back needs the layout of the workers there, so that they find each message."""
    publish(client.connect(), "orders", 1)
    arguments = (client.url, redis_server.url("redis"), "orders")
    for flags in ((), ("--sep", ":"), ("--priority-steps", "0,5")):
        done = commands.run(None, "migrate", *arguments, *flags)
        assert 2 == done.returncode
        assert "--sep default --priority-steps default), or use: celery -A proj" in done.stderr
    assert 1 == client.status("orders").ready


def test_the_layout_of_an_application(client, redis_server, tmp_path):
    """The application's own options are the layout, in both directions."""
    there, here = redis_server.url("redis"), redis_server.url("reliq")
    ten_tasks(redis_server, **THEIRS)
    before = {key for key in client.raw.keys("shop:*") if b"_kombu" not in key}
    assert 10 == len(before)
    ours = ("--prefix", "shop:")
    assert (0, [{"queue": "orders", **moved(10)}], "") == of_app(tmp_path, there, here, *ours)
    assert set() == before & set(client.raw.keys())
    assert (0, [{"queue": "orders", **moved(10)}], "") == of_app(tmp_path, here, there, *ours)
    assert before == before & set(client.raw.keys())
    members = client.raw.smembers("shop:_kombu.binding.shop")
    assert {b"orders::orders"} == members


@pytest.mark.slow
def test_what_nobody_can_read(client, redis_server):
    """Foreign bytes become a dead letter that shows them; the rest of the list moves."""
    there, here = redis_server.url("redis"), redis_server.url("reliq")
    raw = redis_server.client()
    with kombu(redis_server) as connection:
        publish(connection, "q", 1)
        raw.lpush("q", b"\xff not json", b"[1, 2]", b'{"body": 1, "properties": {}}')
        publish(connection, "q", 2)
    assert {"q": moved(5, dead=3)} == migrate(there, here, "q")
    dead_letters = client.dead_letters("q")
    with client.inspector() as inspector:
        first = inspector.dead_letter("q", dead_letters[0].tag)
    assert ["undecodable"] * 3 == [dead_letter.reason for dead_letter in dead_letters]
    assert b"\xff not json" == first.message.body
    assert [1, 2] == Taker(client.connect(), "q").take_bodies(2)
    assert {"q": moved(0)} == migrate(here, there, "q")  # dead letters stay
    assert 3 == client.status("q").dead


def test_an_envelope_that_cannot_be_read_does_not_stop_the_way_back(client, redis_server):
    """An unreadable envelope becomes a dead letter in its queue, and its neighbours move."""
    connection = client.connect()
    publish(connection, "q", 1, 2)
    tag, _ = client.raw.zrange("reliq:{q}:ready", 0, -1)
    client.raw.hset("reliq:{q}:messages", tag, b"\x01")
    assert {"q": moved(1)} == migrate(client.url, redis_server.url("redis"), "q")
    assert ["undecodable"] == [dead_letter.reason for dead_letter in client.dead_letters("q")]
    with kombu(redis_server) as theirs:
        assert [2] == [message.payload for message in drained(theirs, "q", 1)]


# -- delays


@pytest.mark.slow
def test_an_eta_becomes_a_delay_and_an_eta_again(client, redis_server):
    """A task with an eta is delayed in reliq, and has its original eta again in the list."""
    there, here = redis_server.url("redis"), redis_server.url("reliq")
    raw = redis_server.client()
    etas = [
        (datetime.now(timezone.utc) + timedelta(seconds=s)).isoformat() for s in (3600, -5, 7200)
    ]
    with kombu(redis_server) as connection:
        for eta in etas:
            publish(connection, "q", eta, headers={"task": "t", "eta": eta})
    (plan,) = json.loads(run(there, here, "q", "--dry-run").stdout)
    assert (1, 2) == (plan["ready"], plan["delayed"])
    assert {"q": moved(3, delayed=2)} == migrate(there, here, "q")
    status = client.status("q")
    assert (1, 2) == (status.ready, status.delayed)
    assert {"q": moved(3, delayed=2)} == migrate(here, there, "q")
    found = [json.loads(item)["headers"] for item in raw.lrange("q", 0, -1)]
    assert set(etas) == {headers["eta"] for headers in found}
    assert [set()] * 3 == [{"x-eta"} & set(headers) for headers in found]


def test_other_delays_on_the_way_to_kombu(client, redis_server):
    """A task delayed by x-delay gets an eta; another message arrives early and is counted so."""
    connection = client.connect()
    headers = {"x-delay": 3_600_000}
    publish(connection, "q", "plain", headers=headers)
    publish(connection, "q", "task", headers={**headers, "task": "t"})
    before = datetime.now(timezone.utc)
    there = redis_server.url("redis")
    assert {"q": moved(2, delayed=1, early=1)} == migrate(client.url, there, "q")
    with kombu(redis_server) as theirs:
        found = {message.payload: message.headers for message in drained(theirs, "q", 2)}
    assert "eta" not in found["plain"]
    waits = datetime.fromisoformat(found["task"]["eta"]) - before
    assert timedelta(minutes=59) < waits < timedelta(minutes=61)


def test_a_delay_that_is_kombus_business_only(client, redis_server):
    """A message with x-delay is ready after the move, because x-delay means nothing to Kombu."""
    with kombu(redis_server) as connection:
        publish(connection, "q", 1, headers={"x-delay": 3_600_000})
    assert {"q": moved(1)} == migrate(redis_server.url("redis"), client.url, "q")
    assert 1 == client.status("q").ready


# -- queues and their bindings


def test_queues_and_their_bindings(client, redis_server):
    """Durable queues are moved with bindings that route at once, but not reply or event queues."""
    there, here = redis_server.url("redis"), redis_server.url("reliq")
    topic = Exchange("events", "topic")
    with kombu(redis_server) as connection:
        channel = connection.default_channel
        for name, exchange, key in (
            ("one", Exchange("shop"), "first"),
            ("two", topic, "order.*"),
            ("replies", Exchange("reply.celery.pidbox"), "x"),
            ("events", Exchange("celeryev", "topic"), "#"),
        ):
            Queue(name, exchange, key)(channel).declare()
        Queue("passing", Exchange("shop"), "p", expires=60)(channel).declare()
        publish(connection, "one", 1)
        publish(connection, "loose", 1)  # no exchange routes to it
    done = run(there, here)
    found = {item.pop("queue"): item for item in json.loads(done.stdout)}
    assert (2, {"one": moved(1), "two": moved(0)}) == (done.returncode, found)
    assert "in lists of no known queue: 'loose' (1)." in done.stderr
    with Inspector(here) as inspector:
        assert ["one", "two"] == inspector.queues()
        tables = {name: inspector._store.exchange_table(name) for name in ("shop", "events")}
    assert [["first", "one"]] == [unpack(item) for item in tables["shop"].bindings]
    assert [["order.*", "two"]] == [unpack(item) for item in tables["events"].bindings]
    connection = client.connect()
    producer = connection.Producer()
    producer.publish(2, exchange="shop", routing_key="first")  # this publisher declares nothing
    assert [1, 2] == Taker(connection, "one").take_bodies(2)
    # The application can declare its own arguments, as if the queue were new.
    Queue("two", topic, "order.*", max_length=50)(connection.default_channel).declare()
    producer.publish(3, exchange="events", routing_key="order.paid")
    assert 1 == client.status("two").ready


def test_bindings_on_the_way_to_kombu(client, redis_server):
    """A Kombu publisher reaches the queue through its exchanges before anyone declares them."""
    connection = client.connect()
    Queue("one", Exchange("shop"), "first")(connection.default_channel).declare()
    Queue("one", Exchange("events", "topic"), "order.#")(connection.default_channel).declare()
    assert {"one": moved(0)} == migrate(client.url, redis_server.url("redis"))
    with kombu(redis_server) as theirs:
        channel = theirs.default_channel
        channel.exchange_declare("events", "topic")
        theirs.Producer().publish(1, exchange="shop", routing_key="first")
        theirs.Producer().publish(2, exchange="events", routing_key="order.paid.now")
        assert [1, 2] == [message.payload for message in drained(theirs, "one", 2)]


def test_the_plan_changes_nothing(client, redis_server):
    """--dry-run counts, and changes neither side."""
    there, here = redis_server.url("redis"), redis_server.url("reliq")
    raw = redis_server.client()
    with kombu(redis_server) as connection:
        Queue("q", Exchange("q"), "q")(connection.default_channel).declare()
        publish(connection, "q", 1, 2)
        message = connection.default_channel.basic_get("q")
        assert message is not None
        kept = raw.lrange("q", 0, -1)
        (plan,) = json.loads(run(there, here, "--dry-run").stdout)
        assert kept == raw.lrange("q", 0, -1)
        priorities = {"0": 1, "3": 0, "6": 0, "9": 0}
        assert {
            "queue": "q",
            "ready": 1,
            "delayed": 0,
            "unacked": 1,
            "dead": 0,
            "half_way": 0,
            "elsewhere": 0,
            "priorities": priorities,
        } == plan
        message.ack()
    with Inspector(here) as inspector:
        assert [] == inspector.queues()
    with Migration(here, there) as back:
        assert [] == back.queues()
    publish(client.connect(), "mine", 1)
    with Migration(here, there) as back:
        assert Plan("mine", 1, 0, 0, 0) == back.plan("mine")


# -- messages of old workers


@pytest.mark.slow
def test_what_old_consumers_hold(client, redis_server):
    """Fresh unacked messages stay; older ones move as redelivered, through their exchange."""
    there, here = redis_server.url("redis"), redis_server.url("reliq")
    raw = redis_server.client()
    with kombu(redis_server) as connection:
        queue = Queue("q", Exchange("shop"), "key")(connection.default_channel)
        queue.declare()
        connection.Producer().publish("by exchange", exchange="shop", routing_key="key")
        publish(connection, "q", "anonymous")
        publish(connection, "elsewhere", "not asked for")
        for name in ("q", "q", "elsewhere"):
            assert queue.channel.basic_get(name) is not None
        told = run(there, here)
        assert "q: workers of the other side hold 2; they return when the" in told.stderr
        assert {"q": moved(0)} == migrate(there, here, "--unacked-older", 60)
        assert {"q": moved(2)} == migrate(there, here, "--unacked-older", 0)
        assert (1, 1) == (raw.hlen("unacked"), raw.zcard("unacked_index"))
        raw.delete("unacked", "unacked_index")  # else Kombu would restore them to their list now
    messages = Taker(client.connect(), "q").take(2)
    assert {"by exchange", "anonymous"} == {message.payload for message in messages}
    assert [True, True] == [message.delivery_info["redelivered"] for message in messages]


@pytest.mark.slow
def test_many_that_old_consumers_hold(client, redis_server):
    """More unacked messages than one step takes are each moved once, despite an interruption."""
    flags = ("q", "--unacked-older", 0)
    with kombu(redis_server) as connection:
        publish(connection, "q", *range(250))
        channel = connection.default_channel
        held = [channel.basic_get("q") for _ in range(250)]
        with Migration(redis_server.url("redis"), client.url) as migration:
            steps = [next(migration.run_unacked(0, ["q"])) for _ in range(2)]
            assert [("q", 100)] * 2 == [(queue, step.moved) for queue, step in steps]
            assert 50 == redis_server.client().hlen("unacked")
        assert {"q": moved(50)} == migrate(redis_server.url("redis"), client.url, *flags)
        assert 0 == redis_server.client().hlen("unacked")
        del held
    assert list(range(250)) == sorted(Taker(client.connect(), "q").take_bodies(250))


@pytest.mark.slow
def test_one_message_for_two_queues(client, redis_server):
    """A message for two queues goes to both, as in Kombu, and only if both are migrated."""
    with kombu(redis_server) as connection:
        channel = connection.default_channel
        for name in ("one", "two"):
            Queue(name, Exchange("shop"), "key")(channel).declare()
        connection.Producer().publish("both", exchange="shop", routing_key="key")
        # Kombu gives both copies the same tag, so it knows only one of them while both are held.
        assert None not in [channel.basic_get(name) for name in ("one", "two")]
        there = redis_server.url("redis")
        assert {"one": moved(0)} == migrate(there, client.url, "one", "--unacked-older", 0)
        found = migrate(there, client.url, "--unacked-older", 0)
    assert {"one": moved(1), "two": moved(1)} == found


def test_unacked_messages_are_looked_at_twice(client, redis_server):
    """A message that was acked or delivered again after the query is not taken."""
    raw = redis_server.client()
    with kombu(redis_server) as connection:
        publish(connection, "q", 1, 2, 3)
        channel = connection.default_channel
        done, fresh, old = (channel.basic_get("q") for _ in range(3))
        long_ago = time.time() - 100
        raw.zadd("unacked_index", {m.delivery_tag: long_ago for m in (done, fresh, old)})
        with Migration(redis_server.url("redis"), client.url) as migration:
            listed = [(tag, ["q"]) for tag, _ in migration._kombu.unacked(60)]
            done.ack()
            raw.zadd("unacked_index", {fresh.delivery_tag: time.time()})
            assert 3 == len(listed)
            assert 1 == migration._kombu.take_unacked(migration._target, 60, listed)
            assert 0 == migration._kombu.take_unacked(migration._target, 60, listed)
            assert [1] == [step.moved for step in migration.run("q")]
        fresh.ack()
    assert [3] == Taker(client.connect(), "q").take_bodies(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "odd",
    [
        b'[{"__type__":"decimal","__value__":"abc"},"e","r"]',
        b'[{},"",["r"]]',
        b'[{},"e",5]',
        b"[]",
    ],
)
def test_an_unacked_element_that_is_none_of_kombus(client, redis_server, odd):
    """A foreign element stays in its place and stops no other one."""
    raw = redis_server.client()
    with kombu(redis_server) as connection:
        publish(connection, "q", "fine")
        held = connection.default_channel.basic_get("q")
        raw.hset("unacked", "odd", odd)
        raw.zadd("unacked_index", {"odd": 1})
        there = redis_server.url("redis")
        with Migration(there, client.url) as migration:
            assert 1 == migration.plan("q").unacked
        assert {"q": moved(1)} == migrate(there, client.url, "q", "--unacked-older", 0)
        assert [b"odd"] == raw.hkeys("unacked")
        del held


def test_all_keys_are_looked_at_once_for_all_queues(client, redis_server):
    """One scan of the keys serves all queues, because a server may have millions of keys."""
    raw = redis_server.client()
    with kombu(redis_server) as connection:
        for name in ("one", "two", "three"):
            Queue(name, Exchange("shop"), name)(connection.default_channel).declare()
        with Migration(redis_server.url("redis"), client.url) as migration:
            raw.config_resetstat()
            for queue in migration.queues():
                migration.plan(queue)
                list(migration.run(queue))
        assert 1 == raw.info("commandstats")["cmdstat_scan"]["calls"]


# -- interruptions


@pytest.mark.slow
@pytest.mark.parametrize(
    ("places", "direction"),
    [
        ("two servers", "to reliq"),
        ("a cluster", "to kombu"),
        pytest.param("two servers", "to kombu", marks=pytest.mark.long),
        pytest.param("a cluster", "to reliq", marks=pytest.mark.long),
        pytest.param("one server", "to reliq", marks=pytest.mark.long),
        pytest.param("one server", "to kombu", marks=pytest.mark.long),
    ],
    indirect=["places"],
)
def test_killed_again_and_again(places, client, tmp_path, direction):
    """Each message arrives once, however often the migration is killed and continued."""
    theirs, ours = places
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    urls = [theirs.url("redis"), ours.url("reliq")]
    if direction == "to kombu":
        urls.reverse()
    with Connection(urls[0]) as source:
        publish(source, "q", *range(MESSAGES), priority=5)
        publish(source, "q", *range(MESSAGES, MESSAGES + 200), priority=1)
    raw = (theirs if direction == "to reliq" else node_of(ours, "q")).client()

    def left():
        if direction == "to reliq":
            return raw.llen("q") + raw.llen("q\x06\x163")
        return raw.zcard("reliq:{q}:ready")

    for number in range(KILLS):
        goal = left() - chance.randint(1, MESSAGES // (2 * KILLS))
        process = Process(command(*urls, "q"), log_path=tmp_path / f"{number}.log")
        try:
            wait_until(
                lambda goal=goal: left() <= goal,
                interval_s=chance.uniform(0.0005, 0.003),
                timeout_s=30,
                what=process.tail,
            )
        finally:
            process.kill_group()
    assert 0 < left() < MESSAGES
    migrate(*urls, "q")
    assert 0 == left()
    with Connection(urls[1]) as target:
        messages = drained(target, "q", MESSAGES + 200)
    assert list(range(MESSAGES + 200)) == sorted(message.payload for message in messages)
    assert 0 == theirs.client().hlen("reliq:{%}:kombu_held")


@pytest.mark.slow
def test_cut_off_between_any_two_steps(client, redis_server):
    """After an interruption behind any step nothing is lost, and nothing is stored twice."""
    there = redis_server.url("redis")
    for cut in ("take", "accept", "drop"):
        with kombu(redis_server) as connection:
            publish(connection, "q", cut)
        with Migration(there, client.url) as migration:
            part = migration._store if cut == "accept" else migration._kombu
            whole = getattr(part, cut)

            def once(*arguments, whole=whole):
                whole(*arguments)
                raise KeyboardInterrupt

            setattr(part, cut, once)
            with pytest.raises(KeyboardInterrupt):
                list(migration.run("q"))
            half_way = migration.plan("q").half_way
        assert half_way == (0 if cut == "drop" else 1)
        migrate(there, client.url, "q")
    assert ["take", "accept", "drop"] == Taker(client.connect(), "q").take_bodies(3)


@pytest.mark.slow
def test_half_way_to_another_broker(client, redis_server, other):
    """A message half-way to one target is reported for another, which may take it after a day."""
    there = redis_server.url("redis")
    with kombu(redis_server) as connection:
        publish(connection, "q", 1)
    with Migration(there, other.url("reliq")) as migration:
        migration._kombu.take("q", migration._target, 0)
    (plan,) = json.loads(run(there, client.url, "q", "--dry-run").stdout)
    assert (0, 1) == (plan["half_way"], plan["elsewhere"])
    assert {"q": moved(0)} == migrate(there, client.url, "q")
    raw = redis_server.client()
    ((number, entry),) = raw.hgetall("reliq:{%}:kombu_held").items()
    raw.hset("reliq:{%}:kombu_held", str(int(number) - 90_000_000_000), entry)
    raw.hdel("reliq:{%}:kombu_held", number)
    assert {"q": moved(1)} == migrate(there, client.url, "q")


@pytest.mark.slow
def test_two_at_once(client, redis_server, tmp_path):
    """Two concurrent migrations of a queue to the same target do not disturb each other."""
    there = redis_server.url("redis")
    with kombu(redis_server) as connection:
        publish(connection, "q", *range(2000))
    processes = [
        Process(command(there, client.url, "q"), log_path=tmp_path / f"{number}.log")
        for number in range(2)
    ]
    for process in processes:
        assert 0 == process.wait(60), process.tail()
        process.kill_group()
    assert list(range(2000)) == sorted(Taker(client.connect(), "q").take_bodies(2000))


# -- refusals


@pytest.mark.slow
def test_wrong_urls_and_options(client, redis_server):
    """Two URLs of one kind, an unknown option and invalid steps are each refused by name."""
    there = redis_server.url("redis")
    for urls in ((there, there), (client.url, client.url)):
        done = run(*urls)
        assert (2, True) == (done.returncode, "a URL of Kombu's" in done.stderr), done.stderr
    assert "no queue 'nothing'" in run(client.url, there, "nothing").stderr
    assert "--unacked-older" in run(there, client.url, "--dry-run", "--unacked-older", 1).stderr
    assert "priority_steps" in run(there, client.url, "--priority-steps", "3,0").stderr
    for options in ({"priorty_steps": [0]}, {"sep": ""}, {"unacked_key": 3}):
        with pytest.raises(ConfigurationError, match=r"priority_steps|sep|unacked_key"):
            Migration(there, client.url, kombu_options=options)
    with (
        Migration(client.url, there) as migration,
        pytest.raises(ConfigurationError, match="return automatically"),
    ):
        list(migration.run_unacked(0))


def test_options_that_say_nothing_of_the_place(client, redis_server):
    """The application's own transport options are accepted, including those without effect."""
    options = {"visibility_timeout": 9000, "fanout_prefix": True, "socket_timeout": 3}
    with Migration(redis_server.url("redis"), client.url, kombu_options=options) as migration:
        assert [] == migration.queues()


# -- Celery


SERIALIZERS = ("json", "pickle", "yaml", "msgpack")
ACCEPT = {"accept_content": list(SERIALIZERS), "task_default_queue": "celery"}


def sent(site, count_of_each=1):
    """Publish tasks in every serializer, compressed, delayed and prioritized; return them."""
    tasks = []
    for serializer in SERIALIZERS:
        for compression in (None, "gzip", "bzip2"):
            for number in range(count_of_each):
                options = {"serializer": serializer, "compression": compression}
                tasks.append(site.send("add", "ä", f"{serializer}{number}", **options))
        tasks.append(site.send("add", "ä", "late", serializer=serializer, countdown=3))
        tasks.append(site.send("add", "ä", "urgent", serializer=serializer, priority=1))
    return tasks


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["to reliq", "to kombu"])
def test_published_by_celery_here_and_run_by_celery_there(
    client, redis_server, tmp_path, direction
):
    """Tasks of all serializers, compressions, priorities and countdowns each run once."""
    from tests.support.site import CelerySite

    schemes = ("redis", "reliq") if direction == "to reliq" else ("reliq", "redis")
    config = {**ACCEPT, "broker_transport_options": {}}
    one = CelerySite(redis_server, schemes[0], tmp_path, config)
    two = CelerySite(redis_server, schemes[1], tmp_path, config)
    try:
        tasks = sent(one)
        one.send("add", 1, 2, countdown=3600)
        found = migrate(one.broker, two.broker)["celery"]
        # The four delayed tasks may be due by now.
        assert moved(len(tasks) + 1, delayed=found["delayed"]) == found
        assert 1 <= found["delayed"] <= 5
        # Celery refuses pickle for root, and a container may run the tests as root.
        two.worker(queues=["celery"], env={"C_FORCE_ROOT": "1"})
        results = Counter(task.get(timeout=40) for task in tasks)
        assert 3 * len(SERIALIZERS) + 8 == sum(results.values())
        assert (4, 4) == (results["älate"], results["äurgent"])
        if direction == "to reliq":
            two.settled(delayed=1)
    finally:
        two.close()
        one.close()


@pytest.mark.slow
def test_while_old_workers_run(client, redis_server, tmp_path):
    """Every task runs once with old workers, new workers and a following migration at once."""
    from tests.support.site import CelerySite

    config = {"broker_transport_options": {}, "worker_prefetch_multiplier": 1}
    old = CelerySite(redis_server, "redis", tmp_path, config)
    new = CelerySite(redis_server, "reliq", tmp_path, config)
    follower = None
    try:
        tasks = [old.send("record", 0.01).id for _ in range(60)]
        old.worker(name="old", queues=["celery"])
        follower = Process(
            command(old.broker, new.broker, "celery", "--follow", "--json"),
            log_path=tmp_path / "follow.log",
        )
        new.worker(name="new", queues=["celery"])
        deadline = time.monotonic() + 5
        # More tasks than the old worker can run, until some were moved.
        while time.monotonic() < deadline or not new.journal.finished():
            tasks += [old.send("record", 0.02).id for _ in range(10)]
            time.sleep(0.1)
        wait_until(lambda: set(tasks) <= set(new.journal.finished()), timeout_s=40)
        follower.signal(2)
        assert 0 == follower.wait(10), follower.tail()
        followed = json.loads(follower.log()[follower.log().index("[") :])
        assert followed[0]["moved"] > 0
        assert dict.fromkeys(tasks, 1) == dict(new.journal.finished())
    finally:
        if follower is not None:
            follower.kill_group()
        new.close()
        old.close()


@pytest.mark.slow
def test_a_killed_old_worker(client, redis_server, tmp_path):
    """The tasks of a killed old worker are moved and run, including one with an eta."""
    from tests.support.site import CelerySite

    config = {"broker_transport_options": {}, "task_acks_late": True}
    old = CelerySite(redis_server, "redis", tmp_path, config)
    new = CelerySite(redis_server, "reliq", tmp_path, config)
    try:
        running, late = old.send("long_first", 60), old.send("add", 1, 2, countdown=6)
        worker = old.worker(name="old", queues=["celery"])
        new.journal.wait_started(running.id)
        wait_until(lambda: redis_server.client().hlen("unacked") == 2)
        worker.kill_group()
        flags = ("--unacked-older", 0)
        assert 2 == migrate(old.broker, new.broker, "celery", *flags)["celery"]["moved"]
        new.worker(name="new", queues=["celery"])
        assert 3 == late.get(timeout=40)
        new.journal.wait_finished(running.id)
        assert 2 == new.journal.runs(running.id)
    finally:
        new.close()
        old.close()
