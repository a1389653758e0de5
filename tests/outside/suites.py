"""A foreign pytest suite, run in its own process and compared with a list of outcomes."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.processes import Process
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]

# The possible outcomes of a foreign test.
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


class Suite:
    """Runs test files of a source tree, with an empty configuration and the recorder plugin.

    With several `environments`, as many processes share the tests.
    """

    def __init__(
        self,
        source: Path,
        directory: Path,
        env: Mapping[str, str],
        environments: Sequence[Mapping[str, str]] = (),
    ) -> None:
        self.source = source
        self.directory = directory
        self.environments = environments
        self.env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("CELERY", "PYTEST", "COV", "PYTHONWARNINGS", "TEST_"))
        } | {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}", **env}
        # Some tests start `celery` by name. This finds the one of this environment.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.env["PATH"] = path

    def run(
        self, arguments: Sequence[str | Path], *, timeout_s: float
    ) -> dict[str, tuple[str, str]]:
        """Return the outcome and the report of each test, by its id."""
        report = self.directory / "outcomes.json"
        settings = self.directory / "pytest.ini"
        settings.write_text("[pytest]\npython_classes = test_* Test*\nxfail_strict = true\n")
        command = [sys.executable, "-m", "pytest", "-q", "-c", settings, "--rootdir", self.source]
        command += ["-p", "no:cacheprovider", "-p", "tests.outside.recorder"]
        if self.environments:
            command += ["-n", str(len(self.environments)), "--dist", "worksteal"]
        process = Process(
            [*command, *arguments],
            log_path=self.directory / "suite.log",
            env={
                **self.env,
                "RELIQ_TEST_OUTCOMES": str(report),
                "RELIQ_TEST_ENVIRONMENTS": json.dumps(list(self.environments)),
            },
            cwd=self.source,
        )
        try:
            wait_until(
                lambda: not process.running,
                timeout_s=timeout_s,
                interval_s=0.2,
                what=lambda: f"the end of the suite:\n{process.tail()}",
            )
        finally:
            process.kill_group()
        assert report.exists(), process.tail()
        return {name: tuple(found) for name, found in json.loads(report.read_text()).items()}


def assert_as_expected(
    found: Mapping[str, tuple[str, str]],
    *,
    failing: Mapping[str, str],
    skipped: Mapping[str, str],
    racing: Mapping[str, str] | None = None,
    at_least: int,
) -> None:
    """Fail unless exactly the listed tests failed and were skipped, and enough tests ran.

    The *racing* tests may fail or pass, because of a race in the test itself.

    Each listed test has the reason, and names the project with the fault. A listed test that passes
    must be taken off the list.
    """
    wrong = []
    for name, (outcome, text) in sorted(found.items()):
        if name in (racing or {}) and outcome in {FAILED, PASSED}:
            continue
        expected = FAILED if name in failing else SKIPPED if name in skipped else PASSED
        if outcome != expected:
            wrong.append(f"{name}: {outcome}, expected {expected}\n{text}")
    wrong += [f"{name}: listed, but not run" for name in {*failing, *skipped} - {*found}]
    counts = Counter(outcome for outcome, _ in found.values())
    assert not wrong, f"{dict(counts)}\n" + "\n\n".join(wrong)
    lost = [name for name in racing or {} if found.get(name, ("",))[0] == FAILED]
    assert counts[PASSED] + len(lost) >= at_least, dict(counts)
