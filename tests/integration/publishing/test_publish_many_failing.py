"""publish_many with failures: the stored and the unsent tasks, and how to continue."""

from __future__ import annotations

import subprocess
import sys
import threading
from ast import literal_eval
from contextlib import ExitStack, contextmanager

import pytest
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded
from kombu import Connection, Queue

import reliq
from reliq.admin import Inspector
from reliq.errors import BrokerUnavailable, MessageRefused, PartlyPublished, QueueFull
from reliq.spool.journal import JOURNALS
from reliq.transports.publish.chunk import Chunk
from tests.support.audits import assert_balanced
from tests.support.proxy import Proxy
from tests.support.site import close_app
from tests.support.waiting import wait_until

POLICY = {"max_retries": 5, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.2}
FAST = {"socket_timeout": 1, "socket_connect_timeout": 1, "probe_interval": 0.5}


@pytest.fixture
def make_app():
    """Return a function that makes an application with a task; all are closed at the end."""
    with ExitStack() as stack:

        def make(broker, options=None, **conf):
            app = Celery("many", broker=broker, set_as_current=False)
            app.conf.update(
                result_backend=None,
                broker_transport_options={**FAST, **(options or {})},
                task_publish_retry_policy=POLICY,
                **{"broker_failover_strategy": "primary", **conf},
            )

            @app.task(name="many.one", shared=False)
            def one(value):
                """Take one argument."""
                return value

            stack.callback(close_app, app)
            return app.tasks["many.one"]

        yield make


@pytest.fixture
def one(make_app, redis_url):
    """Return the task of an application on the shared server, which is audited."""
    yield make_app(redis_url)
    assert_balanced(redis_url)


def published(url, queue="celery"):
    """Return the number of messages in the ledger of *queue* at *url*."""
    with Inspector(url) as inspector:
        if queue not in inspector.queues():
            return 0
        return inspector.status(queue).ledger.get("published", 0)


def args_of(url, queue="celery"):
    """Return the arguments of the ready messages at *url*, in order."""
    with Inspector(url) as inspector:
        if queue not in inspector.queues():
            return []
        waiting = inspector.peek(queue, limit=10_000)
    return [literal_eval(message.args)[0] for message in waiting]


def waiting_at(url, queue="celery"):
    """Return the ready messages at *url* in order, and leave them there."""
    with Connection(url) as connection:
        return list(iter(Queue(queue)(connection.default_channel).get, None))


@contextmanager
def stopping(*kinds):
    """Expect PartlyPublished caused by one of *kinds*; yield a list that finally has the error."""
    caught: list[PartlyPublished] = []
    with pytest.raises(PartlyPublished) as info:
        yield caught
    caught.append(info.value)
    assert isinstance(info.value.__cause__, kinds)


def assert_told(error, sent, unsent, uncertain=0):
    """Fail unless the error states these counts."""
    assert (sent, unsent, uncertain) == (error.sent, error.unsent, len(error.uncertain))
    for word in ("'many.one'", f"{sent} stored", type(error.__cause__).__name__):
        assert word in str(error)


# -- faults of the call


def test_wrong_arguments(one, redis_url):
    """A call with wrong arguments stops the publish; the earlier calls are stored."""
    ids = []
    items = [(1,), (2,), (3, 4), (5,)]
    with stopping(TypeError) as caught:
        reliq.publish_many(one, items, star=True, on_sent=ids.extend)
    assert_told(caught[0], 2, [(3, 4), (5,)])
    assert [1, 2] == args_of(redis_url)
    assert 2 == len(set(ids))


def test_what_cannot_be_serialized(one, redis_url):
    """An item that cannot be serialized stops the publish, even as the first one."""
    wrong = object()
    with stopping(Exception) as caught:
        reliq.publish_many(one, [wrong, 1])
    assert_told(caught[0], 0, [wrong, 1])
    with stopping(Exception) as caught:
        reliq.publish_many(one, (value for value in [1, 2, wrong, 3]))
    assert_told(caught[0], 2, [wrong, 3])
    assert [1, 2] == args_of(redis_url)


def test_a_soft_time_limit_that_strikes_in_the_serializer(one, redis_url):
    """A soft time limit in the serializer is raised as itself, not as Kombu's EncodeError."""

    class Late:
        def __json__(self):
            raise SoftTimeLimitExceeded

    with pytest.raises(SoftTimeLimitExceeded):
        reliq.publish_many(one, [1, Late(), 2])
    assert [1] == args_of(redis_url)


