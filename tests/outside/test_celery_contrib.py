"""celery.contrib.pytest: embedded workers that start and end with a user's tests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.outside.suites import Suite, assert_as_expected
from tests.support.audits import wait_settled

HERE = Path(__file__).parent


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_embedded_workers_run_what_tests_publish(pool, tmp_path, redis_server, redis_url):
    """Workers embedded in a test process run each task once and leave nothing behind."""
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copy(HERE / "programs" / "contrib_pytest.py", folder / "test_tasks.py")
    environment = {
        "RELIQ_TEST_BROKER": redis_url,
        "RELIQ_TEST_BACKEND": redis_server.url("redis", db=1),
        "POOL": pool,
    }
    suite = Suite(folder, tmp_path, environment)
    found = suite.run(["-p", "celery.contrib.pytest", "test_tasks.py"], timeout_s=120)
    assert_as_expected(found, failing={}, skipped={}, at_least=6)
    wait_settled(redis_url, "celery")
