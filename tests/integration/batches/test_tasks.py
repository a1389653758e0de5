"""Progress and reports of tasks: cheap, bounded, no effect without a job or without a broker."""

from __future__ import annotations

import contextlib
import json
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from time import monotonic
from types import SimpleNamespace

import celery.app.trace  # noqa: F401 - as each worker does
import pytest
from celery import Celery

import reliq
from reliq import Batch
from reliq.batches.jobs import Change
from reliq.integrations.job_runs import RUNNING, is_job, run_job
from reliq.values.job_headers import BATCH
from tests.chaos.proxy import Proxy
from tests.support.proxy import Proxy as CuttingProxy
from tests.support.servers import free_port
from tests.support.site import close_app


class Site:
    """A server, an application, and a job of a batch that runs in this process."""

    def __init__(self, server):
        self.server = server
        self.app = Celery("said", broker=server.url("reliq"))
        self.app.conf.broker_transport_options = {"socket_timeout": 1, "socket_connect_timeout": 1}
        with Batch("said", app=self.app) as self.batch:
            store = self.batch._connected()
            store.batches.change(self.batch.id, (Change("enter", "j", "waiting"),))

    def run(self, function):
        """Run *function* as the job, as a worker's pool does; return the worker's result."""

        def traced(name, task_id, request):
            return 0, function(), 0.1

        return run_job(traced, "task", "j", {"id": "j", BATCH: self.batch.id, "retries": 0})

    def written(self):
        """Return how often a progress was written."""
        with contextlib.closing(self.server.client()) as client:
            found = client.info("commandstats").get("cmdstat_zremrangebyrank", {"calls": 0})
        return found["calls"]


@pytest.fixture
def site(redis_factory):
    """Return a Site on a server of its own."""
    site = Site(redis_factory())
    yield site
    site.batch.close()
    close_app(site.app)


def test_no_job_runs():
    """Outside a job the functions send nothing, and added tasks join no batch."""
    assert None is reliq.progress(1, 2, "x")
    assert None is reliq.report("x")
    assert not reliq.cancelled()
    assert reliq.current_batch() is None
    with reliq.add_jobs():
        pass


class Behind:
    """A server behind a proxy."""

    def __init__(self, server, proxy):
        self.client = server.client
        self.url = lambda scheme: f"{scheme}://127.0.0.1:{proxy.port}/0"


def test_a_connection_that_went_silent_since_the_last_job(redis_factory):
    """A job with a silent connection uses another one, so that a cancelled job does not run."""
    server = redis_factory()
    proxy = Proxy(free_port(), ("127.0.0.1", server.port))
    proxy.start()
    site = Site(Behind(server, proxy))
    ran = []
    try:
        site.run(lambda: ran.append(1))
        proxy.black_hole()
        site.batch.close()
        site.batch._connected().batches.change(site.batch.id, (Change("return", "j"),))
        site.batch.cancel()
        site.run(lambda: ran.append(2))
        assert [1] == ran
        assert 1 == site.batch.status().counts["cancelled"]
    finally:
        site.batch.close()
        close_app(site.app)
        proxy.stop()


@pytest.mark.parametrize("way", ["requests", "replies"])
def test_a_batch_whose_connection_is_cut(redis_server, redis_url, way):
    """The end of its block, a status and a cancel repeat a request that a cut connection lost."""
    proxy = CuttingProxy(redis_server)
    cut = {"requests": lambda: proxy.cut_requests(20), "replies": lambda: proxy.cut_replies(0)}[way]
    with contextlib.closing(proxy), contextlib.closing(Batch("cut", url=proxy.url())) as batch:
        with batch:
            batch._connected().batches.change(batch.id, (Change("enter", "j", "waiting"),))
            cut()
        assert batch.status().sealed_ms
        cut()
        assert batch.status().sealed_ms
        cut()
        batch.cancel()
        assert batch.status().cancelled_ms
        assert 3 == proxy.cuts
        proxy.refusing = True
        proxy.cut_all()
        with pytest.raises(reliq.BrokerUnavailable, match="not reachable"):
            batch.status()


def test_begins_beside_each_other_after_their_connections_were_lost(site, caplog):
    """Jobs that begin at the same time report it, although all their connections were lost."""
    site.batch.cancel()
    ran = []
    admin = site.server.client()
    together = Barrier(8, lambda: admin.client_kill_filter(_type="normal", skipme=True))

    def begin_many(_):
        site.app.set_current()
        for _ in range(30):
            together.wait(30)
            site.run(lambda: ran.append(1))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(begin_many, range(8)))
    admin.close()
    assert not ran, caplog.text


