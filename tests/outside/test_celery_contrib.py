"""celery.contrib.pytest: embedded workers that start and end with the tests of a user."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.outside.suites import Suite, assert_as_expected
from tests.support.audits import wait_settled
from tests.support.files import FileBroker

HERE = Path(__file__).parent


@pytest.mark.parametrize("pool", ["solo", "threads"])
@pytest.mark.parametrize("engine", ["redis", "sqlite"])
def test_embedded_workers_run_what_tests_publish(engine, pool, tmp_path, redis_server, redis_url):
    """Workers embedded in a test process run each task once and leave nothing behind."""
    broker = redis_url if engine == "redis" else FileBroker(tmp_path).url()
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copy(HERE / "programs" / "contrib_pytest.py", folder / "test_tasks.py")
    environment = {
        "RELIQ_TEST_BROKER": broker,
        "RELIQ_TEST_BACKEND": redis_server.url("redis", db=1),
        "POOL": pool,
    }
    suite = Suite(folder, tmp_path, environment)
    found = suite.run(["-p", "celery.contrib.pytest", "test_tasks.py"], timeout_s=120)
    assert_as_expected(found, failing={}, skipped={}, at_least=6)
    wait_settled(broker, "celery")