def test_a_message_that_is_too_large(make_app, redis_url):
    """A message that is too large is refused and stops the publish."""
    one = make_app(redis_url, {"max_message_bytes": 5000})
    with stopping(MessageRefused) as caught:
        reliq.publish_many(one, [1, "x" * 5000, 2])
    assert_told(caught[0], 1, ["x" * 5000, 2])
    assert [1] == args_of(redis_url)


def test_an_iterable_that_raises(one, redis_url):
    """The items before the error of an iterable are stored."""

    def rows():
        yield from range(700)
        raise LookupError("no more rows")

    with stopping(LookupError) as caught:
        reliq.publish_many(one, rows())
    assert_told(caught[0], 700, [])
    assert list(range(700)) == args_of(redis_url)


def test_a_soft_time_limit(one, redis_url):
    """A soft time limit is raised as itself; the earlier items are stored and reported."""
    ids = []

    def rows():
        yield from range(3)
        raise SoftTimeLimitExceeded

    with pytest.raises(SoftTimeLimitExceeded):
        reliq.publish_many(one, rows(), on_sent=ids.extend)
    assert [0, 1, 2] == args_of(redis_url)
    assert 3 == len(ids)


@pytest.mark.parametrize("which", ["on_sent", "before_send"])
def test_a_callback_that_raises(one, redis_url, which):
    """An error of a callback stops the publish, and PartlyPublished states what is stored."""

    def fail(*_):
        raise LookupError

    with stopping(LookupError) as caught:
        reliq.publish_many(one, range(600), **{which: fail})
    stored = 500 if which == "on_sent" else 0
    assert_told(caught[0], stored, [] if stored else list(range(500)))
    assert stored == published(redis_url)


def test_a_full_queue(make_app, redis_url):
    """The messages that a full queue rejects are unsent; the earlier ones are stored."""
    queue = Queue("celery", queue_arguments={"x-max-length": 3, "x-overflow": "reject-publish"})
    one = make_app(redis_url, task_queues=[queue])
    ids = []
    with stopping(QueueFull) as caught:
        reliq.publish_many(one, range(6), on_sent=ids.extend)
    assert_told(caught[0], 3, [3, 4, 5])
    assert [0, 1, 2] == args_of(redis_url)
    assert 3 == len(ids)


@pytest.mark.parametrize(
    ("task", "options"),
    [
        (print, {}),
        ("by.name", {}),
        (None, {"task_id": "x"}),
        (None, {"args": (1,)}),
    ],
)
def test_wrong_use(one, task, options):
    """A wrong argument is refused before an item is taken."""
    items = iter([1])
    with pytest.raises(reliq.ConfigurationError, match="expected"):
        reliq.publish_many(task or one, items, **options)
    assert [1] == list(items)


def test_an_item_that_is_no_call(one):
    """With star an item has to be a tuple, a list or a mapping."""
    with stopping(TypeError) as caught:
        reliq.publish_many(one, ["ab"], star=True)
    assert_told(caught[0], 0, ["ab"])


# -- the broker is unreachable


def test_a_reply_that_is_lost(make_app, fresh_redis):
    """Each message is stored once, at whichever flush the connection is cut."""
    with ExitStack() as stack:
        proxy = Proxy(fresh_redis)
        stack.callback(proxy.close)
        one = make_app(proxy.url())
        reliq.publish_many(one, range(500))

        def rows():
            for number in range(500, 2500):
                if number % 500 == 0:
                    (proxy.cut_replies if number % 1000 else proxy.cut_requests)(
                        20_000 if number == 2000 else 1
                    )
                yield number

        ids = []
        assert 2000 == reliq.publish_many(one, rows(), on_sent=ids.extend)
        proxy.disarm()
        assert proxy.cuts >= 3
        assert 2000 == len(set(ids))
    url = fresh_redis.url("reliq")
    assert 2500 == published(url)
    assert list(range(2500)) == sorted(args_of(url))
    assert_balanced(url)


