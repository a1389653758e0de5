"""Connections to Redis, and the only place that translates its errors into reliq's.

redis-py opens the socket, secures it, logs in and selects the database. :meth:`Address.connect`
names the connection; from then on, :class:`Wire` owns the socket.
"""

from __future__ import annotations

import _socket
import re
import socket
import ssl
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

import redis.exceptions
from hiredis import HiredisError, Reader, ReplyError, pack_command
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection

from .._version import __version__
from ..errors import BrokerTimeout, BrokerUnavailable, ConfigurationError, ReliqError, again
from ..forks import here
from ..interrupts import came_from_handler
from ..login import Login
from ..lua import keys
from ..values.limits import FORMAT
from . import refusals
from .error_replies import code_of, translate_reply
from .tls import require_tls_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..options import Options

LOGIN_REFUSED = "refused the login"
"""Part of the error for a wrong user or password."""
_PATIENCE_S = 1.0
READ_SIZE = 1 << 16
# Detects a dead peer after 45 s; the system's defaults take two hours. Not every system has all.
_KEEPALIVE = {
    getattr(socket, name): value
    for name, value in {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}.items()
    if hasattr(socket, name)
}
FAILURES = (OSError, HiredisError, redis.exceptions.RedisError)
"""The exceptions of a connection that is being opened."""
_LOGIN = re.compile(r"^(NOAUTH|WRONGPASS|ERR (Client sent )?AUTH|ERR invalid password)\b")
# Sockets that close without a ResourceWarning as they are collected, or as the process exits: not
# those of gevent. Their destructor is C, so that no handler of a signal runs in it.
_QUIET = {
    kind: type(kind.__name__, (kind,), {"__slots__": (), "__del__": _socket.socket.close})
    for kind in (socket.socket, ssl.SSLSocket)
    if issubclass(kind, _socket.socket)
}
# No CLIENT SETINFO, by other arguments before 7.2. The defaults read a package's metadata: 0.4 ms.
_SILENT = dict.fromkeys(
    ["driver_info"] if hasattr(redis, "driver_info") else ["lib_name", "lib_version"]
)
# redis-py's connections close in a destructor of Python, in which a handler of a signal may run.
_TCP, _TLS, _UNIX = (
    type(kind.__name__, (kind,), {"__del__": object.__hash__})
    for kind in (Connection, SSLConnection, UnixDomainSocketConnection)
)


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a broker, and the login. Its repr shows no password."""

    host: str = "localhost"
    port: int = 6379
    db: int = 0
    path: str | None = None
    shown: str = ""
    """The name for messages, used instead of a path."""
    username: str | None = None
    password: str | Login | None = field(default=None, repr=False)
    tls: dict[str, Any] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        """Return the name for messages: scheme, host and database, without secrets."""
        if self.path is not None:
            return self.shown or f"reliq-unix://{self.path}/{self.db}"
        scheme = "reliq" if self.tls is None else "reliqs"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}/{self.db}"

    @property
    def identity(self) -> tuple[object, ...]:
        """Return the identity of the broker and user."""
        tls = None if self.tls is None else tuple(sorted((k, str(v)) for k, v in self.tls.items()))
        return (self.host, self.port, self.db, self.path, self.username, self.password, tls)

    def connect(self, options: Options, name: str) -> Dialled:
        """Open a connection, logged in and named *name*. Raises BrokerUnavailable."""
        connection = Dialled(self, options.socket_connect_timeout)
        with connection.dialling():
            if self.tls:
                require_tls_files(self.tls)  # one that was there may be being replaced
            connection.take(self._opened(options, connection))
            # Not CLIENT SETINFO: a user without that right would fill the ACL LOG.
            ask_all(connection, self, ("CLIENT", "SETNAME", name))
        return connection

    def _opened(self, options: Options, parser: Dialled) -> Any:
        """Return redis-py's connection, logged in; *parser* reads the replies."""
        timeout_s = options.socket_connect_timeout
        given: dict[str, Any] = {
            "db": str(self.db) if self.db else 0,  # text: see stream.pack
            "socket_timeout": timeout_s,
            "socket_connect_timeout": timeout_s,
            "protocol": 2,  # neither HELLO nor maintenance notifications
            "parser_class": lambda **_: parser,
            **_SILENT,
        }
        if isinstance(self.password, Login):
            given["credential_provider"] = parser.login = self.password
            parser.login.interval_s = options.credential_interval or inf
            parser.token = parser.login.token  # before it is asked: a newer one counts
        else:
            given |= {"username": self.username, "password": self.password}
        if self.path is not None:
            opened: Any = _UNIX(path=self.path, **given)
        else:
            given |= {"host": self.host, "port": self.port}
            given["socket_keepalive"] = options.socket_keepalive
            own = dict(options.socket_keepalive_options)
            given["socket_keepalive_options"] = {**_KEEPALIVE, **own}
            opened = _TCP(**given) if self.tls is None else _TLS(**given, **self.tls)
        opened.driver_info = None  # 7.2 takes None for the default
        opened.connect()
        return opened


