"""Celery's integration suite over brokers of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.outside import fetching
from tests.outside.suites import Suite, assert_as_expected
from tests.support.audits import assert_balanced
from tests.support.files import FileBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from tests.support.servers import RedisServer


class CelerySuite:
    """The tests of one or more files, run as Celery's own CI runs them, but never repeated.

    Celery repeats what fails up to five times, and ends what takes long. Without the plugins
    for that a test has one try, and all the time of the suite. The tests mostly wait, so
    several processes share them; each has a worker, a Redis for results and a broker.
    """

    def __init__(
        self, cache: Path, directory: Path, engine: str, start_redis: Callable[[], RedisServer]
    ) -> None:
        self.source = fetching.fetch_source("celery", cache)
        self.directory = directory
        self.engine = engine
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
        """Run them; fail unless each ended as listed and every message is accounted for."""
        environments = [self._environment(number) for number in range(processes)]
        common = {"REDIS_HOST": "127.0.0.1", "WORKER_LOGLEVEL": "INFO"}  # as in their tox.ini
        suite = Suite(self.source, self.directory, common, environments)
        arguments = ["-p", "celery.contrib.pytest", "-p", "no:timeout"]
        arguments += [f"--deselect=t/integration/{name}" for name in left_out or {}]
        arguments += [f"t/integration/{name}" for name in files]
        found = suite.run(arguments, timeout_s=timeout_s)
        assert_as_expected(
            {name.removeprefix("t/integration/"): value for name, value in found.items()},
            failing=failing,
            skipped=skipped,
            racing=racing,
            at_least=at_least,
        )
        for broker in self.brokers:
            assert_balanced(broker)

    def _environment(self, number: int) -> dict[str, str]:
        server = self.start_redis()
        if self.engine == "redis":
            broker = server.url("reliq", db=2)
        else:
            folder = self.directory / str(number)
            folder.mkdir()
            broker = FileBroker(folder).url()
        self.brokers.append(broker)
        return {
            "TEST_BROKER": broker,
            "TEST_BACKEND": server.url("redis", db=1),
            "REDIS_PORT": str(server.port),
        }
