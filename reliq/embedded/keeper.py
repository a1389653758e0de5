"""The keeper: starts the server of one folder, watches it, and ends it when nobody uses it.

A program of its own: :mod:`.start` hands this text to a bare Python by standard input, so it
imports the standard library only. Nothing depends on its life: the *server* holds ``server.lock``
through a descriptor that it inherits. A new keeper finds the server there and only watches it. When
the server ends, the keeper ends too, and the next connect starts both.

The server has ``appendfsync no``: it writes before it replies, so its death loses nothing; the
keeper's fdatasync bounds the loss by a power cut. (With ``everysec`` it replies before it writes
while an fsync is under way.)
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import socket
import stat
import sys
import threading
import time

PAUSE_S = 3.0
"""No start for so long after a failure: longer than the 2 s between two connects of Kombu."""
LOOKS = "look:"
"""The beginning of the name of a connection that keeps no broker alive."""
_TICK_S = 0.5
_FILES = 65_536
_SCARCE = 100_000
_SOCKET, _CLOSING = "broker.sock", "broker.closing"
_ENDED_ON_DEMAND = {0, signal.SIGKILL, signal.SIGTERM}


def sync(path: str) -> None:
    """Bring a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        getattr(os, "fdatasync", os.fsync)(descriptor)  # macOS has the latter only
    finally:
        os.close(descriptor)


def logs(folder: str = ".") -> list[str]:
    """Return the paths of the files that hold the data."""
    inside = os.path.join(folder, "appendonlydir")
    if os.path.isdir(inside):
        return [os.path.join(inside, name) for name in sorted(os.listdir(inside))]
    single = os.path.join(folder, "appendonly.aof")
    return [single] if os.path.exists(single) else []


def open_own(path: str, flags: int) -> int:
    """Open a plain file of this user; raises PermissionError for anything else, untouched."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        raise
    except OSError as exc:
        raise PermissionError(f"{path} cannot be opened ({exc.strerror})") from exc
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(descriptor)
        raise PermissionError(f"{path} is not this user's own plain file")
    os.fchmod(descriptor, 0o600)
    return descriptor


def lock(descriptor: int, patience_s: float = 0.0) -> bool:
    """Take a lock; False where another process holds it."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.002)
        else:
            return True


def write_state(descriptor: int, state: object) -> None:
    """Write the state: in one write, within the size that the file has."""
    try:
        os.pwrite(descriptor, json.dumps(state).encode().ljust(4096), 0)
    except OSError:
        pass  # a full disk


def read_state(descriptor: int) -> dict[str, object]:
    """Return the state in a file; {} before there is any."""
    try:
        said = json.loads(os.pread(descriptor, 65_536, 0) or b"{}")
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def ask(path: str, command: str) -> bytes:
    """Return the reply to one command, over a connection of its own; raises OSError."""
    reply = b""
    with socket.socket(socket.AF_UNIX) as talk:
        talk.settimeout(2)
        talk.connect(path)
        talk.sendall(f"CLIENT SETNAME {LOOKS}keeper\r\n{command}\r\nQUIT\r\n".encode())
        while True:
            more = talk.recv(65_536)
            if not more:
                return reply.partition(b"\r\n")[2]
            reply += more


def _ask(command: str, path: str = _SOCKET) -> bytes:
    try:
        return ask(path, command)
    except OSError:
        return b""


def _is_used(path: str = _SOCKET) -> bool:
    """Whether a client is connected, or the server does not answer: it may have some."""
    clients = [line for line in _ask("CLIENT LIST", path).splitlines() if line.startswith(b"id=")]
    return not clients or any(f" name={LOOKS}".encode() not in line for line in clients)


def _reset() -> None:
    """Take off what the starter's process had: nothing of it sticks to the server."""
    # Python ignores SIGPIPE, and so does the server.
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE}:
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            pass
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.umask(0o077)
    for name in filter(lambda name: name.startswith("RLIMIT_"), dir(resource)):
        number = getattr(resource, name)
        hard = resource.getrlimit(number)[1]
        soft = _FILES if name == "RLIMIT_NOFILE" and not 0 <= hard < _FILES else hard
        try:
            resource.setrlimit(number, (soft, hard))
        except (OSError, ValueError):
            pass
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


