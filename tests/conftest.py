"""Fixtures: real Redis servers, real Celery workers, and a journal of the tasks that ran.

Environment: RELIQ_TEST_REDIS chooses the server binary (tests/support/servers.py).
RELIQ_TEST_SCHEME=redis runs the Celery tests over Kombu's own transport, to find the properties
that it lacks.
"""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from reliq.consumer.sessions import SESSIONS
from tests.support.certificates import make_certificates
from tests.support.embedded import folders_below, processes_below
from tests.support.journal import Journal
from tests.support.servers import RedisServer
from tests.support.site import CelerySite
from tests.support.waiting import wait_until
from tests.support.workers import CeleryBeat, CeleryWorker

HERE = Path(__file__).parent
# The folders whose single tests take minutes. They begin first, so that the run does not end with a
# wait for one of them.
LONGEST = tuple(f"{HERE / name}{os.sep}" for name in ("outside", "chaos"))
# Of a test that hangs: on a slow machine with other work, some need two minutes.
QUICK_TIMEOUT_S = 300
SLOW_TIMEOUT_S = 600


def pytest_configure(config):
    """End all started processes on SIGTERM too, as on Ctrl-C.

    SIGINT gets a handler because a shell's background job ignores it, and child processes would
    inherit that.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    # Without this, each of about a thousand processes compiles the package again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_collection_modifyitems(items):
    """Give each test without a timeout the default of its kind, and sort the tests."""
    items.sort(key=lambda item: not str(item.path).startswith(LONGEST))
    for item in items:
        if item.get_closest_marker("timeout") is None:
            slow = item.get_closest_marker("slow") is not None
            # By signal: the test fails, and its finalizers still end the processes it started.
            seconds = SLOW_TIMEOUT_S if slow else QUICK_TIMEOUT_S
            item.add_marker(pytest.mark.timeout(seconds, method="signal"))


@pytest.fixture(scope="session", autouse=True)
def no_embedded_broker_left(tmp_path_factory):
    """Fail if the keeper or server of an embedded broker outlives these tests.

    All temporary folders are below pytest's base folder, including those that reliq makes.
    """
    place = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(place))
        patch.setattr(tempfile, "tempdir", None)  # computed again on next use
        yield
    # Less than the time after which an idle server ends by itself.
    wait_until(lambda: not processes_below(place), timeout_s=10, what=lambda: folders_below(place))


_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Record the failed tests, because their tracebacks keep messages alive."""
    report = yield
    item.stash[_FAILED] = report.failed or item.stash.get(_FAILED, False)
    return report


@pytest.fixture(autouse=True)
def nothing_left_in_hand(request):
    """Fail if a test leaves a message in hand, which disables isolated delivery in later tests."""
    before = SESSIONS.nothing_in_hand()
    yield
    if before and not request.node.stash.get(_FAILED, False) and not SESSIONS.nothing_in_hand():
        gc.collect()
        assert SESSIONS.nothing_in_hand(), "a message is still in hand here (Session.in_hand)"


@pytest.fixture(autouse=True)
def what_is_unclosed_ends_here(request):
    """Collect what a test leaves unclosed on purpose while it still ignores the warnings.

    The warnings would otherwise fail another test of the same process, perhaps much later.
    """
    yield
    if any("unclosed" in str(mark.args) for mark in request.node.iter_markers("filterwarnings")):
        gc.collect()


@pytest.fixture(scope="session")
def scheme():
    """Return the URL scheme under test."""
    return os.environ.get("RELIQ_TEST_SCHEME", "reliq")


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """Return PEM files: CA, server, client, a wrong CA, and a certificate for another host."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def redis_server():
    """Return the shared server of the tests; `redis_url` empties it before a test."""
    server = RedisServer()
    try:
        yield server.start()
    finally:
        server.destroy()


def end_absent_sessions():
    """End the sessions that await the connection which an earlier test lost.

    Such a session sends heartbeats for its visibility timeout, so it would be a consumer at the
    emptied server.
    """
    for session in list(SESSIONS.by_key.values()):
        if not session.registration.subscriptions:
            session.registration.expect_back(0.0)
            if session.works:
                session.background.stop()
            session.maybe_end()


@pytest.fixture
def redis_url(redis_server, scheme):
    """Return the URL of the emptied shared server."""
    end_absent_sessions()
    client = redis_server.client()
    client.flushall()
    client.close()
    return redis_server.url(scheme)


@pytest.fixture
def redis_factory():
    """Return a function that starts a private server for the test, with RedisServer's arguments."""
    with ExitStack() as stack:

        def start(**options: Any) -> RedisServer:
            server = RedisServer(**options)
            stack.callback(server.destroy)
            return server.start()

        yield start


@pytest.fixture
def fresh_redis(redis_factory):
    """Return a private server for the test."""
    return redis_factory()


@pytest.fixture
def journal(tmp_path):
    """Return the journal to which the tasks of this test's workers write."""
    journal = Journal(tmp_path / "journal")
    yield journal
    journal.close()


@pytest.fixture
def worker_factory(tmp_path, journal):
    """Return a function that starts a Celery worker, whose processes end with the test."""
    with ExitStack() as stack:
        count = 0

        def start(broker: str | None, *, ready: bool = True, **options: Any) -> CeleryWorker:
            nonlocal count
            count += 1
            options.setdefault("name", f"worker{count}")
            worker = CeleryWorker(broker, journal, directory=tmp_path, **options)
            stack.callback(worker.kill_group)
            return worker.wait_ready() if ready else worker

        yield start


@pytest.fixture
def beat_factory(tmp_path, journal):
    """Return a function that starts a real beat process."""
    with ExitStack() as stack:

        def start(broker: str, **options: Any) -> CeleryBeat:
            beat = CeleryBeat(broker, journal, directory=tmp_path, **options)
            stack.callback(beat.kill_group)
            return beat

        yield start


@pytest.fixture
def site_factory(scheme, tmp_path_factory):
    """Return a function that makes a CelerySite on a given server."""
    with ExitStack() as stack:

        def make(server: RedisServer, **config: Any) -> CelerySite:
            site = CelerySite(server, scheme, tmp_path_factory.mktemp("site"), config)
            stack.callback(site.close)
            return site

        yield make


@pytest.fixture
def site(redis_server, redis_url, site_factory):
    """Return a Celery application on the emptied shared server."""
    return site_factory(redis_server)