@pytest.mark.slow
def test_a_broker_that_stays_away(make_app, fresh_redis):
    """After the retries the error has the uncertain messages, which its batch stores once each."""
    url = fresh_redis.url("reliq")
    one = make_app(url)
    ids = []

    def rows():
        yield from range(500)
        fresh_redis.freeze()
        yield from range(500, 1200)

    policy = {"max_retries": 1, "interval_start": 0, "interval_max": 0}
    with stopping(Exception) as caught:
        reliq.publish_many(one, rows(), on_sent=ids.extend, retry_policy=policy)
    fresh_redis.thaw()
    error = caught[0]
    assert_told(error, 500, [], 500)
    assert 500 == len(ids)
    for _ in range(2):
        error.batch.flush()
    assert list(range(1000)) == args_of(url)
    assert 1000 == published(url)
    assert_balanced(url)


def test_without_retries(make_app, fresh_redis):
    """With retry=False the first failure is raised, and no message is forgotten."""
    url = fresh_redis.url("reliq")
    one = make_app(url)
    reliq.publish_many(one, [0])
    fresh_redis.freeze()
    with stopping(BrokerUnavailable) as caught:
        reliq.publish_many(one, [1, 2], retry=False)
    fresh_redis.thaw()
    assert_told(caught[0], 0, [], 2)
    caught[0].batch.flush()
    assert [0, 1, 2] == args_of(url)
    assert_balanced(url)


def test_a_broker_that_was_never_there(make_app, redis_factory):
    """All taken items are unsent if the broker was never reachable."""
    server = redis_factory()
    one = make_app(server.url("reliq"))
    server.kill()
    policy = {"max_retries": 1, "interval_start": 0, "interval_max": 0}
    with stopping(Exception) as caught:
        reliq.publish_many(one, [1, 2], retry_policy=policy)
    assert_told(caught[0], 0, [1, 2])


@pytest.mark.slow
@pytest.mark.parametrize("second", ["reliq", "spool", "redis"])
def test_the_next_broker_of_the_list(make_app, redis_factory, tmp_path, second):
    """If the first broker dies, the rest goes to the second one of any kind, each task once."""
    first = redis_factory(appendonly=True)
    urls = {"spool": f"reliq-spool:///{tmp_path}/spool.db"}
    if second != "spool":
        other = redis_factory()
        urls = {name: other.url(name) for name in ("reliq", "redis")}
    strategy = "round-robin" if second == "redis" else "primary"
    limits = {"x-max-length": 5000}
    one = make_app(
        f"{first.url('reliq')};{urls[second]}",
        broker_failover_strategy=strategy,
        task_queues=[Queue("celery", queue_arguments=limits)],
    )

    def rows():
        yield from range(700)
        first.kill()
        yield from range(700, 1000)
        if second == "reliq":  # declared there before the first message
            with Inspector(urls[second]) as inspector:
                assert limits == inspector.status("celery").arguments
        yield from range(1000, 1600)

    assert 1600 == reliq.publish_many(one, rows())
    home = first.url("reliq")
    if second == "redis":
        with Connection(urls["redis"]) as connection:
            assert 1100 == connection.default_channel.client.llen("celery")
        first.start()
        assert list(range(500)) == args_of(home)
        return
    if second == "spool":
        assert 1100 == JOURNALS.at(urls["spool"]).status()["publishes"]
        first.start()
        wait_until(lambda: 0 == JOURNALS.at(urls["spool"]).status()["publishes"], timeout_s=20)
        assert list(range(1600)) == args_of(home)
        with Inspector(home) as inspector:
            assert limits == inspector.status("celery").arguments
        assert_balanced(home)
        return
    assert 1100 == published(urls[second])
    first.start()
    wait_until(lambda: reliq.publish_many(one, [-1]) and -1 in args_of(home))
    assert list(range(500, 1600)) == [value for value in args_of(urls[second]) if value >= 0]
    for url in (home, urls[second]):
        assert_balanced(url)


# -- other brokers and modes


def test_over_kombus_redis(make_app, fresh_redis):
    """With Kombu's own Redis transport each call is published separately."""
    one = make_app(fresh_redis.url("redis"), {"probe_interval": None})
    ids, told = [], []
    sent = reliq.publish_many(
        one, range(3), on_sent=ids.extend, before_send=lambda name, *_: told.append(name)
    )
    assert (3, 3, ["many.one"] * 3) == (sent, len(set(ids)), told)
    with Connection(fresh_redis.url("redis")) as connection, connection.SimpleQueue("celery") as q:
        found = [q.get(timeout=5) for _ in range(3)]
    assert ids == [message.headers["id"] for message in found]
    with stopping(TypeError) as caught:
        reliq.publish_many(one, [(1,), (2, 3), (4,)], star=True)
    assert_told(caught[0], 1, [(2, 3), (4,)])


