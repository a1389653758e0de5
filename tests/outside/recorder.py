"""A pytest plugin for suites of others: writes each test's outcome to RELIQ_TEST_OUTCOMES.

A test that failed in any of its parts (set-up, call, a subtest, teardown) failed. One that its
authors expect to fail is `skipped` when it does.

A suite may be run by several processes (pytest-xdist). Each then has an environment of its own
from RELIQ_TEST_ENVIRONMENTS, set here because plugins are imported before their conftest.py.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

RANK = {"passed": 0, "skipped": 1, "failed": 2}
_outcomes: dict[str, tuple[str, str]] = {}
_worker = os.environ.get("PYTEST_XDIST_WORKER")

if _worker is not None:
    _own = json.loads(os.environ["RELIQ_TEST_ENVIRONMENTS"])
    os.environ.update(_own[int(_worker.removeprefix("gw"))])


def pytest_runtest_logreport(report):
    """Keep the worst outcome of a test's parts, with what was said of it."""
    if report.outcome == "passed" and report.when != "call":
        return
    known, _ = _outcomes.get(report.nodeid, ("passed", ""))
    if report.nodeid not in _outcomes or RANK[report.outcome] > RANK[known]:
        _outcomes[report.nodeid] = (report.outcome, report.longreprtext[-4000:])


def pytest_sessionfinish():
    """Write what was seen, by whoever hears of all tests."""
    if _worker is not None:
        return
    Path(os.environ["RELIQ_TEST_OUTCOMES"]).write_text(json.dumps(_outcomes), encoding="utf-8")