class Keeper:
    """One keeper of one folder, which is its working directory; it holds *held*, its lock."""

    def __init__(self, config: dict[str, object], held: int) -> None:
        self.config, self.lock = config, held
        self.state: dict[str, object] = config["state"]  # type: ignore[assignment]
        self.here = os.stat(".")
        self.pid = 0  # of the server; 0: another keeper has started it
        self.log_at = os.fstat(1).st_size
        self.is_up = False
        self.synced: dict[str, tuple[int, int]] = {}

    def run(self) -> None:
        """Start the server, or find it there; then watch until one of the two ends."""
        former = read_state(self.lock)
        try:
            self.server_lock = open_own("server.lock", os.O_RDWR | os.O_CREAT)
        except OSError as exc:
            self.fail(str(exc))
        if lock(self.server_lock):
            self.state.update(
                {key: former[key] for key in ("failed", "failed_at") if key in former}
            )
            write_state(self.lock, self.state)
            self._start()
        else:
            self._adopt(former)
        self.is_up = True
        self.line = socket.socket(socket.AF_UNIX)  # it reaches the server without a folder, too
        try:
            self.line.connect(_SOCKET)
            self.line.sendall(f"CLIENT SETNAME {LOOKS}keeper\r\n".encode())
        except OSError:
            pass
        write_state(self.lock, {**self.state, "since": time.time()})
        self._watch()

    def _adopt(self, former: dict[str, object]) -> None:
        if former.get("boot", self.state["boot"]) != self.state["boot"]:
            self.fail("a server on another machine uses this folder: one machine at a time")
        self.state = former or self.state
        if os.path.exists(_CLOSING) and not os.path.exists(_SOCKET):
            os.rename(_CLOSING, _SOCKET)  # a keeper was killed as it ended the server
        self.say("watches a server that another keeper had started")
        threading.Thread(target=self._await_end, daemon=True).start()
        while _ask("DBSIZE").startswith(b"-LOADING"):
            time.sleep(0.05)

    def _start(self) -> None:
        arguments = [str(self.state["binary"]), *self.config["arguments"]]  # type: ignore[misc]
        self.pid = os.fork()
        if not self.pid:
            try:
                os.setsid()
                os.set_inheritable(self.server_lock, True)
                os.execve(arguments[0], arguments, {})
            finally:
                os._exit(127)
        os.close(self.server_lock)
        threading.Thread(target=self._await_end, daemon=True).start()
        while not _ask("DBSIZE").startswith(b":"):  # PING tells of a full disk
            time.sleep(0.002)
        try:  # before any client publishes: from now on the folder is one that had data
            stamp = {name: self.state[name] for name in ("server", "version")}
            descriptor = open_own("stamp.new", os.O_RDWR | os.O_CREAT)
            os.write(descriptor, json.dumps(stamp).encode())
            os.fsync(descriptor)
            os.rename("stamp.new", "stamp")
        except OSError as exc:
            self.say(f"no stamp can be written: {exc}")

    def _await_end(self) -> None:
        """End with the server, in a thread of its own; remember its last words if it failed."""
        status = 0
        if self.pid:
            status = os.waitpid(self.pid, 0)[1]
        else:
            fcntl.flock(self.server_lock, fcntl.LOCK_EX)
        if status not in _ENDED_ON_DEMAND or not self.is_up:
            self.fail(f"the server has ended ({status}): {self._last_words()}")
        self.say("the server has ended")
        os._exit(0)

    def _last_words(self) -> str:
        with open("broker.log", encoding="utf-8", errors="replace") as log:
            log.seek(self.log_at)
            lines = [line.strip() for line in log.read()[-4000:].splitlines() if line.strip()]
        disk = os.statvfs(".")
        if disk.f_bavail * disk.f_frsize < _SCARCE:
            lines.append("the disk is full")  # and with it the log
        told = [line for line in lines if " # " in line and "overcommit" not in line]
        return " | ".join((told or lines)[-3:] + lines[-1:])

    # -- watching

    def _watch(self) -> None:
        used = polled = time.monotonic()
        while True:
            idle = float(str(read_state(self.lock).get("idle", 0)))  # a client may raise it
            time.sleep(min(_TICK_S, idle / 4) if idle else _TICK_S)
            self._require_folder()
            self._sync()
            now = time.monotonic()
            if idle and now - polled >= min(idle / 10, 10):
                polled = now
                if _is_used():
                    used = now
                elif now - used >= idle:
                    self._end_unused(idle)

    def _require_folder(self) -> None:
        """End where the folder was removed, moved or replaced: nothing is written any more."""
        try:
            if os.path.samestat(os.stat(str(self.config["folder"])), self.here):
                return
        except (FileNotFoundError, NotADirectoryError):
            pass
        self.say("the folder was removed, moved or replaced: the server ends")
        self.line.sendall(b"SHUTDOWN NOSAVE\r\n")
        sys.exit(0)

    def _sync(self) -> None:
        try:
            for path in logs():
                found = os.stat(path)
                now = (found.st_ino, found.st_size)
                if self.synced.get(path) != now:
                    sync(path)
                    if path not in self.synced:
                        sync(os.path.dirname(path))
                    self.synced[path] = now
        except FileNotFoundError:
            pass  # a rewrite has removed it meanwhile
        except OSError as exc:
            self.say(f"the log cannot be synced: {exc}")

    def _end_unused(self, idle: float) -> None:
        """Close the door, then look again: earlier clients are seen, later ones wait outside."""
        try:
            os.rename(_SOCKET, _CLOSING)
            # The connection that asks is accepted after all that came before.
            if _is_used(_CLOSING) or _ask("SHUTDOWN", _CLOSING).startswith(b"-"):
                os.rename(_CLOSING, _SOCKET)
            else:
                self.say(f"nobody has used it for {idle:g} s: it ends")
        except OSError:
            pass  # the folder was removed: seen next

    # -- telling

    def say(self, text: str) -> None:
        """Write a line into the log of the folder."""
        try:
            print(f"{os.getpid()}:K {time.strftime('%d %b %Y %H:%M:%S')} * {text}", flush=True)
        except OSError:
            pass

    def fail(self, text: str) -> None:
        """Remember a failure, for who connects within the pause; end."""
        self.say(text)
        failure = {"failed": text, "failed_at": time.time()}
        write_state(self.lock, {**read_state(self.lock), **failure})
        os._exit(1)


def main() -> None:
    """Run, from the arguments that :mod:`.start` gives."""
    config = json.loads(sys.argv[1])
    _reset()
    os.chdir(config["folder"])
    held = open_own("keeper.lock", os.O_RDWR | os.O_CREAT)
    # Without it another keeper is there. The starter has a child to wait for, and no zombie.
    if not lock(held, 0.1) or os.fork():
        os._exit(0)
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    Keeper(config, held).run()


if __name__ == "__main__":
    main()
