"""The keeper: starts the server of one folder, watches it, and ends it when nobody uses it.

A program of its own: :mod:`.start` hands this text to a bare Python by standard input. So it
imports the standard library only, and little of that. Nothing depends on its life: ``server.lock``
is held by the *server*, through a descriptor that it inherits, and ``keeper.lock`` by the
keeper. A killed keeper is replaced by one that finds the server there and only watches it. When the
server ends the keeper ends too, and the next connect starts both.

The server has ``appendfsync no``: it writes before it replies, so its death loses nothing; the
keeper's fdatasync bounds what a power cut takes. (With ``everysec`` it replies before it writes
while an fsync is under way.)
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import select
import signal
import socket
import stat
import sys
import time

PAUSE_S = 3.0
"""For so long after a failure nobody tries again: longer than the 2 s after which Kombu does."""
LOOKS = "look:"
"""The beginning of a connection's name that keeps no broker alive."""
STARTS_WITHIN_S = 30.0
_TICK_S = 0.5
_FILES = 65_536
_SCARCE = 100_000
_SOCKET, _CLOSING = "broker.sock", "broker.closing"


def sync(path: str) -> None:
    """Bring what is in a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if os.path.isdir(path):
            os.fsync(descriptor)
        else:
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


def write(path: str, value: object) -> None:
    """Replace a file by *value* as JSON: whole, and on the disk."""
    new = f"{path}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    descriptor = os.open(new, flags, 0o600)
    try:
        os.write(descriptor, json.dumps(value).encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(new, path)


def open_own(path: str, flags: int) -> int:
    """Open a plain file of this user; raises PermissionError for anything else, untouched."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        raise
    except OSError as exc:
        raise PermissionError(f"{path} cannot be opened ({exc.strerror})") from exc
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink > 1:
        os.close(descriptor)
        raise PermissionError(f"{path} is not this user's own plain file")
    if stat.S_IMODE(found.st_mode) != 0o600:  # noqa: PLR2004 - a mode
        os.fchmod(descriptor, 0o600)
    return descriptor


def lock(path: str, patience_s: float = 0.0) -> int | None:
    """Return the descriptor of a lock, or None where another process holds it."""
    descriptor = open_own(path, os.O_RDWR | os.O_CREAT)
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                return None
            time.sleep(0.001)
        else:
            return descriptor


def write_state(descriptor: int, state: object) -> None:
    """Write into a lock that is held: one write, which no reader finds half done."""
    try:
        os.pwrite(descriptor, json.dumps(state).encode().ljust(4096), 0)
    except OSError:
        pass  # a full disk


def read_state(descriptor: int) -> dict[str, object]:
    """Return the state in a lock; {} before its holder has written any."""
    try:
        said = json.loads(os.pread(descriptor, 65_536, 0) or b"{}")
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


