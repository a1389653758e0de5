"""publish_many stores the same fields as a loop of apply_async, over generated calls."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import pytest
from celery import Celery, signature
from celery import signals as celery_signals
from celery.app.task import Task
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kombu import Exchange, Queue
from kombu.compression import decompress
from kombu.serialization import loads

import reliq
from reliq.integrations.task_calls import TaskCalls, Way
from reliq.message.envelope import decode
from tests.support.audits import assert_balanced
from tests.support.site import close_app
from tests.support.waiting import wait_until

QUEUES = ("celery", "other", "routed", "bound")
TIMES = ("eta", "x-eta", "expires")
CLOSE = timedelta(seconds=30)


class Site:
    """An application, with access to the stored messages of its publishes."""

    def __init__(self, url: str, raw: Any, **conf: Any) -> None:
        self.url, self.raw = url, raw
        self.app = app = Celery("many", broker=url, set_as_current=False)
        app.conf.update(
            result_backend=None,
            accept_content=["json", "pickle", "reliq"],
            task_queues=[
                Queue("celery"),
                Queue("other"),
                Queue("routed"),
                Queue("bound", Exchange("events", "topic"), "a.#"),
            ],
            task_routes={"many.routed*": {"queue": "routed", "priority": 3}},
            **conf,
        )

        @app.task(name="many.take", shared=False)
        def take(*args: Any, **kwargs: Any) -> None:
            """Take any arguments."""

        @app.task(name="many.one", shared=False, bind=True)
        def one(self: Any, value: Any) -> None:
            """Take one argument."""

        @app.task(name="many.routed", shared=False, expires=600, ignore_result=True, time_limit=9)
        def routed(*args: Any, **kwargs: Any) -> None:
            """Take any arguments, with options of the task."""

        self.take, self.one, self.routed = take, one, routed

    def stored(self) -> list[tuple]:
        """Return and remove the stored messages: places, delays and envelopes, in order."""
        found = []
        for queue in QUEUES:
            keys = {name: f"reliq:{{{queue}}}:{name}" for name in ("messages", "ready", "delayed")}
            expiry = f"reliq:{{{queue}}}:expiry"
            for state in ("ready", "delayed"):
                for tag, score in self.raw.zrange(keys[state], 0, -1, withscores=True):
                    envelope = decode(self.raw.hget(keys["messages"], tag))
                    rank = int(score) >> 45 if state == "ready" else None
                    expires = self.raw.zscore(expiry, tag) is not None
                    found.append((queue, state, rank, expires, envelope))
        for queue in QUEUES:
            with self.app.connection_for_write() as connection:
                if self.raw.exists(f"reliq:{{{queue}}}:meta"):
                    connection.default_channel.queue_purge(queue)
        return found


@pytest.fixture
def make_site(redis_server, redis_url):
    """Return a function that makes a Site on the shared server."""
    raw, sites = redis_server.client(), []

    def make(**conf):
        sites.append(Site(redis_url, raw, **conf))
        return sites[-1]

    yield make
    for site in sites:
        close_app(site.app)
    raw.close()
    assert_balanced(redis_url)


@pytest.fixture
def site(make_site):
    """Return a Site."""
    return make_site()


def comparable(stored):
    """Return the stored message without ids and times, and the times separately."""
    queue, state, rank, expires, envelope = stored
    headers, properties = dict(envelope.headers), dict(envelope.properties)
    own = headers["id"]
    if "compression" in headers:
        body = decompress(envelope.body, headers["compression"])
    else:
        body = envelope.body
    accept = {envelope.content_type}
    content = loads(body, envelope.content_type, envelope.content_encoding, accept=accept)
    times = {name: headers.pop(name) for name in TIMES if headers.get(name)}
    if "expiration" in properties:
        times["expiration"] = int(properties.pop("expiration"))
    for fields in (headers, properties):
        for name in [name for name, value in fields.items() if value == own]:
            fields[name] = "<id>"
    key = (list(headers), list(properties))  # in their order, too
    rest = (envelope.content_type, envelope.content_encoding, envelope.exchange)
    return (
        (queue, state, rank, expires, headers, properties, repr(content), *rest, key),
        envelope.routing_key,
        times,
    )


def assert_alike(expected, got):
    """Fail unless both were stored alike, apart from ids and times."""
    assert len(expected) == len(got)
    pairs = [
        # Messages due in the same millisecond have no order.
        sorted(
            map(comparable, stored), key=lambda one: repr(one[0]) if one[0][1] != "ready" else ""
        )
        for stored in (expected, got)
    ]
    for (left, left_key, left_times), (right, right_key, right_times) in zip(*pairs, strict=True):
        assert (left, left_key) == (right, right_key)
        assert left_times.keys() == right_times.keys()
        for name, value in left_times.items():
            if name == "expiration":
                assert abs(value - right_times[name]) < CLOSE.total_seconds() * 1000
            else:
                moments = [datetime.fromisoformat(at) for at in (value, right_times[name])]
                assert abs(moments[0] - moments[1]) < CLOSE
    ids = [stored[-1].headers["id"] for stored in got]
    assert len(ids) == len(set(ids))


SCALARS = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=30)
VALUES = st.recursive(
    SCALARS | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=10,
)
ARGUMENTS = st.lists(VALUES, max_size=3).map(tuple)
KEYWORDS = st.dictionaries(st.sampled_from(["a", "b", "c"]), VALUES, max_size=3)


def soon(seconds):
    """Return the time in some seconds, with a time zone."""
    return datetime.now(timezone.utc) + timedelta(seconds=seconds)


LINK = signature("many.linked", args=(1,), immutable=True)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "serializer": st.sampled_from(["json", "pickle", "reliq"]),
        "compression": st.sampled_from(["zlib", "bzip2", None]),
        "priority": st.integers(0, 9),
        "headers": st.dictionaries(
            st.sampled_from(["tenant", "x-partition-key", "shade"]), st.text(max_size=9)
        ),
        "ignore_result": st.booleans(),
        "shadow": st.sampled_from(["other name"]),
        "reply_to": st.sampled_from(["replies"]),
        "correlation_id": st.sampled_from(["mine"]),
        "retry": st.booleans(),
        "delivery_mode": st.sampled_from([1, 2]),
        "confirm": st.sampled_from(["accepted"]),
        "link": st.sampled_from([LINK, [LINK, LINK]]),
        "link_error": st.just(LINK),
        "root_id": st.just("the-root"),
        "parent_id": st.just("the-parent"),
        "group_id": st.just("the-group"),
        "chain": st.just([LINK]),
    },
)
TIMED = st.fixed_dictionaries(
    {},
    optional={
        "countdown": st.integers(100, 10_000),
        "expires": st.integers(60, 10_000) | st.integers(60, 10_000).map(soon),
    },
) | st.fixed_dictionaries({"eta": st.integers(100, 10_000).map(soon)})
LIMITS = st.sampled_from([{}, {"time_limit": 60}, {"time_limit": 60, "soft_time_limit": 30}])
PLACES = st.sampled_from(
    [{}, {}, {"queue": "other"}, {"exchange": "events", "routing_key": "a.b"}, {"queue": "bound"}]
)
EVERYTHING = st.builds(
    lambda *parts: {name: value for part in parts for name, value in part.items()},
    OPTIONS,
    TIMED,
    LIMITS,
    PLACES,
)
FEW = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Telling(reliq.Middleware):
    """A middleware that records its contexts and adds headers."""

    def __init__(self):
        self.told = []

    def publish(self, context):
        """Record the context without the id and the times; set two headers."""
        headers = {k: v for k, v in context.headers.items() if k not in TIMES}
        noted = (context.name, headers, context.args, context.kwargs, context.properties)
        options = {k: v for k, v in context.options.items() if k != "expiration"}
        text = repr((noted, sorted(options.items(), key=str)))
        self.told.append(text.replace(context.id, "<id>"))
        context.headers["told"] = f"{len(context.args)} {sorted(context.kwargs)}"
        context.headers["tenant"] = "of the middleware"

    def take(self):
        """Return and clear the record."""
        told, self.told = self.told, []
        return told


def test_middleware_is_told_the_same_of_a_message_whose_times_are_made_anew(site, monkeypatch):
    """Middleware gets the same context when the times of a message are computed again.

    They are computed again after slow calls.
    """
    monkeypatch.setattr("reliq.integrations.task_calls._STAYS_S", -1.0)
    middleware = Telling()
    reliq.add_middleware(site.app, middleware)
    for times in ({"countdown": 60}, {"expires": 60}):
        reliq.publish_many(site.one, [1, 2, 3], **times)
        told = middleware.take()
        for n in (1, 2, 3):
            site.one.apply_async((n,), **times)
        assert told == middleware.take()
    site.stored()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("middleware", [None, Telling()], ids=["plain", "middleware"])
def test_the_same_is_stored(site, middleware):
    """publish_many stores the same as apply_async for a task, its signature and its name.

    An app's middleware gets the same context of each call, and may change its headers.
    """
    for name in ("other", "bound"):  # so that the exchange exists
        site.take.apply_async((), queue=name)
    site.stored()
    ways = []
    if middleware is not None:
        reliq.add_middleware(site.app, middleware)

    @settings(FEW, max_examples=60 if middleware is None else 20)
    @given(
        st.sampled_from(["take", "routed", "name", "signature", "immutable"]),
        st.lists(ARGUMENTS | KEYWORDS, min_size=1, max_size=6),
        EVERYTHING,
        ARGUMENTS,
        KEYWORDS,
    )
    def check(how, items, options, partial, keywords):
        app = None
        if how in {"take", "routed"}:
            task = getattr(site, how)
            send = task.apply_async
        elif how == "name":
            app, task = site.app, "many.routed.elsewhere"

            def send(args, kwargs, **options):
                site.app.send_task(task, args, kwargs, **options)
        else:
            own = {"priority": 7, "queue": "other", "headers": {"own": "1"}}
            task = site.take.signature(partial, keywords, own, immutable=how == "immutable")
            send = task.apply_async
        for item in items:
            args, kwargs = ((), item) if isinstance(item, dict) else (item, {})
            send(args, kwargs, **options)
        expected = site.stored()
        told = [] if middleware is None else middleware.take()
        with site.app.producer_or_acquire() as producer:
            ways.append(TaskCalls(task, app, options, True).way(producer))
        assert len(items) == reliq.publish_many(task, items, star=True, app=app, **options)
        assert_alike(expected, site.stored())
        assert len(expected) == len(items)
        if middleware is not None:
            assert told == middleware.take()

    check()
    assert {Way.FILLED} == set(ways)


def test_middleware_that_refuses_one(site):
    """A call that middleware refuses is not stored, and neither are the later ones."""

    class Refusing(reliq.Middleware):
        def publish(self, context):
            if context.args == (3,):
                raise PermissionError("not this one")

    reliq.add_middleware(site.app, Refusing())
    assert Way.FILLED == way_of(site, site.one)
    with pytest.raises(reliq.PartlyPublished, match="not this one") as caught:
        reliq.publish_many(site.one, range(6))
    assert (3, [3, 4, 5]) == (caught.value.sent, caught.value.unsent)
    assert 3 == len(site.stored())
    with pytest.raises(reliq.PartlyPublished) as caught:  # the first item counts, too
        reliq.publish_many(site.one, [3, 4])
    assert (0, [3, 4], []) == (caught.value.sent, caught.value.unsent, site.stored())


@contextmanager
def listening(signal, receiver):
    """Connect *receiver* to *signal* in the block."""
    signal.connect(receiver, weak=False)
    try:
        yield
    finally:
        signal.disconnect(receiver)


def mark(headers=None, properties=None, body=None, **_):
    """Change a message before its publication, depending on its arguments."""
    headers["marked"] = repr(body[0])
    properties["priority"] = 4


def route(name, args, kwargs, options, task=None, **kw):
    """Route by the arguments."""
    return {"queue": "other"} if args and args[0] == 1 else None


class Own(Task):
    """A task class that sends only even numbers, with a header."""

    def apply_async(self, args=None, kwargs=None, **options):
        """Send the number with a header."""
        if args and args[0] % 2:
            return None
        return super().apply_async(args, kwargs, headers={"n": args[0]}, **options)


class Shadowed(Task):
    """A task class whose shadow name depends on its arguments."""

    def shadow_name(self, args, kwargs, options):
        """Return the name."""
        return f"take {args[0]}"


def both(site, task, items, **options):
    """Return the messages that a loop and publish_many store."""
    for item in items:
        task.apply_async((item,), **options)
    expected = site.stored()
    assert len(items) == reliq.publish_many(task, items, **options)
    return expected, site.stored()


def way_of(site, task, **options):
    """Return the way in which the messages are made."""
    with site.app.producer_or_acquire() as producer:
        return TaskCalls(task, None, options, False).way(producer)


@pytest.mark.parametrize("receiver", ["before_task_publish", "after_task_publish"])
def test_who_listens_is_told_of_each(site, receiver):
    """Receivers of Celery's signals see each message, and before_task_publish may change it."""
    told = []

    def on_signal(headers=None, **more):
        told.append(headers["id"])
        if receiver == "before_task_publish":
            mark(headers=headers, **more)

    with listening(getattr(celery_signals, receiver), on_signal):
        way = way_of(site, site.take)
        expected, got = both(site, site.take, range(5))
    assert_alike(expected, got)
    assert [stored[-1].headers["id"] for stored in (*expected, *got)] == told
    assert (Way.EACH if receiver == "before_task_publish" else Way.PLAIN) == way
    assert Way.FILLED == way_of(site, site.take)