class Dialled:
    """A new connection: each command waits for the reply to the previous one.

    redis-py uses it as its parser of replies, which here are neither decoded nor classed.
    """

    sock: Any = None
    """The socket; None before it is open."""
    login: Login | None = None
    token: tuple[str, ...] = ()
    """The newest token of *login* as the connection was begun."""

    def __init__(self, address: Broker, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._process = here()
        self._reader = Reader()

    def on_connect(self, opened: Any) -> None:
        """Read from the socket of *opened*, a connection of redis-py, from now on."""
        self.sock = opened._sock  # noqa: SLF001 - no version of redis-py passes it on

    def on_disconnect(self) -> None:
        """Do nothing: redis-py closes the socket."""

    def read_response(self, **_: Any) -> Any:
        """Return the next reply. Raises one of :data:`FAILURES`, error replies included."""
        reply = self.read()
        if isinstance(reply, ReplyError):
            raise ReplyError(str(reply).partition(", with args")[0])  # these may be a password
        return reply

    def take(self, opened: Any) -> None:
        """Take the socket from redis-py, which then does not close it."""
        opened._sock = None  # noqa: SLF001 - as above
        self.sock.__class__ = _QUIET.get(type(self.sock), type(self.sock))

    def read(self) -> Any:
        """Return the next reply, errors included. Raises one of :data:`FAILURES`."""
        late_at = monotonic() + self._timeout_s
        while (reply := self._reader.gets()) is False:
            data = self.sock.recv(READ_SIZE)
            if not data:
                raise ConnectionError("it closed the connection")
            self._reader.feed(data)
            if monotonic() > late_at:
                raise TimeoutError
        return reply

    @contextmanager
    def dialling(self) -> Iterator[None]:
        """Close the connection if the block fails; translate :data:`FAILURES`."""
        try:
            yield
        except BaseException as exc:
            self.close()
            if isinstance(exc, (*FAILURES, ReliqError)):  # not the exception of a signal handler
                raise self._translated(exc) from exc
            raise

    def _translated(self, exc: BaseException) -> ReliqError:
        """Return reliq's error for *exc*, whose frames show the login, and are removed."""
        error = translate(exc, self._address, self._timeout_s)
        if not came_from_handler(exc):
            exc.__traceback__ = exc.__context__ = None
        return error

    def close(self) -> None:
        """Close the connection for all processes; a child closes only its own descriptor."""
        if self.sock is None:
            return
        if self._process == here():
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


class Broker(Protocol):
    """An address, or an object that finds one for each connection. Its str is its name."""

    @property
    def identity(self) -> tuple[object, ...]:
        """Return the identity of the broker and user."""

    def connect(self, options: Options, name: str) -> Dialled:
        """Open a connection, logged in and named *name*. Raises BrokerUnavailable."""


def translate(exc: BaseException, address: Broker, timeout_s: float) -> ReliqError:
    """Return reliq's error for one of :data:`FAILURES` or a ReliqError; always a new object."""
    if isinstance(exc, ReliqError):
        return again(exc)
    if isinstance(exc, redis.exceptions.ConnectionError) and isinstance(exc.__context__, OSError):
        exc = exc.__context__  # in the words of the system
    if isinstance(exc, (TimeoutError, redis.exceptions.TimeoutError)):
        return BrokerTimeout(f"{address} did not answer within {timeout_s:g} s")
    if isinstance(exc, (OSError, redis.exceptions.RedisError)):
        return BrokerUnavailable(f"{address} is not reachable: {str(exc).rstrip('.')}")
    if _LOGIN.match(str(exc)):
        return BrokerUnavailable(f"{address} {LOGIN_REFUSED}: check username and password ({exc})")
    return translate_reply(str(exc), address)


def ask(connection: Dialled, *command: Any) -> Any:
    """Return the reply to one command over a new connection. Raises :data:`FAILURES`."""
    connection.sock.sendall(pack_command(command))
    return connection.read_response()


def ask_once(address: Address, options: Options, name: str, *command: str) -> Any:
    """Return the reply to one command over its own connection; each step takes at most 1 s.

    Raises BrokerUnavailable, BrokerRefused.
    """
    timeout_s = min(options.socket_connect_timeout, _PATIENCE_S)
    patience = replace(options, socket_connect_timeout=timeout_s)
    connection = address.connect(patience, name)
    with connection.dialling():
        reply = ask(connection, *command)
    connection.close()
    return reply


def ask_all(connection: Dialled, broker: Broker, *commands: tuple[Any, ...]) -> list[Any]:
    """Send commands as :func:`ask` does, in one round trip; error replies are reliq's errors.

    If *broker* refuses an optional command, its reply is None; its other errors are raised.
    """
    sent = [command for command in commands if not refusals.lacks(broker.identity, command)]
    connection.sock.sendall(b"".join(map(pack_command, sent)))
    replies: dict[tuple[Any, ...], Any] = dict.fromkeys(commands)
    for command in sent:
        reply = replies[command] = connection.read()
        if isinstance(reply, ReplyError):
            error = translate(reply, broker, 0.0)
            replies[command] = refusals.unless_noted(broker.identity, command, error)
    return list(replies.values())


# -- formats


def format_questions(prefix: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the commands that query the format version of everything under *prefix*.

    In a cluster, the key's node answers. The oldest layout had no version, and other keys.
    """
    stored_format = keys.broker_keys(prefix).stored_format
    return ("HMGET", stored_format, "version"), ("EXISTS", *keys.older_layout(prefix))


def require_known_format(version: Any, older: Any, prefix: str, broker: Broker) -> None:
    """Raise ConfigurationError if the replies show data in another format.

    Replies without a version pass: from another node, or to a user without rights to the key.
    """
    where = f"{broker}, global_keyprefix {prefix!r},"
    if isinstance(version, Exception):
        wrong = code_of(str(version)) == "WRONGTYPE"
        stored: object = "of another type" if wrong else str(FORMAT)
    else:
        (raw,) = version
        stored = None if raw is None else raw.decode("utf-8", "replace")
    if stored is None and not isinstance(older, Exception) and older:
        raise ConfigurationError(
            f"{where} holds queues in the layout of an older reliq, which this one "
            f"({__version__}) cannot read; nothing was changed. Use another database or "
            "global_keyprefix; or drain them with the version that wrote them, and then delete "
            f"its lists: DEL {' '.join(keys.older_layout(prefix))}"
        )
    if stored not in {None, str(FORMAT)}:
        raise ConfigurationError(
            f"{where} is stored in format {stored}, and this reliq ({__version__}) knows format "
            f"{FORMAT}; nothing was changed. Upgrade reliq, or use another database or "
            "global_keyprefix"
        )