def test_eagerly(make_app):
    """With task_always_eager the calls run in this process without a broker."""
    ran = []
    one = make_app("reliq://127.0.0.1:1/0", task_always_eager=True)
    one.run = ran.append
    assert 3 == reliq.publish_many(one, "abc")
    assert ["a", "b", "c"] == ran


def test_publishing_while_the_items_are_made(make_app, redis_url):
    """The iterable may publish too, even with a pool of one connection."""
    one = make_app(redis_url, broker_pool_limit=1)

    def rows():
        for number in range(3):
            one.delay(f"by {number}")
            yield number

    assert 3 == reliq.publish_many(one, rows())
    found = args_of(redis_url)  # on a slow machine, items are sent before the last one is made
    assert ["by 0", "by 1", "by 2"] == [item for item in found if isinstance(item, str)]
    assert [0, 1, 2] == [item for item in found if isinstance(item, int)]


def test_threads(one, redis_url):
    """Concurrent threads each publish all of their items."""
    counts = []

    def publish(number):
        counts.append(reliq.publish_many(one, [number] * 700))

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [700] * 4 == counts
    assert sorted([0, 1, 2, 3] * 700) == sorted(args_of(redis_url))


def test_before_send(one, redis_url):
    """before_send may change the headers and properties of one message."""

    def mark(name, headers, properties):
        headers["tenant"] = headers["argsrepr"]
        if headers["argsrepr"] == "(2,)":
            properties["priority"] = 0
            headers["only"] = name

    assert 3 == reliq.publish_many(one, [1, 2, 3], before_send=mark, priority=5)
    found = waiting_at(redis_url)
    assert [2, 1, 3] == [message.payload[0][0] for message in found]
    assert ["(2,)", "(1,)", "(3,)"] == [message.headers["tenant"] for message in found]
    assert ["many.one", None, None] == [message.headers.get("only") for message in found]


def test_large_messages(one, redis_url, monkeypatch):
    """More than 8 MiB are sent as several chunks, however few messages there are."""
    sent, flush = [], Chunk.flush

    def counted(chunk):
        sent.append(len(chunk._waiting))
        flush(chunk)

    monkeypatch.setattr(Chunk, "flush", counted)
    assert 20 == reliq.publish_many(one, ("x" * 2**20 for _ in range(20)))
    assert [8, 8, 4] == sent
    assert 20 == published(redis_url)


def test_a_program_that_has_used_nothing_of_celery_yet(redis_url):
    """publish_many works as the first use of Celery in a program.

    Celery loads most of its modules at its first use.
    """
    script = (
        "import reliq, sys\n"
        "from celery import Celery\n"
        "app = Celery('x', broker=sys.argv[1])\n"
        "assert 'celery.canvas' not in sys.modules\n"
        "assert 2 == reliq.publish_many('many.one', [1, 2], app=app)\n"
        "app.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, redis_url], capture_output=True, text=True, check=False
    )
    assert (0, "") == (done.returncode, done.stderr)
    assert [1, 2] == args_of(redis_url)


def test_in_a_task(one, redis_url):
    """Messages published inside a task have its root and parent, as by delay()."""

    @one.app.task(name="many.parent", shared=False)
    def parent():
        one.delay(0)
        reliq.publish_many(one, [1, 2])

    task = one.app.tasks["many.parent"]
    task.apply(task_id="the-parent")
    found = waiting_at(redis_url)
    assert [[0], [1], [2]] == [message.payload[0] for message in found]
    family = {(item.headers["root_id"], item.headers["parent_id"]) for item in found}
    assert {("the-parent", "the-parent")} == family


@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.slow)])
def test_a_worker_runs_them(site, pool):
    """A worker runs each task once, and the results are found by their ids."""
    ids = []
    sent = reliq.publish_many(
        "record", [()] * 50, star=True, app=site.app, on_sent=ids.extend, countdown=0.1
    )
    assert 50 == sent
    site.worker(pool=pool, concurrency=2)
    assert ids == [site.app.AsyncResult(task_id).get(timeout=30) for task_id in ids]
    assert dict.fromkeys(ids, 1) == dict(site.journal.started())
    site.settled()
