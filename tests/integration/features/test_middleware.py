"""reliq.Middleware at the publication of tasks, and around tasks that run locally."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
from contextlib import suppress

import pytest
from celery import Celery, Task, chain, chord, group, signals
from celery.beat import ScheduleEntry, Scheduler
from celery.exceptions import Ignore, Reject, Retry
from celery.schedules import schedule

import reliq
from reliq.admin import Inspector
from reliq.errors import BrokerUnavailable, ConfigurationError
from reliq.integrations.middleware import PublishContext, apply_publish, chain_of
from reliq.message.envelope import decode
from reliq.values.inspection import Position
from tests.support.audits import assert_balanced
from tests.support.site import close_app


class Recorder(reliq.Middleware):
    """A middleware that records its calls, and raises the errors set for them."""

    def __init__(self, name="a", calls=None):
        self.name = name
        self.calls = [] if calls is None else calls
        self.raises = {}

    def _called(self, method, context):
        self.calls.append((self.name, method, context))
        if method in self.raises:
            raise self.raises[method]

    def publish(self, context):
        """Record the call."""
        self._called("publish", context)

    def begin(self, context):
        """Record the call."""
        self._called("begin", context)

    def end(self, context):
        """Record the call."""
        self._called("end", context)

    def names(self, method="publish"):
        """Return the names of the tasks of the calls."""
        return [context.name for _, called, context in self.calls if called == method]


class Stamp(reliq.Middleware):
    """A middleware that sets a header."""

    def publish(self, context):
        """Set the header, even over an existing value."""
        context.headers["stamp"] = "middleware"


def add(x, y):
    """Return the sum."""
    return x + y


def again(self):
    """Retry much later."""
    raise self.retry(countdown=60)


@pytest.fixture
def make_app(redis_url, redis_server):
    """Return a function that makes an app with two tasks on the shared server."""
    made = []

    def make(**config):
        backend = redis_server.url("redis", db=1)
        app = Celery("published", broker=redis_url, backend=backend, set_as_current=False)
        app.conf.update(config)
        app.task(name="add", shared=False)(add)
        app.task(bind=True, name="again", max_retries=3, shared=False)(again)
        made.append(app)
        return app

    yield make
    for app in made:
        close_app(app)
    assert_balanced(redis_url)


@pytest.fixture
def app(make_app):
    """Return an app."""
    return make_app()


@pytest.fixture
def stored(redis_url):
    """Return a function that removes the stored tasks and returns their headers."""

    def take():
        with Inspector(redis_url) as inspector:
            queues = inspector.queues()
            found = [
                decode(item.envelope).headers
                for queue in queues
                for state in ("ready", "delayed")
                for item in inspector._store.reads.scan(
                    queue, state, Position(), whole_bytes=10_000
                ).items
            ]
            for queue in queues:
                inspector.purge(queue)
        return found

    return take


# -- publish


def ways(app):
    """Return name -> (function, published task names) for each of Celery's ways to publish."""
    task = app.tasks["add"]
    entry = ScheduleEntry(name="e", task="add", schedule=schedule(9), args=(1, 2), app=app)
    other = ScheduleEntry(name="f", task="elsewhere", schedule=schedule(9), app=app)
    beat = Scheduler(app, lazy=True)
    return {
        "delay": (lambda: task.delay(1, 2), ["add"]),
        "apply_async": (lambda: task.apply_async((1, 2), countdown=9, priority=3), ["add"]),
        "send_task": (lambda: app.send_task("elsewhere", (1,)), ["elsewhere"]),
        "a signature": (lambda: app.signature("elsewhere").delay(), ["elsewhere"]),
        "a group": (lambda: group(task.s(1, 2), task.s(3, 4)).apply_async(), ["add"] * 2),
        "a chain": (lambda: chain(task.s(1, 2), task.s(3)).apply_async(), ["add"]),
        "a chord": (chord([task.s(1, 2), task.s(1, 2)], task.si(5, 6)).delay, ["add"] * 2),
        "beat": (lambda: beat.apply_async(entry, advance=False), ["add"]),
        "beat, by name": (lambda: beat.apply_async(other, advance=False), ["elsewhere"]),
    }


