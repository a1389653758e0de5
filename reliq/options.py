"""Options: ``transport_options``, parsed once into a frozen object.

A wrong type, an unknown name or a contradiction raises ConfigurationError with the option, the
expectation and the value. All durations are in seconds, as in Kombu. Independent of the engine
and of Kombu.
"""

# ruff: noqa: RUF009 - each default of Options is a field with its rule

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from math import inf
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from .errors import ConfigurationError, unknown
from .kombu_options import KEPT, UNUSED, sentinel_login
from .login import Login, login_of
from .units import bytes_of

Check: TypeAlias = Callable[[Any], Any]
Confirm: TypeAlias = Literal["none", "accepted", "replicated", "fsynced"]

# A host and a port; an IPv6 address needs brackets.
_PLACE = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]+):[0-9]{1,5}")
_LAST_PORT = 65_535
CONFIRMS: tuple[Confirm, ...] = get_args(Confirm)


# Kombu reads these itself; it writes most of them into transport_options at publish(retry=True).
PASSED_THROUGH = frozenset(
    {
        "max_retries",
        "interval_start",
        "interval_step",
        "interval_max",
        "errback",
        "callback",
        "retry_errors",
        "on_revive",
        "timeout",
        "connect_retries_timeout",
    }
)

_LONGEST_S = 10 * 366 * 86_400.0
_MOST_PARTITIONS = 64  # the limit of message/queue_names.py


def _option(default: Any, rule: tuple[str, Check]) -> Any:
    """Return a field of :class:`Options`. rule: the expectation in words, and the check."""
    return field(default=default, metadata={"rule": rule})


def whole(value: Any, low: float, high: float, kinds: Any = int) -> Any:
    """Return *value*, a number from *low* to *high*; raise TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise TypeError
    if not low <= value <= high:
        raise ValueError
    return value


def _number(value: Any, low: float, high: float) -> float:
    return float(whole(value, low, high, (int, float)))


def _seconds(low: float) -> tuple[str, Check]:
    return f"a number of seconds, at least {low:g}", lambda value: _number(value, low, _LONGEST_S)


def _seconds_or_zero() -> tuple[str, Check]:
    def check(value: Any) -> float:
        return _number(value, 0 if value == 0 else 1, _LONGEST_S)

    return "a number of seconds, at least 1, or 0", check


def _count(low: int, high: float = inf) -> tuple[str, Check]:
    words = f", at least {low}" if high == inf else f" from {low} to {high}"
    return f"a whole number{words}", lambda value: whole(value, low, high)


def choice(*names: str) -> tuple[str, Check]:
    """Return the rule for one of *names*."""

    def check(value: Any) -> str:
        if value not in names:
            raise ValueError
        return str(value)

    return "one of " + ", ".join(map(repr, names)), check


def typed(kind: type, words: str) -> tuple[str, Check]:
    """Return the rule for a value of one type."""

    def check(value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError
        return value

    return words, check


def _backoff(value: Any) -> tuple[float, float]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:  # noqa: PLR2004 - a pair
        raise TypeError
    least, most = (_number(seconds, 0.001, _LONGEST_S) for seconds in value)
    if least > most:
        raise ValueError
    return least, most


def _client_name(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    if not all("!" <= char <= "~" for char in value):  # the rule of CLIENT SETNAME
        raise ValueError
    return value


def _address_map(value: Any) -> tuple[tuple[str, str], ...]:
    """Return the pairs of a mapping, because options are compared and hashed."""
    pairs = value.items() if isinstance(value, Mapping) else value
    if not isinstance(pairs, Iterable) or isinstance(pairs, str):
        raise TypeError
    places = []
    for announced, reachable in pairs:
        for place in (announced, reachable):
            if not _PLACE.fullmatch(place) or not 0 < int(place.rpartition(":")[2]) <= _LAST_PORT:
                raise ValueError
        places.append((announced, reachable))
    return tuple(sorted(places))


def _optional(rule: tuple[str, Check]) -> tuple[str, Check]:
    words, check = rule
    return f"{words}, or None", lambda value: None if value is None else check(value)


def _or_default(default: Any, rule: tuple[str, Check]) -> Any:
    """Return a field in which None means the default, as Kombu's None does."""
    words, check = _optional(rule)
    return _option(default, (words, lambda value: default if value is None else check(value)))


