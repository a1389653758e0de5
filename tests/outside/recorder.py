"""A pytest plugin for foreign suites that writes each test's outcome to RELIQ_TEST_OUTCOMES.

A test failed if any of its parts (set-up, call, a subtest, teardown) failed. A test that its
authors expect to fail is `skipped` if it fails.

Several processes may run a suite (pytest-xdist). Each of them has its own environment from
RELIQ_TEST_ENVIRONMENTS. It is set here because plugins are imported before the suite's conftest.py.
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
    """Keep the worst outcome of a test's parts, with its report."""
    if report.outcome == "passed" and report.when != "call":
        return
    known, _ = _outcomes.get(report.nodeid, ("passed", ""))
    if report.nodeid not in _outcomes or RANK[report.outcome] > RANK[known]:
        _outcomes[report.nodeid] = (report.outcome, report.longreprtext[-4000:])


def pytest_sessionfinish():
    """Write all outcomes, in the process that receives the reports of all tests."""
    if _worker is not None:
        return
    Path(os.environ["RELIQ_TEST_OUTCOMES"]).write_text(json.dumps(_outcomes), encoding="utf-8")
