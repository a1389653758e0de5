"""Connecting to Redis, and the one border where its errors become ours.

redis-py opens the socket (TCP, TLS, Unix), logs in, selects the database and
names the connection; from then on the socket is :class:`Wire`'s. The only
private name of redis-py that is touched is ``Connection._sock`` (5.0 to 8.x),
because a socket that is read without blocking cannot be had in another way.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ..._version import __version__
from ...errors import (
    BrokerRefused,
    BrokerTimeout,
    BrokerUnavailable,
    ConfigurationError,
    ReliqError,
    again,
)
from ...store.limits import FORMAT
from . import keys, refusals

if TYPE_CHECKING:
    from ...options import Options

LOGIN_REFUSED = "refused the login"
"""What the error of a wrong user or password says."""
_PATIENCE_S = 1.0
# Replies that say "not now" or "not here": connecting again can help.
_UNAVAILABLE = re.compile(
    r"\b(LOADING|READONLY|MASTERDOWN|UNBLOCKED|CLUSTERDOWN|TRYAGAIN|BUSY|NOREPLICAS|"
    r"NOAUTH|WRONGPASS|max number of clients|shutting down)\b"
)
_ACL = "the user lacks a permission: see the ACL rule in docs/operations.md"
_HINTS = (
    ("OOM", "its memory is full: raise maxmemory, or let workers drain the queues"),
    ("NOPERM", _ACL),
    # What a script meets, in the words of Redis 6.2 and 7.0, and of later ones.
    ("can't run this command", _ACL),
    ("can't access at least one of the keys", _ACL),
    ("ACL failure in script", _ACL),
    ("MISCONF", "it cannot persist: look at its log and disk"),
    ("WRONGTYPE", "a key of reliq holds something else: use another database or prefix"),
    ("MOVED ", "it is a node of a Redis Cluster: use reliq-cluster:// with some of its nodes"),
    ("CROSSSLOT", "it is a node of a Redis Cluster: use reliq-cluster:// with some of its nodes"),
    ("unknown command", "reliq needs Redis 6.2 or newer"),
)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker is and how to log in. Its repr shows no password."""

    host: str = "localhost"
    port: int = 6379
    db: int = 0
    path: str | None = None
    shown: str = ""
    """Its name in messages, in place of a path."""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: dict[str, Any] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        """Name the broker in messages: scheme, host and database, nothing secret."""
        if self.path is not None:
            return self.shown or f"reliq-unix://{self.path}/{self.db}"
        scheme = "reliq" if self.tls is None else "reliqs"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}/{self.db}"

    @property
    def identity(self) -> tuple[object, ...]:
        """Return what two addresses must share to be the same broker and user."""
        tls = None if self.tls is None else tuple(sorted((k, str(v)) for k, v in self.tls.items()))
        return (self.host, self.port, self.db, self.path, self.username, self.password, tls)

    def connect(self, options: Options, name: str) -> redis.connection.AbstractConnection:
        """Open a connection, logged in, with *name* in CLIENT LIST; raises BrokerUnavailable."""
        common: dict[str, Any] = {
            "db": str(self.db) if self.db else 0,  # text: see stream.pack
            "username": self.username,
            "password": self.password,
            "protocol": 2,
            "socket_timeout": options.socket_connect_timeout,
            "retry": Retry(NoBackoff(), 0),
            "health_check_interval": 0,
        }
        connection: redis.connection.AbstractConnection
        if self.path is not None:
            connection = redis.UnixDomainSocketConnection(  # type: ignore[no-untyped-call, abstract]
                path=self.path, **common
            )
        else:
            common.update(
                host=self.host,
                port=self.port,
                socket_connect_timeout=options.socket_connect_timeout,
                socket_keepalive=options.socket_keepalive,
            )
            if self.tls is None:
                connection = redis.Connection(**common)  # type: ignore[no-untyped-call]
            else:
                try:
                    connection = redis.SSLConnection(**common, **self.tls)
                except (TypeError, redis.exceptions.RedisError) as exc:
                    raise ConfigurationError(f"the TLS options of {self} are wrong: {exc}") from exc
        # Not CLIENT SETINFO: the name says who we are, and a user who lacks it fills the ACL LOG.
        for said in ("driver_info", "lib_name", "lib_version"):  # redis-py 7 and newer; 5 and 6
            setattr(connection, said, None)
        try:
            connection.connect()  # type: ignore[no-untyped-call]
            ask_all(connection, self, ("CLIENT", "SETNAME", name))
        except (*FAILURES, ReliqError) as exc:
            hang_up(connection)
            raise translate(exc, self, options.socket_connect_timeout) from exc
        return connection


class Broker(Protocol):
    """Where to connect to: an address, or something that finds one each time. Its str names it."""

    @property
    def identity(self) -> tuple[object, ...]:
        """Return what two of them must share to be the same broker and user."""

    def connect(self, options: Options, name: str) -> redis.connection.AbstractConnection:
        """Open a connection, logged in, named *name*; raises BrokerUnavailable."""


