"""The keeper: starts the server of one folder, watches it, and ends it when it is unused.

The keeper is a separate program. :mod:`.start` passes this text to a bare Python on standard input,
so it imports only the standard library. The keeper may die at any time: the kernel then ends the
server, so no server runs unwatched. When the server ends, the keeper ends too. The next connect
starts both. The *server* holds ``server.lock`` through an inherited descriptor.

The server uses ``appendfsync no``. It writes before it replies, so its death loses nothing. The
keeper's fdatasync limits the loss by a power failure. (With ``everysec``, the server replies before
it writes while an fsync is in progress.)

A server whose disk is full confirms some commands that are not in its log. Therefore, the keeper
makes it refuse new messages earlier, by a ``maxmemory`` of 1; all other steps go on.
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
from contextlib import suppress

PASSIVE = "look:"
"""The prefix of the names of connections that do not keep a broker alive."""
_TICK_S = 0.5
ROOM = 32_000_000
"""The free space, in bytes, below which a broker stores nothing."""
FULL = 100_000
"""The free space, in bytes, that a first start needs."""
_PR_SET_PDEATHSIG = 1
_SOCKET, _CLOSING = "broker.sock", "broker.closing"
_ENDED_ON_DEMAND = {0, signal.SIGKILL, signal.SIGTERM}
_NUMBER = (int, float)
_TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("boot", "by", "binary", "server", "run", "failed"), str),
    **dict.fromkeys(("maxmemory", "idle", "since", "failed_at", "scarce"), _NUMBER),
    "version": list,
}


def sync(path: str) -> None:
    """Write a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        getattr(os, "fdatasync", os.fsync)(descriptor)  # macOS has only fsync
    finally:
        os.close(descriptor)


def logs(folder: str = ".") -> list[str]:
    """Return the paths of the data files; Redis before 7 has one."""
    place = f"{glob.escape(folder)}/appendonly"
    return sorted(glob.glob(f"{place}dir/*")) or glob.glob(f"{place}.aof")


def open_own(path: str, flags: int = os.O_RDWR | os.O_CREAT) -> int:
    """Open a file that only this user may open."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def lock(descriptor: int, patience_s: float = 0.1, how: int = fcntl.LOCK_EX) -> bool:
    """Take a lock; return False if another process holds it for longer than *patience_s*."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.002)
        else:
            return True


def write_state(descriptor: int, state: object) -> None:
    """Write the state in one write, without changing the size of the file."""
    with suppress(OSError):  # a full disk
        os.pwrite(descriptor, json.dumps(state).encode().ljust(4096), 0)


def read_state(descriptor: int) -> dict[str, object]:
    """Return the state in a file, without entries of a wrong type; {} if it is unreadable."""
    with suppress(ValueError, TypeError):
        state = dict(json.loads(os.pread(descriptor, 65_536, 0)))
        return {k: state[k] for k in state if isinstance(state[k], _TYPES.get(k, object))}
    return {}


def free_space(folder: str = ".") -> int:
    """Return the free bytes of the disk."""
    space = os.statvfs(folder)
    return space.f_bavail * space.f_frsize


def ask(path: str, command: str) -> bytes:
    """Return the reply to one command, sent over a new connection; b"" after a failure."""
    reply = b""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as talk:
        talk.settimeout(2)
        talk.connect(path)
        talk.sendall(f"CLIENT SETNAME {PASSIVE}keeper\r\n{command}\r\nQUIT\r\n".encode())
        while more := talk.recv(65_536):
            reply += more
        return reply.partition(b"\r\n")[2]
    return b""


def _is_used(path: str = _SOCKET) -> bool:
    """Whether a client is connected. Also True if the server does not answer."""
    clients = [line for line in ask(path, "CLIENT LIST").splitlines() if line.startswith(b"id=")]
    return not clients or any(f" name={PASSIVE}".encode() not in line for line in clients)


