"""A nursery forks Python programs from a process that has already made their imports.

The imports of third-party code take most of a second of processor time in a Celery worker, and a
third of a second in a command of reliq. The tests start some thousand of both. So the first
program of a test process starts a nursery. It imports the third-party modules, but no application,
and of reliq only the modules that Kombu loads by itself. It then forks once for each program. The
child is a normal process with its own session, environment, directory and files, and the program
runs as ``__main__``. It ends as any Python process, and the nursery reports its exit code.

A program is started as a new process if its environment configures Python itself, if it patches
imported modules (gevent, eventlet), or if RELIQ_TEST_FRESH=1 is set.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MODULES = ("celery", "reliq.cli")
"""Modules of programs that may be forked."""
IMPORTS = (
    *("celery.bin.celery", "celery.bin.worker", "celery.apps.worker", "celery.apps.beat"),
    *("celery.worker.consumer", "celery.worker.strategy", "celery.worker.autoscale"),
    *("celery.concurrency.prefork", "celery.concurrency.solo", "celery.concurrency.thread"),
    *("celery.backends.redis", "celery.app.amqp", "celery.app.control", "celery.app.events"),
    *("celery.app.log", "celery.loaders.app", "celery.fixups.django", "celery.events.state"),
    *("kombu.transport.virtual", "kombu.pidbox", "kombu.asynchronous.hub", "kombu.pools"),
    *("redis", "redis.cluster", "redis.sentinel", "hiredis", "click", "asyncio", "sqlite3"),
)
# Prefixes of variables that configure Python at its start (except the two below), or Celery, Kombu
# and Billiard at their import.
_SPEAKS = ("PYTHON", "LD_", "LC_", "LANG", "COV", "AUTOSCALE_", "C_", "CELERY_", "KOMBU_")
_SET_HERE = frozenset({"PYTHONPATH", "PYTHONUNBUFFERED"})
# Entries of PYTHONPATH that replace modules that the nursery has imported, or would have.
_SHADOWED = ("reliq", "sitecustomize.py", "usercustomize.py")
_ROOT = Path(__file__).resolve().parents[2]
_PR_SET_PDEATHSIG = 1
_LONGEST = 1 << 20
# The environment of the nursery; each program gets later changes of a test with its request. The
# tests' own configuration removes the variable that is omitted here.
_ENVIRON = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def may_be_forked(command: Sequence[str], env: Mapping[str, str] | None) -> bool:
    """Whether a nursery may run this command."""
    if os.environ.get("RELIQ_TEST_FRESH") or not hasattr(os, "pidfd_open"):
        return False
    if list(command[:2]) != [sys.executable, "-m"] or command[2] not in MODULES:
        return False
    environment = os.environ if env is None else env
    folders = {*map(Path, environment.get("PYTHONPATH", "").split(os.pathsep))} - {_ROOT, Path()}
    if any((folder / name).exists() for folder in folders for name in _SHADOWED):
        return False
    spoken = {name for name in {*environment, *_ENVIRON} if name.startswith(_SPEAKS)}
    differs = {name for name in spoken if environment.get(name) != _ENVIRON.get(name)}
    return not (differs - _SET_HERE or {"gevent", "eventlet"} & {*command})


class Child:
    """A program of the nursery, with the part of :class:`subprocess.Popen` that tests use."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self.returncode: int | None = None
        said = connection.recv(64)
        assert said.startswith(b"runs "), f"the nursery could not start it: {said!r}"
        self.pid = int(said.removeprefix(b"runs "))
        connection.setblocking(False)

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        with self._lock:
            if self.returncode is None:
                with contextlib.suppress(BlockingIOError):
                    said = self._connection.recv(64)
                    # The end of a nursery also ends its children.
                    self.returncode = int(said) if said else -signal.SIGKILL
                    self._connection.close()
            return self.returncode

    def wait(self, timeout: float = 3600) -> int:
        """Wait for its end; return the exit code."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            with contextlib.suppress(OSError, ValueError):  # closed: another thread read the code
                said = select.poll()
                said.register(self._connection, select.POLLIN)
                said.poll(1000 * min(left_s, 1))
        return code


class Nursery:
    """The nursery of this process, which ends with it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                env={name: value for name, value in _ENVIRON.items() if name not in _SET_HERE},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def start(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None,
        cwd: Path | None,
        stdout: BinaryIO,
        stderr: BinaryIO,
    ) -> Child:
        """Start a program."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = {
            "module": command[2],
            "arguments": list(command[3:]),
            "env": dict(os.environ if env is None else env),
            "cwd": str(Path.cwd() if cwd is None else cwd),
        }
        files = array.array("i", [theirs.fileno(), stdout.fileno(), stderr.fileno()])
        with theirs:
            self._socket.sendmsg(
                [json.dumps(request).encode()],
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)],
            )
        return Child(ours)

    def close(self) -> None:
        """End the nursery and all its programs."""
        self._socket.close()
        self._process.wait()


_nursery: list[Nursery] = []
_starting = threading.Lock()


def start(command: Sequence[str], **options: Any) -> Child:
    """Start a program in the nursery of this process; arguments as for Nursery.start."""
    with _starting:
        if not _nursery or _nursery[0].owner != os.getpid():
            _nursery[:] = [Nursery()]
    return _nursery[0].start(command, **options)


@atexit.register
def _end() -> None:
    for nursery in _nursery:
        if nursery.owner == os.getpid():
            nursery.close()


def run(
    command: Sequence[str], *, env: Mapping[str, str], timeout: float, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, like subprocess.run with captured output."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        child = start(command, env=env, cwd=cwd, stdout=out, stderr=errors)
        try:
            code = child.wait(timeout)
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            raise
        texts = []
        for file in (out, errors):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(command, code, *texts)


# -- in the nursery


class _Request:
    """A program to run, and the received files: the connection, stdout and stderr."""

    def __init__(self, message: bytes, files: Sequence[int]) -> None:
        self.__dict__.update(json.loads(message))
        self.connection, self.stdout, self.stderr = files


def _serve(requests: socket.socket) -> _Request | None:
    """Fork for each request; return it in each child, and None when no more requests can come."""
    selector = selectors.DefaultSelector()
    selector.register(requests, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is not requests:
                selector.unregister(key.fileobj)
                _tell_end(key.fd, *key.data)
                continue
            message, files, _, _ = socket.recv_fds(requests, _LONGEST, 3)
            if not message:
                return None
            request = _Request(message, files)
            pid = os.fork()
            if pid == 0:
                selector.close()
                return request
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, request.connection))
            os.close(request.stdout)
            os.close(request.stderr)


def _tell_end(pidfd: int, pid: int, connection: int) -> None:
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):  # no process waits for it.
        os.write(connection, b"%d" % os.waitstatus_to_exitcode(status))
    os.close(connection)
    os.close(pidfd)


def _run(request: _Request) -> NoReturn:
    """Become the program, and end as it does."""
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(request.stdout, 1)
    os.dup2(request.stderr, 2)
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.env)
    time.tzset()
    added = [path for path in request.env.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = [request.cwd, *added]
    unbuffered = bool(request.env.get("PYTHONUNBUFFERED"))
    for number, name in ((1, "stdout"), (2, "stderr")):
        before = getattr(sys, name)
        stream = io.TextIOWrapper(
            open(number, "wb", buffering=0 if unbuffered else -1, closefd=False),  # noqa: SIM115
            before.encoding,
            before.errors,
            line_buffering=number == 2,
            write_through=unbuffered,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.write(request.connection, b"runs %d" % os.getpid())
    for entry in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if int(entry) > 2:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(int(entry))
    sys.argv[:] = [request.module, *request.arguments]
    runpy.run_module(request.module, run_name="__main__", alter_sys=True)
    sys.exit()


def _main() -> None:
    del sys.path[0]  # the folder of this file
    for name in IMPORTS:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # collections in a child then do not copy shared pages
    requests = socket.socket(fileno=int(sys.argv[1]))
    request = _serve(requests)
    if request is not None:
        requests.detach()
        _run(request)


if __name__ == "__main__":
    _main()