WAYS = ["delay", "apply_async", "send_task", "a signature", "a group", "a chain", "a chord"]
WAYS += ["beat", "beat, by name"]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_publishing_passes_the_chain(app, stored, way):
    """Every way to publish passes the chain, and the headers that it sets are stored."""
    recorder = Recorder()
    reliq.add_middleware(app, recorder, Stamp())
    publish, names = ways(app)[way]
    publish()
    assert names == recorder.names()
    headers = stored()
    assert [(name, "middleware") for name in names] == [(h["task"], h["stamp"]) for h in headers]
    assert {h["id"] for h in headers} == {context.id for *_, context in recorder.calls}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("error", [PermissionError, BrokerUnavailable, ValueError, Reject])
def test_what_it_raises_is_raised_to_who_publishes(app, stored, way, error):
    """The publisher gets the middleware's error unchanged, and nothing is stored."""
    recorder = Recorder()
    raised = recorder.raises["publish"] = error("no")
    reliq.add_middleware(app, recorder)
    publish, _ = ways(app)[way]
    with pytest.raises(Exception, match="no") as caught:
        publish()
    # Beat raises an error of its own, made from the original.
    assert raised in {caught.value, caught.value.__context__}
    assert [] == stored()


def test_the_first_that_raises_is_the_last_that_is_asked(app, stored):
    """The chain is called in the order of addition and stops at the first error."""
    calls = []
    first, second, third = (Recorder(name, calls) for name in "abc")
    reliq.add_middleware(app, first, second)
    reliq.add_middleware(app, third)
    app.tasks["add"].delay(1, 2)
    assert ["a", "b", "c"] == [name for name, *_ in calls]
    del calls[:]
    second.raises["publish"] = ValueError("no")
    with pytest.raises(ValueError, match="no"):
        app.tasks["add"].delay(1, 2)
    assert ["a", "b"] == [name for name, *_ in calls]
    assert 1 == len(stored())


def test_what_publish_is_given(app, stored):
    """The context has the task, all headers, and the options of the publish."""
    recorder = Recorder()
    reliq.add_middleware(app, recorder)
    mine = {"mine": 1}
    result = app.tasks["add"].apply_async((1,), {"y": 2}, headers=mine, queue="other", priority=4)
    ((*_, context),) = recorder.calls
    assert (app, "add", result.id) == (context.app, context.name, context.id)
    assert ([1], {"y": 2}) == (list(context.args), context.kwargs)
    assert (1, "add") == (context.headers["mine"], context.headers["task"])
    assert result.id == context.properties["correlation_id"]
    assert ("other", 4) == (context.options["queue"].name, context.options["priority"])
    assert 1 == len(stored())


def test_the_middleware_has_the_last_word_on_a_header(app, stored):
    """The middleware overrides a header without changing the application's dict.

    The application may use the dict again.
    """
    reliq.add_middleware(app, Stamp())
    mine = {"stamp": "mine", "mine": 1}
    app.tasks["add"].apply_async((1, 2), headers=mine)
    (headers,) = stored()
    assert ("middleware", 1) == (headers["stamp"], headers["mine"])
    assert {"stamp": "mine", "mine": 1} == mine


def test_receivers_of_celerys_signal_see_what_it_has_changed(app, stored):
    """Receivers of Celery's signal see the headers after the chain has changed them."""
    reliq.add_middleware(app, Stamp())
    seen = []

    def receive(headers=None, **_):
        seen.append(headers["stamp"])

    signals.before_task_publish.connect(receive)
    app.tasks["add"].delay(1, 2)
    signals.before_task_publish.disconnect(receive)
    assert ["middleware"] == seen
    assert 1 == len(stored())


def test_a_retry_is_published_with_its_headers(app, stored):
    """A retry is published as the same task with its previous headers."""
    recorder = Recorder()
    reliq.add_middleware(app, recorder)
    task = app.tasks["again"]
    task.push_request(id="1", called_directly=False, is_eager=False, headers={"tenant": "t"})
    with pytest.raises(Retry):
        task.retry()
    task.pop_request()
    ((*_, context),) = recorder.calls
    assert ("again", "1", "t") == (context.name, context.id, context.headers["tenant"])
    (headers,) = stored()
    assert ("t", 1) == (headers["tenant"], headers["retries"])


