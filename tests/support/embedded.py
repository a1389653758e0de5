"""Embedded brokers in tests: the processes of a folder, and a slow disk for its server."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from reliq.embedded.folder import Folder
from reliq.embedded.server import candidates
from tests.support.waiting import wait_until

_SLOW_FSYNC = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
static void nap(void) {
    const char *ms = getenv("SLOW_MS");
    if (ms && getpid() != (int)syscall(SYS_gettid)) usleep(atoi(ms) * 1000);
}
int fdatasync(int fd) { int (*real)(int) = dlsym(RTLD_NEXT, "fdatasync"); nap(); return real(fd); }
int fsync(int fd) { int (*real)(int) = dlsym(RTLD_NEXT, "fsync"); nap(); return real(fd); }
"""


def processes_below(directory: Path) -> dict[int, bool]:
    """Return keepers and servers of folders below, even if removed; True for a keeper."""
    return {pid: keeper for pid, (keeper, _) in folders_below(directory).items()}


def folders_below(directory: Path) -> dict[int, tuple[bool, str]]:
    """Return the same with the folder of each process."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            where = str((process / "cwd").readlink()).removesuffix(" (deleted)")
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
            command = (
                (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
            keeper = " -I -S " in command
            ours = keeper or "broker.sock" in command or "-server" in command
            if Path(where).is_relative_to(directory) and state != "Z" and ours:
                found[int(process.name)] = (keeper, where)
    return found


class Place:
    """A folder for a broker, whose processes are killed at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = Folder(str(path))

    @property
    def url(self) -> str:
        """Its URL."""
        return f"reliq-embedded:///{quote(str(self.path))}"

    def processes(self, *, keepers: bool | None = None) -> list[int]:
        """Return the pids of its processes, even if it was removed; optionally only *keepers*."""
        found = processes_below(self.path)
        return sorted(pid for pid, keeper in found.items() if keepers in {None, keeper})

    @property
    def servers(self) -> list[int]:
        """The servers, without children that rewrite a log."""
        return self.processes(keepers=False)

    @property
    def keepers(self) -> list[int]:
        """The keepers."""
        return self.processes(keepers=True)

    def kill(self, *pids: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to some processes."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait_gone(self, timeout_s: float = 10.0) -> float:
        """Wait until all its processes have ended; return the elapsed seconds."""
        began = time.monotonic()
        wait_until(lambda: not self.processes(), timeout_s=timeout_s, what=self.log)
        return time.monotonic() - began

    def log(self) -> str:
        """Return the end of its log."""
        with contextlib.suppress(OSError):
            return (self.path / "broker.log").read_text(errors="replace")[-3000:]
        return f"{self.path}: no log; {self.processes()}"

    def close(self) -> None:
        """Kill all its processes and delete it; a file in its place keeps it from being made anew.

        A session that expects a lost connection back stays for a lease, and would start the broker.
        """
        while True:
            while pids := self.processes():
                self.kill(*pids)
                time.sleep(0.01)
            shutil.rmtree(self.path, ignore_errors=True)
            with contextlib.suppress(FileExistsError):
                self.path.touch(exist_ok=False)
            if self.path.is_file():
                break


def slow_disk(directory: Path, ms: int) -> str:
    """Return a server for `embedded_server` whose fsyncs take *ms* longer. Needs gcc."""
    library = directory / "slow_fsync.so"
    if not library.exists():
        (directory / "slow_fsync.c").write_text(_SLOW_FSYNC)
        command: list[Any] = ["gcc", "-shared", "-fPIC", "-o", library]
        subprocess.run([*command, directory / "slow_fsync.c", "-ldl"], check=True)
    server = directory / "slow-server"
    server.write_text(
        f'#!/bin/sh\nLD_PRELOAD={library} SLOW_MS={ms} exec {next(candidates())} "$@"\n'
    )
    server.chmod(0o755)
    return str(server)
