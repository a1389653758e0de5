"""An invalid batch is refused when it is made or opened: nothing is stored and nothing has run."""

from __future__ import annotations

from contextlib import closing

import pytest
from celery import Celery

from reliq import Batch, ConfigurationError
from tests.support.site import close_app


@pytest.fixture
def app(redis_url):
    """Return an app with one task."""
    found = Celery("shop", broker=redis_url)
    found.ran = []

    @found.task(name="told", shared=False)
    def told(batch):
        found.ran.append(batch)

    yield found
    close_app(found)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("name", None),
        ("name", 17),
        ("name", b"enrol"),
        ("name", "\ud800"),
        ("name", "x" * 256),
        ("id", 17),
        ("id", "\ud800"),
        ("id", "x" * 256),
        ("parent", 17),
        ("seal_timeout", 0),
        ("seal_timeout", "60"),
        ("seal_timeout", float("inf")),
        ("batch_ttl", float("nan")),
        ("batch_ttl", 1e300),
        ("failures", "shop.NotQualified"),
        ("failures", ValueError),
        ("failures", (1,)),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_option(option, value):
    """The error for an invalid option names the option and the expected value."""
    with pytest.raises(ConfigurationError, match=f"expected {option}"):
        Batch(**{option: value})


def test_a_callback_of_another_kind_of_broker(app, redis_server):
    """A callback for another kind of broker is refused: the batch's broker stores it."""
    other = Celery("other", broker="memory://localhost", set_as_current=False)
    batch = Batch("enrol", on_complete=other.signature("told"), app=app)
    try:
        with pytest.raises(ConfigurationError, match="memory"), batch:
            pytest.fail("it was opened")
    finally:
        close_app(other)
    with closing(redis_server.client()) as client:
        assert [] == client.keys()


def test_a_callback_that_would_run_at_once(app):
    """A callback is refused under task_always_eager: it would run at once, before any job."""
    app.conf.task_always_eager = True
    batch = Batch("enrol", on_complete=app.tasks["told"].s())
    with pytest.raises(ConfigurationError, match="task_always_eager"), batch:
        pytest.fail("it was opened")
    assert [] == app.ran