def _socket_options(value: Any) -> tuple[tuple[int, int], ...]:
    """Return the pairs of a mapping; raise an error if a socket does not accept one of them."""
    options = dict(value)
    with socket.socket() as probe:
        for name, number in options.items():
            probe.setsockopt(socket.IPPROTO_TCP, name, number)
    return tuple(sorted(options.items()))


def _size(low: int) -> Check:
    return lambda value: whole(bytes_of(value) if isinstance(value, str) else value, low, 2**63 - 1)


_PROVIDER = _optional(("a CredentialProvider of redis-py, or the path of its class", login_of))


@dataclass(frozen=True, slots=True)
class Options:
    """All connection options, with their defaults.

    visibility_timeout: seconds until messages return after their consumer stops renewing
        them. Does not limit the duration of a task. Defaults to 60.
    restore_interval: seconds between two passes of ``restore_visible`` over a queue, shared by
        all consumers. Defaults to 5.
    orphan_grace: seconds that a consumer's connection must be missing before its leases end
        early. Defaults to 5.
    consumer_timeout: seconds after which a held message is no longer renewed. Defaults to None:
        no limit.
    poll_interval: seconds between the checks of a waiting consumer; after twelve of them without
        a notification, it polls the queue. Defaults to 5.
    delivery_limit: failed deliveries after which a message becomes a dead letter. Defaults to
        20; None: no limit.
    redelivery_backoff: None (the default), or (min, max): seconds that a message waits after
        its first failed delivery, doubled for each further one, at most max.
    dead_letter_max, dead_letter_ttl: number of dead letters that a queue keeps, and for how many
        seconds. Default to 10 000 and 180 days.
    max_message_bytes: largest envelope, as stored (compressed). Defaults to 128 MiB.
    queue_order_strategy: ``round_robin``, ``sorted`` or ``priority``: the order in which a
        consumer reads its queues. Defaults to ``round_robin``.
    priority_order: ``ascending`` (0 is served first, as in Kombu's Redis transport; the default)
        or ``descending`` (AMQP's order).
    confirm: when a publish returns. ``none``: when it is written to the socket. ``accepted`` (the
        default): when the broker has stored the message. ``replicated``: when
        ``confirm_replicas`` replicas have it too. ``fsynced``: when the broker has it on disk
        (Redis 7.2 or newer, with AOF).
    confirm_replicas: replicas that ``replicated`` waits for. Defaults to 1.
    confirm_timeout: seconds that ``replicated`` and ``fsynced`` may take before the publish
        raises NotConfirmed. Defaults to 5.
    probe_interval: seconds between checks of the primary broker while another is in use.
        Defaults to 5.
    failback: whether to return to the primary broker when it answers. Defaults to True.
    unroutable: ``drop`` (the default, logged once) or ``error``.
    partitions: partitions of a new durable queue that is declared without ``x-partitions``.
        Existing queues do not change. Defaults to 1.
    native_delay: whether tasks with Celery's ``eta`` or ``countdown`` wait in the broker, not in
        a worker. Defaults to True.
    global_keyprefix: prefix of every key. Defaults to "".
    spool_max: maximum size of the file of ``reliq-spool://``, in bytes or as text with a unit
        (500MB). Defaults to 1 GB.
    embedded_fsync: for ``reliq-embedded://``: "second", or "always": each step waits for the
        disk, so that a power loss loses nothing. Defaults to "second".
    embedded_maxmemory: the memory of its server, in bytes or as "64MB" (kB, MB, GB). Defaults
        to None: the smaller of 256 MB and a quarter of the memory of machine or cgroup.
    embedded_idle: seconds without clients after which its server ends; 0: never. Defaults to 60.
    embedded_server: path of its valkey-server or redis-server. Defaults to None: from an
        installed wheel, else from PATH.
    socket_timeout, socket_connect_timeout: seconds to wait for a reply and for a connection.
        Default to 10 and 5.
    socket_keepalive: TCP keepalive. Defaults to True.
    socket_keepalive_options: TCP options of a connection with keepalive, such as
        ``{socket.TCP_KEEPIDLE: 60}``. Defaults to none: reliq's values.
    health_check_interval: seconds of silence after which a connection is checked before use; 0:
        never. Defaults to 25.
    client_name: prefix of the connection names in CLIENT LIST. Defaults to "reliq".
    username, password: for URLs that cannot contain them (``reliq-unix://``).
    master_name: for ``reliq-sentinel://``: the master's name at the Sentinels, required there.
        Defaults to None.
    address_map: for ``reliq-cluster://``: reachable addresses of nodes that announce other ones
        (behind NAT, in containers): ``{"10.0.0.5:6379": "example.org:7001"}``. Defaults to none.
    sentinel_username, sentinel_password: login at the Sentinels, if they require one; the login
        in the URL is for the master. Default to None.
    credential_provider, sentinel_credential_provider: a CredentialProvider of redis-py, or the
        dotted path of its class or factory; it replaces user and password. Default to None.
    credential_interval: seconds until a provider is asked for another token; 0: only for a new
        connection. Defaults to 300.
    """

    visibility_timeout: float = _option(60.0, _seconds(0.1))
    restore_interval: float = _option(5.0, _seconds(0.05))
    orphan_grace: float = _option(5.0, _seconds(0))
    consumer_timeout: float | None = _option(None, _optional(_seconds(0.1)))
    poll_interval: float = _option(5.0, _seconds(0.05))
    delivery_limit: int | None = _option(20, _optional(_count(1)))
    redelivery_backoff: tuple[float, float] | None = _option(
        None, _optional(("a pair (min, max) of seconds, min <= max", _backoff))
    )
    dead_letter_max: int = _option(10_000, _count(1))
    dead_letter_ttl: float = _option(180 * 86_400.0, _seconds(1))
    max_message_bytes: int = _option(128 * 1024 * 1024, _count(1024))
    queue_order_strategy: Literal["round_robin", "sorted", "priority"] = _option(
        "round_robin", choice("round_robin", "sorted", "priority")
    )
    priority_order: Literal["ascending", "descending"] = _option(
        "ascending", choice("ascending", "descending")
    )
    confirm: Confirm = _option("accepted", choice(*CONFIRMS))
    confirm_replicas: int = _option(1, _count(1))
    confirm_timeout: float = _option(5.0, _seconds(0.001))
    probe_interval: float = _option(5.0, _seconds(0.1))
    failback: bool = _option(True, typed(bool, "True or False"))
    unroutable: Literal["drop", "error"] = _option("drop", choice("drop", "error"))
    partitions: int = _option(1, _count(1, _MOST_PARTITIONS))
    native_delay: bool = _option(True, typed(bool, "True or False"))
    global_keyprefix: str = _option("", typed(str, "a string"))
    spool_max: int = _option(
        1_000_000_000, ("a size of at least 1 MB, such as 500000000 or '500MB'", _size(10**6))
    )
    embedded_fsync: Literal["second", "always"] = _option("second", choice("second", "always"))
    embedded_maxmemory: int | None = _option(
        None, _optional(("a size of at least 8 MB, such as 64000000 or '64MB'", _size(8 * 10**6)))
    )
    embedded_idle: float = _option(60.0, _seconds_or_zero())
    embedded_server: str | None = _option(
        None, _optional(("a path", lambda path: str(Path("" + path).absolute())))
    )
    socket_timeout: float = _or_default(10.0, _seconds(0.05))
    socket_connect_timeout: float = _or_default(5.0, _seconds(0.05))
    socket_keepalive: bool = _or_default(True, typed(bool, "True or False"))
    socket_keepalive_options: tuple[tuple[int, int], ...] = _or_default(
        (), ("a mapping of TCP options, such as {socket.TCP_KEEPIDLE: 60}", _socket_options)
    )
    health_check_interval: float = _option(25.0, _seconds_or_zero())
    client_name: str = _or_default(
        "reliq", ("a string of printable ASCII without spaces", _client_name)
    )
    username: str | None = _option(None, _optional(typed(str, "a string")))
    password: str | None = _option(None, _optional(typed(str, "a string")))
    master_name: str | None = _option(None, _optional(typed(str, "a string")))
    address_map: tuple[tuple[str, str], ...] = _option(
        (), ("a mapping of host:port to host:port", _address_map)
    )
    sentinel_username: str | None = _option(None, _optional(typed(str, "a string")))
    sentinel_password: str | None = _option(None, _optional(typed(str, "a string")))
    credential_provider: Login | None = _option(None, _PROVIDER)
    sentinel_credential_provider: Login | None = _option(None, _PROVIDER)
    credential_interval: float = _option(300.0, _seconds_or_zero())

    def __repr__(self) -> str:
        """Return the options that differ from the defaults, with passwords hidden."""
        shown = ", ".join(
            f"{option.name}={'**' if option.name in _SECRETS else repr(value)}"
            for option in fields(self)
            if (value := getattr(self, option.name)) != option.default
        )
        return f"Options({shown})"