def test_a_message_that_is_made_by_hand(app, stored):
    """A message published with AMQP's methods passes the chain once."""
    recorder = Recorder()
    reliq.add_middleware(app, recorder, Stamp())
    message = app.amqp.as_task_v2("7", "add", (1, 2))
    with app.producer_or_acquire() as producer:
        app.amqp.send_task_message(producer, "add", message, headers={"stamp": "mine"})
    assert ["add"] == recorder.names()
    assert ["middleware"] == [headers["stamp"] for headers in stored()]


def test_the_first_protocol(make_app, stored):
    """The chain finds the task of protocol 1 in the body."""
    recorder = Recorder()
    app = make_app(task_protocol=1)
    reliq.add_middleware(app, recorder, Stamp())
    result = app.tasks["add"].delay(1, 2)
    ((*_, context),) = recorder.calls
    assert ("add", result.id, (1, 2)) == (context.name, context.id, tuple(context.args))
    assert [{"stamp": "middleware"}] == stored()


def test_who_publishes_past_celery(app):
    """apply_publish runs the chain of an app, and does nothing without one."""
    given = {"name": "add", "id": "7", "properties": {}, "options": {}, "args": (), "kwargs": {}}
    headers = {}
    apply_publish(PublishContext(app=app, headers=headers, **given))
    assert {} == headers
    reliq.add_middleware(app, Stamp())
    apply_publish(PublishContext(app=app, headers=headers, **given))
    assert {"stamp": "middleware"} == headers


# -- adding


@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
def test_it_is_added_to_an_app_that_is_new_or_was_used(app, stored, used):
    """Middleware can be added before or after the first use of the app's AMQP object."""
    if used:
        app.tasks["add"].delay(1, 2)
    recorder = Recorder()
    reliq.add_middleware(app, recorder)
    app.tasks["add"].delay(1, 2)
    assert ["add"] == recorder.names()
    assert 1 + used == len(stored())


def test_the_configuration_is_not_read_for_it():
    """Adding middleware does not read the configuration, so that it can be set later."""
    app = Celery("late", set_as_current=False)
    reliq.add_middleware(app, Stamp())
    assert not app.configured
    assert not app.finalized
    app.config_from_object({"task_default_queue": "told-late"})
    assert "told-late" == app.amqp.default_queue.name
    app.close()


def test_the_same_one_is_added_once(app, stored):
    """The same middleware is added once, in one call or in two."""
    recorder, other = Recorder(), Stamp()
    reliq.add_middleware(app, recorder, other, recorder)
    reliq.add_middleware(app, other, recorder)
    assert (recorder, other) == chain_of(app).items
    app.tasks["add"].delay(1, 2)
    assert ["add"] == recorder.names()
    assert 1 == len(stored())


def test_an_app_without_middleware_is_not_touched(app):
    """Adding no middleware leaves the app unchanged."""
    reliq.add_middleware(app)
    task = app.tasks["add"]
    assert chain_of(app) is None
    assert {"create_task_message", "send_task_message"}.isdisjoint(vars(app.amqp))
    assert (Task.__call__, "celery.app.registry") == (
        type(task).__call__,
        type(app.tasks).__module__,
    )


def test_one_app_does_not_have_the_middleware_of_another(make_app, stored):
    """Each app has a separate chain for publishing and running."""
    recorder = Recorder()
    one, other = make_app(), make_app()
    reliq.add_middleware(one, recorder)
    other.tasks["add"].delay(1, 2)
    other.tasks["add"].apply((1, 2))
    assert [] == recorder.calls
    assert 1 == len(stored())


@pytest.mark.parametrize("wrong", [Stamp, "stamp", None, len], ids=["class", "text", "no", "code"])
def test_what_is_no_middleware_is_refused(app, wrong):
    """An object of another type is refused, even a class, and none of the call is added."""
    with pytest.raises(ConfigurationError, match=r"expected an instance of reliq\.Middleware"):
        reliq.add_middleware(app, Stamp(), wrong)
    assert chain_of(app) is None


def test_what_is_no_app_is_refused():
    """The error for a wrong app names the expected type."""
    with pytest.raises(ConfigurationError, match="expected a Celery application, got: 'app'"):
        reliq.add_middleware("app", Stamp())


