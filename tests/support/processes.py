"""A child process that a test can start, stop, kill or freeze, and that never outlives it."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import weakref
from typing import TYPE_CHECKING

from tests.support import nursery

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# With setpriv (Linux), the kernel ends these processes whenever this process ends.
_SETPRIV = shutil.which("setpriv")
_WITH_US = [] if _SETPRIV is None else [_SETPRIV, "--pdeathsig", "KILL"]

_running: weakref.WeakSet[Process] = weakref.WeakSet()


# Exit codes of a command after Ctrl-C; a shell shows 130 for both. If the interrupt hits an exec()
# in Python's own code, such as one that makes a dataclass, the signal ends the process even if the
# exception is caught.
INTERRUPTED = frozenset({130, -signal.SIGINT})


class Process:
    """One subprocess in its own process group, with its output in a log file.

    Its children, such as those of a pool, are in the same group: `kill_group` ends all of them and
    no others. Start it from a thread that lives at least as long.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        log_path: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.command = [str(part) for part in command]
        self.log_path = log_path
        with log_path.open("ab") as log:
            self._popen: subprocess.Popen[bytes] | nursery.Child
            if nursery.may_be_forked(self.command, env):
                self._popen = nursery.start(self.command, env=env, cwd=cwd, stdout=log, stderr=log)
            else:
                self._popen = subprocess.Popen(
                    [*_WITH_US, *self.command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=None if env is None else dict(env),
                    cwd=cwd,
                    start_new_session=True,
                )
        self.pid = self._popen.pid
        self._frozen = False
        self._reaped_group = False
        _running.add(self)

    @property
    def running(self) -> bool:
        """Whether the main process is still running."""
        return self._popen.poll() is None

    @property
    def returncode(self) -> int | None:
        """The exit code (negative: the number of the signal that ended it); None while it runs."""
        return self._popen.poll()

    def log(self) -> str:
        """Return all output so far."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def tail(self, lines: int = 40) -> str:
        """Return the last lines of the output, for failure messages."""
        return "\n".join(self.log().splitlines()[-lines:])

    def signal(self, number: int) -> None:
        """Send a signal to the main process only, if it runs."""
        if self.running:
            os.kill(self.pid, number)

    def signal_group(self, number: int) -> None:
        """Send a signal to the whole group, if the main process runs."""
        if self.running:
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """SIGKILL the main process only, and wait for its end; its children are not affected."""
        self.signal(signal.SIGKILL)
        self._popen.wait(10)

    def kill_group(self) -> None:
        """SIGKILL the main process and everything in its group."""
        if not self._reaped_group:
            with contextlib.suppress(ProcessLookupError):  # all processes had already ended.
                os.killpg(self.pid, signal.SIGKILL)
            self._reaped_group = True
        self._popen.wait(10)
        _running.discard(self)

    def freeze(self) -> None:
        """SIGSTOP the whole group: alive, with open sockets, but not running."""
        os.killpg(self.pid, signal.SIGSTOP)
        self._frozen = True

    def thaw(self) -> None:
        """SIGCONT the whole group."""
        if self._frozen:
            os.killpg(self.pid, signal.SIGCONT)
            self._frozen = False

    def wait(self, timeout_s: float = 60.0) -> int:
        """Wait for the end of the main process; return its exit code, or fail with its log."""
        try:
            return self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            message = f"pid {self.pid} still runs after {timeout_s:g} s:\n{self.tail()}"
            raise AssertionError(message) from None


@atexit.register
def _kill_leftovers() -> None:
    for process in list(_running):
        process.kill_group()
