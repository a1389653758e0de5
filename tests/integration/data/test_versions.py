"""The previous version and this one share a broker, each as producer and as worker."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support import previous
from tests.support.site import FAST
from tests.support.waiting import wait_until
from tests.support.workers import app_environment

pytestmark = pytest.mark.slow

APP = "tests.integration.apps.jobs"
TASKS = 40
LIMIT = 2
CONFIG = {
    "task_acks_late": True,
    "task_ignore_result": True,
    "worker_prefetch_multiplier": 4,
    "broker_transport_options": {**FAST, "delivery_limit": LIMIT},
}


class Versions:
    """A site with programs of both versions."""

    def __init__(self, site, folder):
        self.site = site
        self._folder = folder

    def _environment(self, version):
        return previous.environment(self._folder if version == "previous" else None)

    def worker(self, version, **options):
        """Start a worker of *version*."""
        options = {"app": APP, "concurrency": 1, **options}
        return self.site.worker(env=self._environment(version), **options)

    def run(self, version, name, *arguments):
        """Call a function of apps/versions.py in *version*; return its result."""
        extra = self._environment(version)
        done = subprocess.run(
            [sys.executable, "-m", "tests.integration.apps.versions", name, *map(str, arguments)],
            env=app_environment(self.site.broker, self.site.journal, self.site.config, extra),
            cwd=self.site.directory,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert 0 == done.returncode, done.stderr
        folder, result = json.loads(done.stdout)
        assert extra["PYTHONPATH"].split(":")[0] == folder, "another version has been imported"
        return result

    def balanced(self):
        """Fail unless the ledgers balance in both versions."""
        for version in ("previous", "current"):
            assert 0 == self.run(version, "audit")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder of the previous version."""
    return previous.build(tmp_path_factory.mktemp("previous"))


@pytest.fixture
def versions(fresh_redis, site_factory, folder):
    """Return Versions on a separate server."""
    return Versions(site_factory(fresh_redis, **CONFIG), folder)


@pytest.fixture(params=["previous", "current"])
def first(request):
    """Return the version that acts first."""
    return request.param


@pytest.fixture
def second(first):
    """Return the other version."""
    return "current" if first == "previous" else "previous"


def test_publish(versions, first, second):
    """Tasks of one version, including delayed ones, run once each in a worker of the other."""
    published = versions.run(first, "publish", TASKS)
    published.append(versions.run(first, "delay", 0.5))
    versions.worker(second)
    versions.site.settled()
    assert dict.fromkeys(published, 1) == versions.site.journal.finished()
    versions.balanced()


def test_kill(versions, first, second, tmp_path):
    """A worker of one version restores and runs the messages of a killed worker of the other."""
    held = versions.run(first, "hold", tmp_path / "go")
    reserving = versions.worker(first)
    wait_until(versions.site.journal.started, what="the first task to begin")
    published = versions.run(second, "publish", 3)
    versions.site.wait_counts(unacked=4)
    reserving.kill_group()
    (tmp_path / "go").touch()
    versions.worker(second)
    versions.site.settled()
    assert dict.fromkeys([held, *published], 1) == versions.site.journal.finished()
    assert {held: 2} | dict.fromkeys(published, 1) == versions.site.journal.started()
    versions.balanced()


def test_dead_letter(versions, first, second):
    """Both versions count a delivery, and both read the dead letter."""
    poison = versions.run(first, "poison")
    for version in (first, second):
        worker = versions.worker(version, ready=False)
        wait_until(lambda worker=worker: not worker.running, what="the worker to be killed")
        assert -9 == worker.returncode, worker.tail()
    versions.worker(first)
    versions.site.wait_counts(dead=1)
    assert {poison: LIMIT} == versions.site.journal.started()
    for version in (first, second):
        assert ["delivery_limit"] == versions.run(version, "dead", "celery")
    versions.balanced()


def test_limits(versions):
    """The previous version declares, and consumes from, a queue to which this one gave a limit."""
    versions.run("previous", "declare", "celery", 0)
    versions.run("current", "declare", "celery", 2)
    versions.run("previous", "declare", "celery", 0)
    published = versions.run("previous", "publish", TASKS)
    for version in ("previous", "current"):
        versions.worker(version)
    versions.site.settled()
    assert dict.fromkeys(published, 1) == versions.site.journal.finished()
    versions.balanced()


def test_batch(versions, first, second):
    """Workers of both versions share a batch's jobs, and its callback is published once."""
    workers = [versions.worker(version) for version in (first, second)]
    batch = versions.run(first, "batch", TASKS)
    wait_until(lambda: versions.site.journal.entries("callback-complete", batch), what="callback")
    versions.site.settled()
    for version in (first, second):
        assert TASKS == versions.run(version, "counts", batch)["succeeded"]
    assert 1 == len(versions.site.journal.entries("callback-complete", batch))
    assert all("succeeded in" in worker.log() for worker in workers)
    versions.balanced()


def test_events(versions, first, second):
    """Workers of both versions learn of each other, and a monitor of each version of both."""
    workers = [versions.worker(version, loglevel="DEBUG") for version in (first, second, second)]
    names = {worker.name for worker in workers}
    for worker in workers:
        for name in names - {worker.name}:
            worker.wait_log(f"{name} joined the party")
    for version in (first, second):
        assert sorted(names) == versions.run(version, "heartbeats", len(names))
    versions.balanced()


def test_one_node_name(versions, first, second):
    """Workers of both versions with one node name both answer, and both learn of a revoke."""
    workers = [versions.worker(version, name="same", pool="threads") for version in (first, second)]
    log = workers[0]  # both write to one file
    log.wait_log(" ready.", times=2)
    for version in (first, second):
        assert 2 == versions.run(version, "answers")
    versions.run(first, "revoke", "a-task")
    log.wait_log("flagged as revoked: a-task", times=2)
    versions.balanced()


def test_a_clone_without_the_history(tmp_path):
    """Without the git history, the error names the command that fetches it."""
    with pytest.raises(AssertionError, match="git fetch --unshallow"):
        previous.build(tmp_path, "0" * 40)