def test_the_current_app_is_the_app_that_it_stands_for(app):
    """Celery's proxy for the current app is accepted."""
    from celery import current_app

    app.set_current()
    try:
        reliq.add_middleware(current_app, Stamp())
        assert 1 == len(chain_of(app).items)
    finally:
        Celery("next").close()


def test_celery_is_not_imported_for_it():
    """reliq.Middleware can be used in a program without Celery."""
    script = (
        "import sys, reliq\n"
        "class Mine(reliq.Middleware): pass\n"
        "try: reliq.add_middleware(None, Mine())\n"
        "except reliq.ConfigurationError as exc: print(exc)\n"
        "assert 'celery' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "expected a Celery application, got: None\n" == done.stdout


class Plain(Stamp):
    """A middleware that can be pickled and compared."""

    def __eq__(self, other):
        """Return whether both have the same class."""
        return type(self) is type(other)

    __hash__ = Stamp.__hash__


def test_a_pickled_app_takes_it_along(app, stored):
    """A pickled app keeps its middleware, even after a second round, as in a spawned child."""
    reliq.add_middleware(app, Plain())
    copy = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(app))))
    assert (Plain(),) == chain_of(copy).items
    copy.send_task("add")
    assert ["middleware"] == [headers["stamp"] for headers in stored()]
    close_app(copy)


def test_a_forked_process_publishes_with_it(app, stored):
    """A forked process publishes with the parent's middleware."""
    recorder = Recorder()
    reliq.add_middleware(app, recorder, Stamp())
    app.tasks["add"].delay(1, 2)

    def publish():
        app.tasks["add"].delay(1, 2)
        os._exit(0 if ["add", "add"] == recorder.names() else 1)

    child = multiprocessing.get_context("fork").Process(target=publish)
    child.start()
    child.join(30)
    assert 0 == child.exitcode
    assert ["middleware"] * 2 == [headers["stamp"] for headers in stored()]


# -- begin and end around tasks that run locally


def outcomes(recorder):
    """Return (name, state, value, error) of each end."""
    return [
        (name, context.state, context.value, context.error)
        for name, method, context in recorder.calls
        if method == "end"
    ]


@pytest.fixture
def two(app):
    """Return two added middlewares that share a list of calls."""
    calls = []
    first, second = Recorder("a", calls), Recorder("b", calls)
    reliq.add_middleware(app, first, second)
    return first, second


def test_an_eager_task(app, two):
    """An eager task calls begin and end in order, and publishes nothing."""
    result = app.tasks["add"].apply((1, 2), task_id="7", headers={"tenant": "t"})
    assert 3 == result.get()
    calls = [(name, method) for name, method, _ in two[0].calls]
    assert [("a", "begin"), ("b", "begin"), ("b", "end"), ("a", "end")] == calls
    begun, ended = two[0].calls[0][2], two[0].calls[-1][2]
    for context in (begun, ended):
        assert (app, "add", "7", "t") == (
            context.app,
            context.name,
            context.id,
            context.headers["tenant"],
        )
        assert ((1, 2), {}) == (context.args, context.kwargs)
        assert context.task is app.tasks["add"]
    assert begun.local is ended.local
    assert ("SUCCESS", 3, None) == (ended.state, ended.value, ended.error)


@pytest.mark.parametrize("propagates", [False, True])
@pytest.mark.parametrize(
    ("error", "state"),
    [
        (ValueError("x"), "FAILURE"),
        (Ignore(), "IGNORED"),
        (Reject("x"), "REJECTED"),
        (Retry("x"), "RETRY"),
        (SystemExit(3), "FAILURE"),
        (KeyboardInterrupt(), "FAILURE"),
    ],
    ids=lambda value: getattr(type(value), "__name__", None),
)
@pytest.mark.parametrize("where", ["code", "begin"])
def test_the_outcome_of_a_task_that_raises(app, two, error, state, propagates, where):
    """The error of a task or of a begin is the outcome, and each middleware that began ends."""
    first, second = two

    @app.task(name="raises", shared=False)
    def raises():
        raise error

    if where == "begin":
        second.raises["begin"] = error
        task = app.tasks["add"].s(1, 2)
    else:
        task = raises.s()
    # Some errors are raised here, others are the result.
    with suppress(type(error)):
        task.apply(throw=propagates)
    ends = [("b", state, None, error), ("a", state, None, error)]
    assert ends[where == "begin" :] == outcomes(first)


