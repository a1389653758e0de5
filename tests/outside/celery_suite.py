"""Celery's integration suite over reliq brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.outside import fetching
from tests.outside.suites import FAILED, Suite, assert_as_expected
from tests.support.audits import assert_balanced

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from tests.support.servers import RedisServer

FOLDER = "t/integration/"
MOST_BEATEN = 3


class CelerySuite:
    """The tests of some files, run as Celery's own CI runs them, but with fewer second tries.

    The tests mostly wait, so several processes share them; each has a worker, a Redis for results
    and a broker. Many tests wait a fixed time for another process, and lose that race on a busy
    machine. Celery marks them as `flaky` and runs such a test up to six times. Here a flaky test
    gets a second try, alone, and only if at most `MOST_BEATEN` tests have failed. Every other test
    runs once, within the time limit of the suite.
    """

    def __init__(
        self, cache: Path, directory: Path, start_redis: Callable[[], RedisServer]
    ) -> None:
        self.source = fetching.fetch_source("celery", cache)
        self.directory = directory
        self.start_redis = start_redis
        self.brokers: list[str] = []

    def run(
        self,
        files: Sequence[str],
        *,
        failing: Mapping[str, str],
        skipped: Mapping[str, str],
        at_least: int,
        racing: Mapping[str, str] | None = None,
        left_out: Mapping[str, str] | None = None,
        processes: int = 4,
        timeout_s: float,
    ) -> None:
        """Run the tests; fail unless each ended as listed and every message is accounted for."""
        arguments = ["-p", "celery.contrib.pytest", "-p", "no:timeout"]
        arguments += [f"--deselect={FOLDER}{name}" for name in left_out or {}]
        everything = [*arguments, *(f"{FOLDER}{name}" for name in files)]
        found = self._run("all", processes, everything, timeout_s)
        beaten = [name for name, (outcome, _) in found.items() if outcome == FAILED]
        beaten = [name for name in beaten if name not in {*failing, *(racing or {})}]
        if beaten and len(beaten) <= MOST_BEATEN:
            alone = [*arguments, "-m", "flaky", *(f"{FOLDER}{name}" for name in beaten)]
            again = self._run("alone", 1, alone, timeout_s)
            print(*(f"second try of {name}: {end[0]}\n" for name, end in again.items()))
            found |= again
        assert_as_expected(
            found, failing=failing, skipped=skipped, racing=racing, at_least=at_least
        )
        for broker in self.brokers:
            assert_balanced(broker)

    def _run(
        self, name: str, processes: int, arguments: Sequence[str], timeout_s: float
    ) -> dict[str, tuple[str, str]]:
        """Return the outcome of each test; keep a log of the run under *name*."""
        directory = self.directory / name
        directory.mkdir()
        environments = [self._environment() for _ in range(processes)]
        common = {"REDIS_HOST": "127.0.0.1", "WORKER_LOGLEVEL": "INFO"}  # as in Celery's tox.ini
        suite = Suite(self.source, directory, common, environments)
        found = suite.run(arguments, timeout_s=timeout_s)
        return {test.removeprefix(FOLDER): outcome for test, outcome in found.items()}

    def _environment(self) -> dict[str, str]:
        server = self.start_redis()
        broker = server.url("reliq", db=2)
        self.brokers.append(broker)
        return {
            "TEST_BROKER": broker,
            "TEST_BACKEND": server.url("redis", db=1),
            "REDIS_PORT": str(server.port),
        }