def test_after_task_publish_comes_after_it(site):
    """after_task_publish is sent after the message is stored."""
    seen = []

    def on_published(headers=None, **_):
        seen.append(site.raw.hlen("reliq:{celery}:messages"))

    with listening(celery_signals.after_task_publish, on_published):
        reliq.publish_many(site.take, range(3))
    assert [1, 2, 3] == seen
    site.stored()


def test_what_depends_on_the_call_is_made_for_each(make_site):
    """Celery makes each message if routers, task classes or stamps depend on the call."""
    site = make_site()

    @site.app.task(base=Own, name="many.own", shared=False)
    def own(value):
        """Take one argument."""

    @site.app.task(base=Shadowed, name="many.shadowed", shared=False)
    def shadowed(value):
        """Take one argument."""

    stamps = {"stamped_headers": ["tenant"], "tenant": "t1"}
    for task, options in [(own, {}), (shadowed, {}), (site.take, stamps)]:
        assert Way.EACH == way_of(site, task, **options)
        assert_alike(*both(site, task, range(4), **options))
    routing = make_site(task_protocol=2)
    routing.app.conf.task_routes = [route]
    assert Way.EACH == way_of(routing, routing.take)
    expected, got = both(routing, routing.take, range(3))
    assert_alike(expected, got)
    assert ["celery", "celery", "other"] == [stored[0] for stored in got]