def _reset() -> None:
    """Reset the signals, limits and CPU affinity inherited from the starting process."""
    for number in signal.valid_signals() - {signal.SIGPIPE}:  # Python and the server ignore it
        with suppress(OSError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for name in filter(lambda name: name.startswith("RLIMIT_"), dir(resource)):
        number = getattr(resource, name)
        with suppress(OSError, ValueError):
            resource.setrlimit(number, (resource.getrlimit(number)[1],) * 2)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


class Keeper:
    """The keeper of one folder, its working directory. *held*: the descriptor of its lock."""

    def __init__(self, config: dict[str, object], held: int) -> None:
        self.config, self.lock = config, held
        own: dict[str, object] = config["state"]  # type: ignore[assignment]
        self.state = {**read_state(held), **own}
        self.here = os.stat(".")
        self.pid = 0  # of the server
        self.log_at = os.fstat(1).st_size
        self.is_up = False
        self.free, self.refuses = free_space(), False
        self.synced: dict[str, tuple[int, int]] = {}

    def run(self) -> None:
        """Start the server; then watch it until one of the two ends."""
        server_lock = open_own("server.lock")
        if not lock(server_lock):  # only where the kernel ends no server, or as it ends one
            self.say("ends a server that has lost its keeper")
            ask(_SOCKET if os.path.exists(_SOCKET) else _CLOSING, "SHUTDOWN NOSAVE")
            if not lock(server_lock, 30):
                sys.exit("a server without a keeper does not end: kill it")
        write_state(self.lock, self.state)
        os.set_inheritable(server_lock, True)
        keeper = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            self._become_server(keeper)
        os.close(server_lock)
        threading.Thread(target=self._await_end, daemon=True).start()
        # not PING, which fails on a full disk
        while (reply := ask(_SOCKET, "DBSIZE")).startswith(b"-LOADING") or not reply:
            time.sleep(0.002)
        self.is_up = True
        with suppress(OSError):  # a full disk; the stamp precedes the first publish
            descriptor = open_own("stamp.new", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            stamp = {name: self.state[name] for name in ("server", "version")}
            os.write(descriptor, json.dumps(stamp).encode())
            os.fsync(descriptor)
            os.rename("stamp.new", "stamp")
        run = ask(_SOCKET, "INFO server").partition(b"run_id:")[2].split(b"\r")[0].decode()
        self.state = {**self.state, "run": run, "since": time.time()}
        self._refuse_without_room()
        write_state(self.lock, self.state)
        self._watch()

    def _become_server(self, keeper: int) -> None:
        """Replace this forked process by the server, which the kernel ends with the keeper."""
        try:
            with suppress(ImportError, OSError, AttributeError):  # macOS
                import ctypes  # noqa: PLC0415 - only here, to keep the keeper small

                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == keeper:
                command: list[str] = self.config["command"]  # type: ignore[assignment]
                os.execve(command[0], command, {})
        except OSError as exc:
            self.say(str(exc))
        finally:
            os._exit(1)

    def _await_end(self) -> None:
        """Exit when the server ends; record its last log lines if it failed. Runs in a thread."""
        status = os.waitpid(self.pid, 0)[1]
        text = f"the server has ended ({status})"
        if status not in _ENDED_ON_DEMAND or not self.is_up:
            text += f": {self._last_words()}"
            failure = {"failed": text, "failed_at": time.time()}
            write_state(self.lock, {**read_state(self.lock), **failure})
        self.say(text)
        os._exit(0)

    def _last_words(self) -> str:
        lines = []
        with suppress(OSError), open("broker.log", encoding="utf-8", errors="replace") as log:
            log.seek(self.log_at)
            lines = [line.strip() for line in log if line.strip()]
        if free_space() < FULL:
            lines.append("the disk is full")  # the log cannot contain it
        return " | ".join(lines[-4:])

    # -- watching

    def _watch(self) -> None:
        used = polled = time.monotonic()
        while True:
            time.sleep(_TICK_S)
            try:
                is_here = os.path.samestat(os.stat(str(self.config["folder"])), self.here)
            except OSError:
                is_here = False
            if not is_here:
                self.say("the folder was removed, moved or replaced: the server ends")
                os.kill(self.pid, signal.SIGKILL)
                self._sync()
                sys.exit(0)
            self._sync()
            there = read_state(self.lock)
            if self.state.keys() <= there.keys():
                self.state = there  # a client may have raised "idle"
            else:
                write_state(self.lock, self.state)  # it was damaged
            self._refuse_without_room()
            now, idle = time.monotonic(), float(str(self.state["idle"]))
            if idle and now - polled >= min(idle / 10, 10):
                polled = now
                if _is_used():
                    used = now
                elif now - used >= idle:
                    self._end_unused(idle)

    def _refuse_without_room(self) -> None:
        """Let the server refuse messages while the disk is nearly full, or would be in a second."""
        free, before = free_space(), self.free
        self.free = free
        margin = ROOM // 4 if self.refuses else 0  # the server's log has a line for each change
        scarce = free - 2 * max(before - free, 0) < ROOM + margin
        if scarce != self.refuses:
            self.state = {**self.state, "scarce": scarce}
            write_state(self.lock, self.state)  # first: clients name it as the reason
            limit = 1 if scarce else self.state["maxmemory"]
            if ask(_SOCKET, f"CONFIG SET maxmemory {limit}").startswith(b"+OK"):
                self.refuses = scarce
                self.say(f"{free} bytes of disk are free: " + ("refuses" if scarce else "accepts"))

    def _sync(self) -> None:
        try:
            for path in logs():
                status = os.stat(path)
                now = (status.st_ino, status.st_size)
                if self.synced.get(path) != now:
                    sync(path)
                    sync(os.path.dirname(path))
                    self.synced[path] = now
        except FileNotFoundError:
            pass  # a rewrite of the log has removed the file
        except OSError as exc:
            self.say(f"the log cannot be synced: {exc}")

    def _end_unused(self, idle: float) -> None:
        """Rename the socket, then check once more: earlier clients count, later ones must wait."""
        with suppress(OSError):  # the folder was removed: the next round detects it
            os.rename(_SOCKET, _CLOSING)
            # the server accepts this connection after all earlier ones
            if _is_used(_CLOSING) or ask(_CLOSING, "SHUTDOWN").startswith(b"-"):
                os.rename(_CLOSING, _SOCKET)
            else:
                self.say(f"no client for {idle:g} s: the server ends")

    def say(self, text: str) -> None:
        """Write a line to the log of the folder."""
        with suppress(OSError):
            print(f"{os.getpid()}:K {time.strftime('%d %b %Y %H:%M:%S')} * {text}", flush=True)


def main() -> None:
    """Run the keeper with the configuration that :mod:`.start` passes."""
    config = json.loads(sys.argv[1])
    _reset()
    held = open_own("keeper.lock")
    # Without the lock, another keeper runs. After the fork, the starter reaps its child.
    if not lock(held) or os.fork():
        os._exit(0)
    os.setsid()
    Keeper(config, held).run()


if __name__ == "__main__":
    main()
