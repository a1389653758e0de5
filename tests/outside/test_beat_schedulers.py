"""Foreign schedulers: django-celery-beat, and RedBeat with its own Redis URL."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

from tests.support.audits import wait_settled
from tests.support.site import FAST
from tests.support.waiting import stays_true, wait_until
from tests.support.workers import app_environment

SENDING = "Sending due task"


class DjangoSite:
    """A Django project with its own database."""

    app = "tests.outside.programs.django_site"

    def __init__(self, redis_url, journal, directory):
        self.extra = {
            "DATABASE": str(directory / "django.db"),
            "DJANGO_SETTINGS_MODULE": self.app,
        }
        config = {"broker_transport_options": FAST}
        self.environment = app_environment(redis_url, journal, config, self.extra)
        self.options = {"app": self.app, "config": config}
        self.manage("django", "migrate", "--verbosity", "0")

    def manage(self, module, *arguments):
        """Run a Django module or one of the tests' own to its end; return its output."""
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def test_django_celery_beat_sends_what_the_database_says(
    redis_url, journal, tmp_path, worker_factory, beat_factory, monkeypatch
):
    """Each task of the database runs once whenever it is due, until it is disabled there."""
    django = DjangoSite(redis_url, journal, tmp_path)
    for name, value in django.extra.items():
        monkeypatch.setenv(name, value)
    worker_factory(redis_url, **django.options)
    # This must happen before beat starts. django-celery-beat never notices a change between its
    # first reading of the plan and its first look for changes.
    django.manage("tests.outside.programs.django_plan", "plan")
    beat = beat_factory(redis_url, **django.options, arguments=["--scheduler", "django"])

    def notes():
        return Counter(entry.key for entry in journal.entries("note"))

    wait_until(lambda: notes()["each-second"] >= 4, timeout_s=60, what=beat.tail)
    read = beat.log().count("Schedule changed")
    django.manage("tests.outside.programs.django_plan", "end")
    wait_until(lambda: beat.log().count("Schedule changed") > read, what=beat.tail)
    sent = beat.log().count(SENDING)
    stays_true(lambda: beat.log().count(SENDING) == sent, for_s=3, what="a plan without tasks")
    assert 0 == stop(beat)
    wait_settled(redis_url, "celery", transport_options=FAST)
    # Beat logged each task that it sent. Django sent one more, when its transaction was committed.
    assert sent + 1 == len(journal.started()) == notes().total()
    assert {1} == {*journal.started().values()}
    assert (1, 1) == (notes()["on-commit"], notes()["one-time"])


def stop(beat):
    """End beat as a supervisor does; return its exit code."""
    beat.signal(15)
    return beat.wait()


def test_redbeat_sends_what_its_own_redis_says(redis_server, site_factory, redis_url):
    """One of two RedBeats sends; when it ends, the other continues, and each task runs once."""
    del redis_url  # emptied
    site = site_factory(
        redis_server,
        task_ignore_result=True,
        redbeat_redis_url=redis_server.url("redis", db=3),
        redbeat_lock_timeout=5,
        beat_max_loop_interval=1,
        beat_schedule={"each second": {"task": "record", "schedule": 1.0}},
    )
    site.worker()
    (site.directory / "second").mkdir()
    options = {"arguments": ["--scheduler", "redbeat.RedBeatScheduler"]}
    first = site.beat(**options)
    wait_until(lambda: len(site.journal.started()) >= 3, timeout_s=60, what=first.tail)
    second = site.beat(**options)
    assert 0 == stop(first)
    before = len(site.journal.started())
    wait_until(lambda: len(site.journal.started()) >= before + 3, timeout_s=60, what=second.tail)
    assert 0 == stop(second)
    site.settled()
    # Both processes write to one log.
    assert second.log().count(SENDING) == len(site.journal.started())
    assert {1} == {*site.journal.started().values()}
