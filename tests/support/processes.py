"""A child process that a test starts, stops hard or softly, freezes, and never leaves behind."""

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

# Where there is setpriv (Linux), the kernel ends our processes with us, however we end.
_SETPRIV = shutil.which("setpriv")
_WITH_US = [] if _SETPRIV is None else [_SETPRIV, "--pdeathsig", "KILL"]

_running: weakref.WeakSet[Process] = weakref.WeakSet()


# How a command ends at Ctrl-C; a shell shows 130 for both. Where the interrupt meets an exec() of
# Python's own, such as one that makes a dataclass, the process ends by the signal, whoever has
# caught the exception.
INTERRUPTED = frozenset({130, -signal.SIGINT})


class Process:
    """One subprocess in a process group of its own, its output in a log file.

    What belongs to it (pool children, say) is in the same group, so that
    `kill_group` ends all of it and nothing else. Start it from a thread that
    lives as long as it should.
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
        """Whether the main process has not ended yet."""
        return self._popen.poll() is None

    @property
    def returncode(self) -> int | None:
        """The exit code (negative: the signal that ended it), None while it runs."""
        return self._popen.poll()

    def log(self) -> str:
        """Return all output so far."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def tail(self, lines: int = 40) -> str:
        """Return the last lines of the output, for a failure's message."""
        return "\n".join(self.log().splitlines()[-lines:])

    def signal(self, number: int) -> None:
        """Send a signal to the main process only; nothing if it has ended."""
        if self.running:
            os.kill(self.pid, number)

    def signal_group(self, number: int) -> None:
        """Send a signal to the whole group; nothing if the main process has ended."""
        if self.running:
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """SIGKILL the main process only, and wait for its end; its children are left alone."""
        self.signal(signal.SIGKILL)
        self._popen.wait(10)

    def kill_group(self) -> None:
        """SIGKILL the main process and everything in its group."""
        if not self._reaped_group:
            with contextlib.suppress(ProcessLookupError):  # all of it had ended already.
                os.killpg(self.pid, signal.SIGKILL)
            self._reaped_group = True
        self._popen.wait(10)
        _running.discard(self)

    def freeze(self) -> None:
        """SIGSTOP the whole group: alive, sockets open, nothing moves."""
        os.killpg(self.pid, signal.SIGSTOP)
        self._frozen = True

    def thaw(self) -> None:
        """SIGCONT the whole group."""
        if self._frozen:
            os.killpg(self.pid, signal.SIGCONT)
            self._frozen = False

    def wait(self, timeout_s: float = 60.0) -> int:
        """Wait for the main process to end and return its exit code; fail with its log."""
        try:
            return self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            message = f"pid {self.pid} still runs after {timeout_s:g} s:\n{self.tail()}"
            raise AssertionError(message) from None


@atexit.register
def _kill_leftovers() -> None:
    for process in list(_running):
        process.kill_group()
