"""Typical tests with Celery's pytest plugin: an embedded worker and a real broker."""

from __future__ import annotations

import os
import time

import pytest
from celery import shared_task


@shared_task
def multiply(x, y):
    """Return the product."""
    return x * y


@shared_task(bind=True, max_retries=2)
def second_try(self):
    """Succeed at the second try."""
    if self.request.retries == 0:
        raise self.retry(countdown=0.2)
    return self.request.retries


@pytest.fixture(scope="session")
def celery_config():
    """Return the URLs of the broker and the result backend for the plugin."""
    return {
        "broker_url": os.environ["RELIQ_TEST_BROKER"],
        "result_backend": os.environ["RELIQ_TEST_BACKEND"],
    }


@pytest.fixture(scope="session")
def celery_worker_pool():
    """Return the pool of the embedded workers."""
    return os.environ["POOL"]


@pytest.mark.parametrize("number", range(5))
def test_a_worker_for_each_test(celery_app, celery_worker, number):
    """A worker that starts and ends with the test runs its task."""

    @celery_app.task(name="power")
    def power(x, y):
        return x**y

    celery_worker.reload()
    assert power.delay(number, 2).get(timeout=10) == number**2


def test_a_worker_for_the_session(celery_session_app, celery_session_worker):
    """A worker for the session runs shared tasks, also 50 at once and one with a retry."""
    results = [multiply.delay(number, 3) for number in range(50)]
    assert [number * 3 for number in range(50)] == [result.get(timeout=10) for result in results]
    began = time.monotonic()
    assert second_try.delay().get(timeout=10) == 1
    assert time.monotonic() - began >= 0.2