def test_protocol_1(make_site):
    """Messages of protocol 1, of Celery 3, are sent too."""
    site = make_site(task_protocol=1)
    reliq.publish_many(site.take, [1, 2])
    bodies = [loads(stored[-1].body, "application/json", "utf-8") for stored in site.stored()]
    assert [[1], [2]] == [body["args"] for body in bodies]


def test_a_wrapper_around_apply_async_is_called(site, monkeypatch):
    """A wrapper around apply_async, like Sentry's, is called for each message."""
    unwrapped = Task.apply_async
    monkeypatch.setattr(
        Task,
        "apply_async",
        lambda self, args, kwargs=None, **options: unwrapped(
            self, args, kwargs, **{**options, "headers": {"trace": str(args[0])}}
        ),
    )
    assert Way.EACH == way_of(site, site.take)
    reliq.publish_many(site.take, [7, 8])
    assert ["7", "8"] == [stored[-1].headers["trace"] for stored in site.stored()]


def test_times_count_from_each_call(site):
    """A countdown and an expiry count from the time when each message is made."""

    def dawdle(*_):
        until = datetime.now(timezone.utc) + timedelta(seconds=0.05)
        wait_until(lambda: datetime.now(timezone.utc) > until, interval_s=0.005)

    options = {"countdown": 100, "expires": 200, "ignore_result": False}
    assert 4 == reliq.publish_many(site.take, range(4), before_send=dawdle, **options)
    found = [stored[-1].headers for stored in site.stored()]
    for name in ("x-eta", "expires"):
        moments = sorted(datetime.fromisoformat(headers[name]) for headers in found)
        steps = [later - before for before, later in pairwise(moments)]
        assert min(steps) >= timedelta(seconds=0.04)
    assert [False] * 4 == [headers["ignore_result"] for headers in found]


@pytest.mark.slow
def test_memory_is_flat(site):
    """Memory does not grow with the iterable, because one chunk at a time is alive."""

    class Row(str):
        __slots__ = ("__weakref__",)

    alive: weakref.WeakSet = weakref.WeakSet()
    most = 0

    def rows(count):
        nonlocal most
        for number in range(count):
            row = Row(number)
            alive.add(row)
            most = max(most, len(alive))
            yield row

    reliq.publish_many(site.take, rows(600))
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        assert 4000 == reliq.publish_many(site.take, rows(4000))
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most <= 1001  # the chunk that is sent, and the next one
    assert after - before < 300_000  # 4000 ids and results would be two megabytes
    site.raw.delete(*site.raw.keys("reliq:{celery}:*"))