def translate_reply(text: str, address: Broker) -> ReliqError:
    """Return our error for an error reply of the server."""
    error: ReliqError
    if _UNAVAILABLE.search(text):
        error = BrokerUnavailable(f"{address} cannot serve now: {text}")
    else:
        hint = next((f" ({hint})" for word, hint in _HINTS if word in text), "")
        error = BrokerRefused(f"{address} refused: {text}{hint}")
    error.reply = text
    return error


def translate(exc: BaseException, address: Broker, timeout_s: float) -> ReliqError:
    """Return our error for what a socket or redis-py raised: a new one in any case."""
    if isinstance(exc, ReliqError):
        return again(exc)
    if isinstance(exc, (socket.timeout, redis.exceptions.TimeoutError)):
        return BrokerTimeout(f"{address} did not answer within {timeout_s:g} s")
    if isinstance(exc, redis.exceptions.AuthenticationError):
        return BrokerUnavailable(f"{address} {LOGIN_REFUSED}: check username and password ({exc})")
    if isinstance(exc, (OSError, redis.exceptions.ConnectionError)):
        return BrokerUnavailable(f"{address} is not reachable: {str(exc).rstrip('.')}")
    # redis-py takes the code away where it has a class for it.
    code = "NOPERM " if isinstance(exc, redis.exceptions.NoPermissionError) else ""
    return translate_reply(f"{code}{exc}", address)


FAILURES = (OSError, redis.exceptions.RedisError)


def ask(connection: redis.connection.AbstractConnection, *command: str) -> Any:
    """Send one command over a connection that was just dialled, and return its reply.

    Raises what redis-py raises; :func:`translate` makes it ours.
    """
    connection.send_command(*command)  # type: ignore[no-untyped-call]
    return connection.read_response()


def ask_once(address: Address, options: Options, name: str, *command: str) -> Any:
    """Return the reply to one command, over a connection of its own.

    A server that needs longer than a second to be connected to, or to answer, is as good as down.
    Raises BrokerUnavailable, BrokerRefused.
    """
    timeout_s = min(options.socket_connect_timeout, _PATIENCE_S)
    patience = replace(options, socket_connect_timeout=timeout_s)
    connection = address.connect(patience, name)
    try:
        return ask(connection, *command)
    except FAILURES as exc:
        raise translate(exc, address, timeout_s) from exc
    finally:
        hang_up(connection)


def ask_all(
    connection: redis.connection.AbstractConnection, broker: Broker, *commands: tuple[Any, ...]
) -> list[Any]:
    """Send commands as :func:`ask` does, in one round trip; an error among the replies is ours.

    None is the reply to an optional command that *broker* refuses; another error of one is raised.
    """
    asked = [one for one in commands if not refusals.lacks(broker.identity, one)]
    packed = connection.pack_commands(asked)  # type: ignore[no-untyped-call]
    connection.send_packed_command(packed)  # type: ignore[no-untyped-call]
    replies: dict[tuple[Any, ...], Any] = dict.fromkeys(commands)
    for command in asked:
        try:
            replies[command] = connection.read_response()
        except redis.exceptions.ResponseError as exc:  # noqa: PERF203 - one of three
            error = translate(exc, broker, 0.0)
            replies[command] = refusals.unless_noted(broker.identity, command, error)
    return list(replies.values())


def hang_up(connection: redis.connection.AbstractConnection) -> None:
    """Close *connection*; closing one that is closed is harmless."""
    connection.disconnect()  # type: ignore[no-untyped-call]


def socket_of(connection: redis.connection.AbstractConnection) -> socket.socket:
    """Return the connection's socket (private in redis-py 5.0 to 8.x, see above)."""
    sock: socket.socket | None = connection._sock  # noqa: SLF001
    if sock is None:
        raise BrokerUnavailable("the connection was closed while it was opened")
    return sock


# -- formats


def format_questions(prefix: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the commands that ask in which version everything under *prefix* is stored.

    Of a cluster the node that has the key answers. The oldest layout had no such key, and other
    ones for all queues.
    """
    stored_format = keys.broker_keys(prefix).stored_format
    return ("HMGET", stored_format, "version"), ("EXISTS", *keys.older_layout(prefix))


def require_known_format(version: Any, older: Any, prefix: str, broker: Broker) -> None:
    """Raise ConfigurationError where the replies say that something is stored in another format.

    Replies that do not say it pass: of another node, or to a user who may not look at the key.
    """
    where = f"{broker}, global_keyprefix {prefix!r},"
    if isinstance(version, Exception):
        stored: object = "of another type" if "WRONGTYPE" in str(version) else str(FORMAT)
    else:
        (found,) = version
        stored = None if found is None else found.decode("utf-8", "replace")
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
