"""Real Celery workers (and beat) as subprocesses."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.processes import Process
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.support.journal import Journal

ROOT = Path(__file__).resolve().parents[2]
TASKS_APP = "tests.integration.apps.tasks"
POOLS = ("prefork", "threads", "solo", "gevent")


def pools(*core: str, of: Sequence[str] = POOLS) -> list[Any]:
    """Return the pools *of* a test as parameters; pools that are not in *core* are marked long.

    For a test that is not about the pool: CI runs it in one or two pools, and the command for long
    tests runs it in all.
    """
    by_hand = (pytest.mark.slow, pytest.mark.long)
    return [pool if pool in core else pytest.param(pool, marks=by_hand) for pool in of]


def app_environment(
    broker: str | None,
    journal: Journal,
    config: Mapping[str, Any] | None = None,
    extra: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the environment with the broker and settings of tests.integration.apps."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CELERY", "PYTEST", "COV", "PYTHONWARNINGS"))
    }
    environment["PYTHONPATH"] = str(ROOT)
    environment["PYTHONUNBUFFERED"] = "1"
    environment["RELIQ_TEST_JOURNAL"] = journal.path
    environment["RELIQ_TEST_CONFIG"] = json.dumps(dict(config or {}))
    if broker is not None:
        environment["RELIQ_TEST_BROKER"] = broker
    environment.update(extra or {})
    return environment


class CeleryWorker(Process):
    """`celery -A app worker` in its own process group.

    `config` are Celery settings for the app (see tests/integration/apps); `arguments` go to the
    worker's command line, `celery_arguments` before it. Without `mingle`, it does not wait a
    second for neighbours at its start.
    """

    def __init__(
        self,
        broker: str | None,
        journal: Journal,
        *,
        directory: Path,
        name: str,
        app: str = TASKS_APP,
        pool: str = "prefork",
        concurrency: int = 1,
        queues: Sequence[str] = (),
        config: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        celery_arguments: Sequence[str] = (),
        loglevel: str = "INFO",
        mingle: bool = False,
    ) -> None:
        self.name = f"{name}@test"
        self.pool = pool
        command = [sys.executable, "-m", "celery", "-A", app, *celery_arguments, "worker"]
        command += ["--pool", pool, "--hostname", self.name, "--loglevel", loglevel]
        if pool != "solo":
            command += ["--concurrency", str(concurrency)]
        if not mingle:
            command += ["--without-mingle"]
        if queues:
            command += ["--queues", ",".join(queues)]
        super().__init__(
            [*command, *arguments],
            log_path=directory / f"{name}.log",
            env=app_environment(broker, journal, config, env),
            cwd=directory,
        )

    def wait_ready(self, timeout_s: float = 90.0) -> CeleryWorker:
        """Wait until the worker reports that it is ready, after it has begun to consume."""
        self.wait_log(" ready.", timeout_s=timeout_s)
        return self

    def wait_log(self, text: str, *, times: int = 1, timeout_s: float = 60.0) -> None:
        """Wait until the log contains `text` *times* times; fail if the worker ends before."""

        def found() -> bool:
            if self.log().count(text) >= times:
                return True
            if not self.running:
                # Text written between the two checks counts too.
                if self.log().count(text) >= times:
                    return True
                raise AssertionError(f"{self.name} ended ({self.returncode}):\n{self.tail()}")
            return False

        wait_until(
            found,
            timeout_s=timeout_s,
            what=lambda: f"{text!r} in the log of {self.name}:\n{self.tail()}",
        )

    def terminate(self) -> None:
        """Request a warm shutdown (SIGTERM)."""
        self.signal(signal.SIGTERM)

    def quit(self) -> None:
        """Request a cold shutdown (SIGQUIT)."""
        self.signal(signal.SIGQUIT)

    def shut_down(self, timeout_s: float = 60.0) -> int:
        """Request a warm shutdown, wait for it, and return the exit code."""
        self.terminate()
        return self.wait(timeout_s)


class CeleryBeat(Process):
    """`celery -A app beat` with its schedule file in `directory`."""

    def __init__(
        self,
        broker: str,
        journal: Journal,
        *,
        directory: Path,
        app: str = TASKS_APP,
        config: Mapping[str, Any] | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        command = [sys.executable, "-m", "celery", "-A", app, "beat", "--loglevel", "INFO"]
        command += ["--schedule", str(directory / "beat-schedule"), "--pidfile="]
        super().__init__(
            [*command, *arguments],
            log_path=directory / "beat.log",
            env=app_environment(broker, journal, config),
            cwd=directory,
        )
