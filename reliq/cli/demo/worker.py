"""The Celery processes of the demo: started, killed, stopped, never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING

from ..endings import interrupts_deferred

if TYPE_CHECKING:
    from pathlib import Path

    from .record import Settings

PROCESSES = 2
STOPS_WITHIN_S = 20.0
PUBLISHES_WITHIN_S = 600.0
APP = "reliq.cli.demo.app"

# What Celery's command line would read instead of what the demo says.
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
    """A process of the demo ended by itself; the text ends with its log."""


def _failed(name: str, code: int, log: Path) -> ProcessFailed:
    text = log.read_text(errors="replace")[-3000:]
    return ProcessFailed(f"the {name} ended with code {code}. Its log:\n{text}")


def publish(settings: Settings, folder: Path) -> None:
    """Publish the tasks from a process of its own; raises ProcessFailed."""
    path = folder / "publisher.log"
    with path.open("wb") as log, ExitStack() as stack:
        with interrupts_deferred():
            process = _started([sys.executable, "-m", APP], settings, folder, log)
            stack.callback(process.wait)
            stack.callback(process.kill)  # first, unless it has ended
        code = process.wait(PUBLISHES_WITHIN_S)
    if code:
        raise _failed("publisher", code, path)


def _started(
    command: list[str], settings: Settings, folder: Path, log: IO[bytes]
) -> subprocess.Popen[bytes]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in FOREIGN_SETTINGS and not name.startswith("CELERY_")
    }
    return subprocess.Popen(  # noqa: S603 - our own command
        command,
        cwd=folder,
        # What a killed worker leaves in its temporary folder is then removed with ours.
        env={**kept, "TMPDIR": str(folder), **settings.to_environment()},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


class Worker:
    """One ``celery worker`` with its pool, in a process group of its own."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._name = f"{settings.process} worker"
        self._log = folder / f"{settings.process}.log"
        with self._log.open("wb") as log:
            command = [
                *(sys.executable, "-m", "celery", "-A", APP, "worker"),
                *("--pool", "prefork", "--concurrency", str(PROCESSES)),
                *("--hostname", f"{settings.process}@%h", "--loglevel", "WARNING"),
                *("--without-gossip", "--without-mingle", "--without-heartbeat"),
            ]
            self._process = _started(command, settings, folder, log)

    @property
    def pid(self) -> int:
        """The worker's process id, which is also its group's."""
        return self._process.pid

    def check(self) -> None:
        """Raise ProcessFailed if the worker is no longer running."""
        code = self._process.poll()
        if code is not None:
            raise _failed(self._name, code, self._log)

    def kill(self) -> None:
        """SIGKILL the worker and its pool processes, all at once."""
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def stop(self) -> None:
        """Ask for a warm shutdown, and kill what does not end in time."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOPS_WITHIN_S)
            except subprocess.TimeoutExpired:
                self.kill()