RULES: dict[str, tuple[str, Check]] = {
    option.name: option.metadata["rule"] for option in fields(Options)
}

# These also accept text, for programs that pass only text (Airflow). No valid value is text.
_FROM_TEXT = frozenset({"consumer_timeout", "delivery_limit", "redelivery_backoff", "address_map"})
_SECRETS = {name for name in RULES if name.endswith(("password", "credential_provider"))}
_NOT_READ = frozenset({*PASSED_THROUGH, *KEPT, *UNUSED})


def _from_text(value: Any) -> Any:
    if value == "None":
        return None
    return json.loads(value) if isinstance(value, str) and value.startswith(("[", "{")) else value


def parse(transport_options: Mapping[str, Any] | None) -> Options:
    """Return the validated options; raise ConfigurationError before anything connects.

    The error names all unknown options and all wrong values.
    """
    # A copy, because Kombu writes into the mapping while publishing, from any thread.
    given = dict(transport_options or {})
    values: dict[str, Any] = {}
    problems: list[str] = []
    try:
        given = sentinel_login(given) | given
    except TypeError:
        problems.append("expected sentinel_kwargs to be a mapping, got: a secret value")
    for name, value in given.items():
        if name not in RULES:
            if name not in _NOT_READ:
                known = [*RULES, *_NOT_READ]
                problems.append(str(unknown("transport option", name, known)))
            continue
        expected, check = RULES[name]
        try:
            values[name] = check(_from_text(value) if name in _FROM_TEXT else value)
        except (TypeError, ValueError, OverflowError, OSError, ImportError, AttributeError) as exc:
            got = "a secret value" if name in _SECRETS else repr(value)
            path = name in _SECRETS and not {".", ":"}.isdisjoint(str(value))
            if path and isinstance(exc, (ImportError, AttributeError)):
                got = f"{exc}: correct the path, or install its module in each process"
            problems.append(f"expected {name} to be {expected}, got: {got}")
    if problems:
        raise ConfigurationError("; ".join(problems))
    options = Options(**values)
    limit = options.consumer_timeout
    if limit is not None and limit < options.visibility_timeout:
        raise ConfigurationError(
            "expected consumer_timeout to be at least visibility_timeout "
            f"({options.visibility_timeout:g} s), got: {limit:g}"
        )
    if set("{}") & set(options.global_keyprefix):
        raise ConfigurationError(
            "expected global_keyprefix without braces, which mark the cluster slot of a key, "
            f"got: {options.global_keyprefix!r}"
        )
    return options
