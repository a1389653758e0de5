"""Kombu's functional suite, which tests Kombu's own transports."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.outside import fetching
from tests.outside.suites import Suite, assert_as_expected
from tests.support.audits import assert_balanced
from tests.support.servers import free_port

HERE = Path(__file__).parent


def run(cache, directory, live, dead):
    """Return the outcome of each of Kombu's tests."""
    source = fetching.fetch_source("kombu", cache)
    suite = Suite(source, directory, {"RELIQ_TEST_BROKER": live, "RELIQ_TEST_DEAD": dead})
    # Beside the conftest of this folder, pytest would mark it as a test of this folder.
    adapter = shutil.copy(HERE / "programs" / "kombu_functional.py", directory)
    found = suite.run([adapter], timeout_s=300)
    assert_balanced(live)
    assert_balanced(live, {"global_keyprefix": "_prefixed_"})
    return {name.removeprefix("::"): value for name, value in found.items()}


def test_kombus_functional_classes_pass(source_cache, tmp_path, redis_url):
    """Every class of Kombu's functional suite passes, with and without a key prefix."""
    dead = f"reliq://127.0.0.1:{free_port()}/0"
    found = run(source_cache, tmp_path, redis_url, dead)
    assert_as_expected(found, failing={}, skipped={}, at_least=88)