class Talk:
    """A connection to the server: a command out, the reply back as bytes. Raises OSError."""

    def __init__(self, path: str = _SOCKET) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(2)
        try:
            self._socket.connect(path)
        except BaseException:
            self._socket.close()
            raise

    def ask(self, *words: str) -> bytes:
        """Return the reply to one command: without its first line where that is a length."""
        parts = [word.encode() for word in words]
        packed = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        self._socket.sendall(b"*%d\r\n" % len(parts) + packed)
        data = b""
        while True:
            line, end, rest = data.partition(b"\r\n")
            if end and (not line.startswith(b"$") or len(rest) >= int(line[1:]) + 2):
                return rest if line.startswith(b"$") else line
            more = self._socket.recv(65_536)
            if not more:
                raise ConnectionResetError("the server has closed the connection")
            data += more

    def clients(self) -> int:
        """Return how many connections use the broker: looking at it is no use."""
        self.ask("CLIENT", "SETNAME", f"{LOOKS}keeper")  # refused while it loads: each time
        reply = self.ask("CLIENT", "LIST")
        if reply.startswith(b"-"):
            return 1  # it loads, or is busy: in use
        mark = f" name={LOOKS}".encode()
        return sum(mark not in line for line in reply.split(b"\n") if line.strip())

    def __enter__(self) -> Talk:  # noqa: PYI034 - typing.Self needs Python 3.11
        """Return self."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self._socket.close()


def _reset() -> None:
    """Take off what the starter's process had: nothing of it sticks to the server."""
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
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
    """One keeper of one folder, which is its working directory."""

    def __init__(self, config: dict[str, object]) -> None:
        self.config = config
        self.folder = str(config["folder"])
        self.here = self._place(".")
        self.pid = 0  # of the server; 0: another keeper has started it
        self.talk: Talk | None = None
        self.stamped = self.ended = False
        self.written: dict[str, tuple[int, int]] = {}
        self.log_at = 0

    @staticmethod
    def _place(path: str) -> tuple[int, int]:
        found = os.stat(path)
        return found.st_dev, found.st_ino

    # -- beginning

    def begin(self) -> bool:
        """Take the lock of keepers; False where another keeper has it."""
        held = lock("keeper.lock", 0.1)
        if held is None:
            return False
        self.lock = held
        self.failure = open_own("failure", os.O_RDWR | os.O_CREAT)
        if not os.fstat(self.failure).st_size:
            write_state(self.failure, {})  # it has its place before the disk is full
        self.state = {name: self.config[name] for name in _SAID}
        write_state(held, {"boot": self.config["boot"]})
        return True

    def run(self) -> None:
        """Start the server, or find it there; then watch until one of the two ends."""
        server_lock = None
        try:
            server_lock = lock("server.lock")
            if os.path.exists("wishes"):
                os.unlink("wishes")
        except OSError as exc:
            self.fail(str(exc))
        if server_lock is None:
            self._adopt()
        else:
            write_state(server_lock, {"boot": self.config["boot"], **self.state})
            self._start(server_lock)
        self._watch()

    def _adopt(self) -> None:
        descriptor = open_own("server.lock", os.O_RDONLY)
        said = read_state(descriptor)
        os.close(descriptor)
        boot = said.get("boot")
        if boot and self.config["boot"] and boot != self.config["boot"]:
            self.fail("a server on another machine uses this folder: one machine at a time")
        self.state.update({name: said[name] for name in _SAID if name in said})
        if os.path.exists(_CLOSING) and not os.path.exists(_SOCKET):
            os.rename(_CLOSING, _SOCKET)  # a keeper was killed as it ended the server
        self.say("watches a server that another keeper had started")
        self._connect()
        self._announce()

    def _start(self, held: int) -> None:
        reader, writer = os.pipe()
        self.log_at = os.fstat(1).st_size
        pid = os.fork()
        if not pid:
            try:
                os.setsid()
                os.dup2(reader, 0)
                os.set_inheritable(held, True)
                binary = str(self.config["binary"])
                os.execve(binary, [binary, "-"], dict(self.config["env"]))  # type: ignore[call-overload]
            finally:
                os._exit(127)
        self.pid = pid
        os.close(reader)
        os.close(held)
        try:
            os.write(writer, str(self.config["settings"]).encode())
        except OSError:
            pass  # it has ended: its last words are told below
        os.close(writer)
        deadline = time.monotonic() + STARTS_WITHIN_S
        # It replies when its files are there: from then on the folder is one that had data.
        while not self._is_up():
            self._require_server()
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                self.fail(f"the server does not listen within {STARTS_WITHIN_S:g} s")
            time.sleep(0.002)
        self._announce()

    def _announce(self) -> None:
        self.state["since"] = time.time()
        write_state(self.lock, {"boot": self.config["boot"], **self.state})

    # -- watching

    def _watch(self) -> None:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        used = polled = time.monotonic()
        while True:
            idle = float(str(self.state["idle"]))
            if select.select([reader], [], [], min(_TICK_S, idle / 4) if idle else _TICK_S)[0]:
                os.read(reader, 512)
            self._require_server()
            self._require_folder()
            self._sync()
            self._take_wishes()
            now = time.monotonic()
            if not self.stamped or (idle and now - polled >= min(idle / 10, 10)):
                polled = now
                if self._clients():
                    used = now
            if idle and now - used >= idle and self._is_unused():
                self.say(f"nobody has used it for {idle:g} s: it ends")
                self._shut_down()

    def _require_server(self) -> None:
        """End with the server, and remember its last words if it failed."""
        if not self.pid:
            try:
                held = lock("server.lock")
            except OSError:
                return  # the folder was removed: seen next
            if held is not None:
                self.say("the server has ended")
                sys.exit(0)
            return
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return
        code = os.waitstatus_to_exitcode(status) if hasattr(os, "waitstatus_to_exitcode") else 0
        if code in {0, -signal.SIGKILL, -signal.SIGTERM}:
            self.say(f"the server has ended ({code})")
            sys.exit(0)
        self.fail(f"the server has ended with {code}: {self._last_words()}")

    def _last_words(self) -> str:
        with open("broker.log", encoding="utf-8", errors="replace") as log:
            log.seek(self.log_at)
            lines = [line.strip() for line in log.read()[-4000:].splitlines() if line.strip()]
        disk = os.statvfs(".")
        if disk.f_bavail * disk.f_frsize < _SCARCE:
            lines.append("the disk is full")  # and with it the log
        told = [line for line in lines if " # " in line and "overcommit" not in line]
        return " | ".join((told or lines)[-3:] + lines[-1:])

    def _require_folder(self) -> None:
        """End where the folder was removed, moved or replaced: nothing is written any more."""
        try:
            if self._place(self.folder) == self.here:
                return
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError:
            return  # not to be looked at for now
        self.say("the folder was removed, moved or replaced: the server ends")
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
        else:
            self._ask("SHUTDOWN", "NOSAVE")
        sys.exit(0)

    def _sync(self) -> None:
        try:
            found = {path: os.stat(path) for path in logs()}
            for path, now in found.items():
                if self.written.get(path) != (now.st_ino, now.st_size):
                    sync(path)
                    if path not in self.written:
                        sync(os.path.dirname(path) or ".")
                    self.written[path] = (now.st_ino, now.st_size)
        except OSError as exc:  # a rewrite has removed it meanwhile, or the disk is broken
            if not isinstance(exc, FileNotFoundError):
                self.say(f"cannot be synced: {exc}")

    def _take_wishes(self) -> None:
        """Let the stronger of two processes' options hold."""
        if not os.path.exists("wishes"):
            return
        try:
            descriptor = open_own("wishes", os.O_RDONLY)
            said = read_state(descriptor)
            os.close(descriptor)
            os.unlink("wishes")
        except OSError:
            return
        self.state.update({name: said[name] for name in ("fsync", "idle") if name in said})
        write_state(self.lock, {"boot": self.config["boot"], **self.state})

    def _clients(self) -> int:
        """Return how many use it; 1 where it does not answer: its lock is held, so it is there."""
        self._is_up()
        try:
            return self.talk.clients() if self._connect() and self.talk is not None else 1
        except OSError:
            self.talk = None
            return 1

    def _is_up(self) -> bool:
        """Whether the server replies; leave a stamp of it when it has loaded its data."""
        reply = b"" if self.stamped else self._ask("DBSIZE")  # PING tells of a full disk
        if reply.startswith(b":"):
            self.stamped = True
            if self.pid:
                try:
                    write("stamp", {name: self.state[name] for name in ("server", "version")})
                except OSError as exc:
                    self.say(f"no stamp can be written: {exc}")
        return self.stamped or reply != b""

    def _is_unused(self) -> bool:
        """Close the door, then look again: whoever came in before is seen, later ones wait."""
        try:
            os.rename(_SOCKET, _CLOSING)
        except OSError:
            return False
        try:
            with Talk(_CLOSING) as last:  # accepted after all that came before
                unused = not last.clients()
        except OSError:
            unused = False
        if not unused:
            os.rename(_CLOSING, _SOCKET)
        return unused

    def _shut_down(self) -> None:
        self._ask("SHUTDOWN")
        deadline = time.monotonic() + STARTS_WITHIN_S
        while not self._has_ended() and time.monotonic() < deadline:
            time.sleep(0.005)
        if os.path.exists(_CLOSING):
            if self._has_ended():
                os.unlink(_CLOSING)
            else:  # it refuses to end: the next keeper watches it
                os.rename(_CLOSING, _SOCKET)
        sys.exit(0)

    def _has_ended(self) -> bool:
        """Whether the lock of the server is free; it is taken then."""
        self.ended = self.ended or lock("server.lock") is not None
        return self.ended

    def _ask(self, *words: str) -> bytes:
        """Return the reply; b"" without one."""
        try:
            return self.talk.ask(*words) if self._connect() and self.talk is not None else b""
        except OSError:
            self.talk = None
            return b""

    def _connect(self) -> bool:
        try:
            self.talk = self.talk or Talk()
        except OSError:
            return False
        return True

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
        now = time.time()
        write_state(self.failure, {"at": now, "until": now + PAUSE_S, "text": text})
        sys.exit(1)


_SAID = ("server", "version", "binary", "fsync", "idle", "maxmemory", "by")


def main() -> None:
    """Run, from the arguments that :mod:`.start` gives."""
    config = json.loads(sys.argv[1])
    _reset()
    os.chdir(config["folder"])
    keeper = Keeper(config)
    try:
        if not keeper.begin():
            sys.exit(3)  # another keeper is there
    except OSError as exc:
        keeper.fail(str(exc))
    if os.fork():
        os._exit(0)  # the starter has a child to wait for, and no zombie
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    keeper.run()


if __name__ == "__main__":
    main()
