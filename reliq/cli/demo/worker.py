"""The Celery processes of the demo: start, kill and stop them, and leave none behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from ..endings import interrupts_deferred

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .record import Settings

PROCESSES = 2
STOPS_WITHIN_S = 20.0
PUBLISHES_WITHIN_S = 600.0
APP = "reliq.cli.demo.app"

# Variables by which Celery's command line would override the demo's settings.
FOREIGN_SETTINGS = frozenset(
    {
        "APP",
        "BROKER_URL",
        "CONFIG_MODULE",
        "LOADER",
        "QUIET",
        "RESULT_BACKEND",
        "SKIP_CHECKS",
        "WORKDIR",
    }
)


class ProcessFailed(Exception):
    """A process of the demo ended unexpectedly; the text ends with its log."""


class Process:
    """A process and its children in a separate process group, killed when *stack* ends."""

    def __init__(
        self, name: str, command: Sequence[str], settings: Settings, folder: Path, stack: ExitStack
    ) -> None:
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in FOREIGN_SETTINGS and not name.startswith("CELERY_")
        }
        self._name, self._log = name, folder / f"{settings.process}.log"
        with self._log.open("wb") as log, interrupts_deferred():
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", *command],
                cwd=folder,
                # Temporary files of a killed worker are then removed with the demo's folder.
                env={**kept, "TMPDIR": str(folder), **settings.to_environment()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self.pid, self.wait = self._process.pid, self._process.wait
            stack.callback(self.kill)

    def check(self) -> None:
        """Raise ProcessFailed if the process has ended."""
        code = self._process.poll()
        if code is not None:
            text = self._log.read_text(errors="replace")[-3000:]
            raise ProcessFailed(f"the {self._name} ended with code {code}. Its log:\n{text}")

    def kill(self) -> None:
        """Send SIGKILL to the process and its children at once."""
        if self._process.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)
            self.wait()

    def stop(self) -> None:
        """Request a warm shutdown; kill the process if it does not end in time."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self.wait(STOPS_WITHIN_S)
            except subprocess.TimeoutExpired:
                self.kill()


def publish(settings: Settings, folder: Path) -> None:
    """Publish the tasks in a separate process; raises ProcessFailed."""
    with ExitStack() as stack:
        process = Process("publisher", [APP], settings, folder, stack)
        if process.wait(PUBLISHES_WITHIN_S):
            process.check()


def worker(settings: Settings, folder: Path, stack: ExitStack) -> Process:
    """Start a ``celery worker`` with its pool."""
    command = [
        *("celery", "-A", APP, "worker", "--pool", "prefork", "--concurrency", str(PROCESSES)),
        *("--hostname", f"{settings.process}@%h", "--loglevel", "WARNING"),
        *("--without-gossip", "--without-mingle", "--without-heartbeat"),
    ]
    return Process(f"{settings.process} worker", command, settings, folder, stack)