@pytest.mark.parametrize("wrong", [("1",), (1, None), (float("nan"),), (True,), (1, 2, b"x")])
def test_what_is_no_progress(wrong):
    """An invalid progress or report raises TypeError, even outside a job."""
    with pytest.raises(TypeError, match="expected"):
        reliq.progress(*wrong)
    with pytest.raises(TypeError, match="expected a text"):
        reliq.report(wrong)


def test_a_number_that_no_broker_can_keep(site):
    """A number that is too large for the broker is limited, and is no error of the job."""
    site.run(lambda: reliq.progress(10**400, 2 * 10**400))
    assert [2**53 - 1] == [said.done for said in site.batch.status().progress]


def test_a_flood_of_reports(site):
    """Reports that the broker would not keep are not sent."""

    def flood():
        for n in range(200):
            reliq.report(f"row {n}")

    site.run(flood)
    assert [f"row {n}" for n in range(19, -1, -1)] == [
        m.text for m in site.batch.status(50).messages
    ]
    with contextlib.closing(site.server.client()) as client:
        stats = client.info("commandstats")
    scripts = sum(
        stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha")
    )
    assert scripts < 50


@pytest.mark.parametrize("job", [7, None, ["j"]], ids=["number", "none", "list"])
def test_what_has_no_id_is_no_job(job):
    """A request without a text as its id is no job, since its end could not be reported."""
    request = SimpleNamespace(request_dict={BATCH: "b", "id": job}, message=object())
    assert not is_job(request)


def test_a_job_knows_its_batch(site):
    """A job can read its batch's id, query the batch and cancel it."""

    def look():
        with contextlib.closing(reliq.current_batch()) as batch:
            return batch.id, batch.status().name

    assert (site.batch.id, "said") == site.run(look)[1]


def test_progress_is_written_twice_a_second_at_most(site):
    """Progress is written at most twice a second; the last one is stored before the job ends."""
    began = monotonic()

    def count():
        number = 0
        while monotonic() - began < 1.2:
            number += 1
            reliq.progress(number, 10**9, "counting")
        return number

    _, last, _ = site.run(count)
    elapsed = monotonic() - began
    assert 2 <= site.written() <= elapsed / 0.5 + 2
    assert last > site.written()
    (progress,) = site.batch.status().progress
    assert (last, "working") == (progress.done, progress.state)


def test_what_was_said_before_an_error(site):
    """The last progress before an exception is stored, and the exception is raised."""

    def fail():
        reliq.progress(1, 3, "first")
        reliq.progress(2, 3, "second")
        raise SystemExit

    with pytest.raises(SystemExit):
        site.run(fail)
    assert ["second"] == [one.text for one in site.batch.status().progress]
    assert None is RUNNING.get()


def test_a_status_is_json(site):
    """A status can be encoded as JSON, with all its lists."""

    def say():
        reliq.progress(1.5, 3, "half")
        reliq.report("price is missing")

    site.run(say)
    shown = json.loads(json.dumps(site.batch.status().as_dict()))
    (progress,), (message,) = shown["progress"], shown["messages"]
    assert ("j", "working", 1.5, 3, "half") == tuple(
        progress[name] for name in ("job", "state", "done", "total", "text")
    )
    assert ("j", "price is missing") == (message["job"], message["text"])
    assert ([], []) == tuple(
        site.batch.status(limit=5, skip=1).as_dict()[name] for name in ("progress", "messages")
    )


def test_a_job_of_a_cancelled_batch_does_not_run(site):
    """A job of a cancelled batch does not run; the worker gets the result of a task's Ignore."""
    site.batch.cancel()
    ran = []
    failed, info, _ = site.run(lambda: ran.append(1))
    error = getattr(info.exception, "exc", info.exception)
    assert (1, "Ignore", []) == (failed, type(error).__name__, ran)


def test_a_broker_that_is_away(site, caplog):
    """A task continues while the broker is unreachable, and does not wait for it at each call."""

    def say():
        assert not reliq.cancelled()
        site.server.kill()
        began = monotonic()
        for number in range(100):
            reliq.progress(number, 100)
        assert not reliq.cancelled()
        return monotonic() - began

    _, elapsed, _ = site.run(say)
    assert elapsed < 30
    assert 1 <= caplog.text.count("is not stored") <= 3
    site.server.start()