def test_what_end_raises_changes_nothing(app, two, caplog):
    """An error of an end is logged; the other ends run and the task succeeds."""
    first, second = two
    second.raises["end"] = ValueError("at the end")
    assert 3 == app.tasks["add"].apply((1, 2), throw=True).get()
    assert ["b", "a"] == [name for name, *_ in outcomes(first)]
    assert "the middleware's end raised for task add[" in caplog.text
    assert "at the end" in caplog.text


def test_an_order_to_the_process_from_an_end_is_obeyed(app, two):
    """SystemExit from an end is raised after the other ends."""
    first, second = two
    second.raises["end"] = SystemExit(3)
    with pytest.raises(SystemExit):
        app.tasks["add"].apply((1, 2))
    assert ["b", "a"] == [name for name, *_ in outcomes(first)]


@pytest.mark.parametrize("later", [False, True], ids=["before", "after"])
def test_autoretry_hears_what_begin_raises(app, later):
    """autoretry_for covers errors of begin, and the task's code has not run.

    The order of registration and addition makes no difference.
    """
    recorder, runs = Recorder(), []
    if later:
        reliq.add_middleware(app, recorder)
    options = {"autoretry_for": (ConnectionError,), "max_retries": 2, "default_retry_delay": 0}

    @app.task(name="retried", shared=False, **options)
    def retried():
        runs.append(1)
        return "done"

    app.finalize()
    reliq.add_middleware(app, recorder)
    recorder.raises["begin"] = ConnectionError("not there")
    with pytest.raises(ConnectionError, match="not there"):
        retried.apply().get()
    assert ["retried"] * 3 == recorder.names("begin")
    assert [] == recorder.names("end")
    assert [] == runs
    recorder.raises.clear()
    assert "done" == retried.apply().get()
    assert [("a", "SUCCESS", "done", None)] == outcomes(recorder)


def test_a_task_that_is_called_is_no_run(app, two):
    """A direct call of a task is a plain function call, even inside a run."""

    @app.task(bind=True, name="calls", shared=False)
    def calls(self, again=True):
        return add_task(1, 2) + (self(again=False) if again else 0)

    add_task = app.tasks["add"]
    assert 3 == add_task(1, 2)
    assert [] == two[0].calls
    assert 6 == calls.apply().get()
    assert ["calls"] * 2 == two[0].names("begin")


def test_a_run_inside_of_a_run(app, two):
    """Nested runs begin and end separately, even of the same task."""

    @app.task(bind=True, name="nests", shared=False)
    def nests(self, depth):
        return 1 + (self.apply((depth - 1,)).result if depth else 0)

    assert 3 == nests.apply((2,)).get()
    assert ["nests"] * 6 == two[0].names("begin")
    assert [1, 1, 2, 2, 3, 3] == [value for _, _, value, _ in outcomes(two[0])]


class Called(Task):
    """A task with its own `__call__`."""

    name = "by-class"

    def __call__(self, *args, **kwargs):
        """Add one to the result of the code."""
        return super().__call__(*args, **kwargs) + 1

    def run(self, x):
        """Return the argument."""
        return x


@pytest.mark.parametrize("later", [False, True], ids=["before", "after"])
def test_a_task_of_a_class(app, later):
    """A task class's `__call__` runs once inside begin and end, and the class is unchanged."""
    recorder = Recorder()
    if later:
        reliq.add_middleware(app, recorder)
    task = app.register_task(Called())
    reliq.add_middleware(app, recorder)
    assert 6 == task.apply((5,)).get()
    assert [("a", "SUCCESS", 6, None)] == outcomes(recorder)
    assert type(task) is not Called
    assert isinstance(task, Called)
    assert "__call__" in vars(Called)


def test_an_end_that_comes_when_all_is_done(app, two):
    """A middleware's end runs after the task's handlers, which can use the setup of its begin."""
    order = []

    class Handled(Task):
        def after_return(self, *args):
            order.append("after_return")

    @app.task(name="handled", base=Handled, shared=False)
    def handled():
        order.append("code")

    two[0].end = lambda context: order.append("end")
    handled.apply()
    assert ["code", "after_return", "end"] == order
