"""What a Redis says of itself, and what can be wrong with it: for ``reliq doctor``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ...errors import BrokerRefused
from ...store.inspection import BrokerInfo, Finding
from . import keys, scripts
from .base import StoreBase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...store.inspection import Severity
    from .wire import Command, Reply

Info = dict[str, str]

_FULL_PERCENT = 80
_FARTHEST_S = 1.0
_MOST_SCRIPTS = 1000
# SCAN goes on for so long at most: a broker may hold millions of keys of others.
_SCANNED_S = 5.0
_PARTS = frozenset({*keys.QueueKeys._fields, "bound"})
_SHARED = frozenset(
    {
        "queues",
        "probe",
        "looking",
        "broker_id",
        "dead_letter_routed",
        "exchanges",
        "consumers",
        "kombu_held",
        "kombu_last",
    },
)
_FAMILIES = frozenset({"bindings", "once", "consumer"})

# What reliq asks of a server, in a form that changes nothing; and what fails without it.
_ASKED: tuple[tuple[Command, Severity, str], ...] = (
    (("EVAL", "return 1", "0"), "error", "nothing works where a script is not cached"),
    (("TIME",), "error", "nothing works"),
    (("INFO", "server"), "warning", "the doctor is blind, and workers do not tell a restart"),
    (
        ("CLIENT", "LIST", "ID", "0"),
        "warning",
        "workers with it notice killed consumers after visibility_timeout, not orphan_grace",
    ),
    (("CONFIG", "GET", "timeout"), "info", "the doctor does not see timeouts and persistence"),
    (("SCAN", "0", "COUNT", "1"), "info", "the doctor does not look for keys that are not ours"),
)


def is_ours(key: str, prefix: str) -> bool:
    """Whether *key*, which begins with our prefix, is one that reliq makes."""
    rest = key.removeprefix(f"{prefix}reliq:")
    if rest.startswith("{"):
        name, brace, part = rest.rpartition("}:")
        return bool(brace) and "}" not in name and part.split(":")[0] in {*_PARTS, "publisher"}
    return rest in _SHARED or (":" in rest and rest.split(":")[0] in _FAMILIES)


class RedisDiagnosis(StoreBase):
    """What a store tells of its server."""

    _config_refused = False  # asked once: each refusal is a line in the server's ACL LOG

    def about(self) -> BrokerInfo:
        """Return what the server says of itself."""
        info = self._info()
        engine = "valkey" if "valkey_version" in info else "redis"
        return BrokerInfo(
            self.broker,
            engine,
            info.get("valkey_version") or info.get("redis_version", ""),
            {"slave": "replica"}.get(info.get("role", ""), info.get("role", "")),
            _number(info.get("uptime_in_seconds")),
            _number(info.get("used_memory")),
            _number(info.get("maxmemory")) or None,
            self._persistence(info),
            _number(info.get("connected_clients")),
        )

    def diagnose(self) -> list[Finding]:
        """Look at what can be wrong with the server and with this user's rights."""
        info, config = self._info(), self._config()
        found = [*self._rights()]
        if not info:
            return found
        found += _server(info)
        found += _memory(info)
        found += _disk(info, self._persistence(info), config)
        found += _replication(info)
        found += _clients(info, config)
        found += [*self._clock(), *self._cache(info), *self._foreign()]
        return found

    # -- asking

    def _ask(self, *command: Any) -> Reply | None:
        """Return the reply; None where this user or this server does not take the command."""
        try:
            return self._wire.call(command)
        except BrokerRefused:
            return None

    def _refusal(self, command: Command) -> str:
        try:
            self._wire.call(command)
        except BrokerRefused as exc:
            return str(exc)
        return ""

    def _info(self) -> Info:
        reply: bytes = self._ask("INFO") or b""
        lines = reply.decode("utf-8", "replace").splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def _config(self) -> Info:
        found: Info = {}
        for name in ("timeout", "tcp-keepalive", "appendfsync", "save"):
            value = self._setting(name)
            if value is not None:
                found[name] = value
        return found

    def _setting(self, name: str) -> str | None:
        """Return a setting of the server; None where this user may not read them."""
        if self._config_refused:
            return None
        reply = self._ask("CONFIG", "GET", name)
        self._config_refused = reply is None
        return reply[1].decode() if reply else None

    def _persistence(self, info: Info) -> str:
        if not info:
            return ""
        if info.get("aof_enabled") == "1":
            policy = self._setting("appendfsync")
            return f"AOF {policy}" if policy else "AOF"
        save = self._setting("save")
        if save is None:
            return "RDB or none"
        return "RDB" if save else "none"

    # -- checks that ask more

    def _rights(self) -> Iterator[Finding]:
        missing = [item for item in _ASKED if "NOPERM" in self._refusal(item[0])]
        for command, severity, without in missing:
            name = " ".join(command[:2]) if command[0] in {"CLIENT", "CONFIG"} else command[0]
            remedy = _CONFIG_REMEDY if command[0] == "CONFIG" else _ACL_REMEDY
            yield Finding("acl", severity, f"this user may not use {name}: {without}", remedy)
        if not missing:
            yield Finding("acl", "ok", "this user may do all that reliq does")
        who = self._ask("ACL", "WHOAMI")
        if who == b"default" and not getattr(self._wire.address, "password", None):
            yield Finding(
                "login",
                "warning",
                "there is no password: whoever reaches the port can do anything",
                "give the server a password (requirepass), or users (reliq acl)",
            )

    def _clock(self) -> Iterator[Finding]:
        began = time.time()
        reply = self._ask("TIME")
        ended = time.time()
        if reply is None:
            return
        seconds, micros = reply
        off = int(seconds) + int(micros) / 1e6 - (began + ended) / 2
        if abs(off) - (ended - began) / 2 > _FARTHEST_S:
            yield Finding(
                "clock",
                "warning",
                f"the server's clock is {abs(off):.1f} s {'ahead of' if off > 0 else 'behind'} "
                "this machine's: ages and an eta are wrong by as much; leases are not",
                "let both machines keep their time by NTP",
            )
            return
        took_ms = (ended - began) * 1000
        yield Finding("clock", "ok", f"within {abs(off):.2f} s; an answer took {took_ms:.1f} ms")

    def _cache(self, info: Info) -> Iterator[Finding]:
        ours = [item for item in vars(scripts).values() if isinstance(item, scripts.Script)]
        cached = self._ask("SCRIPT", "EXISTS", *(item.sha for item in ours))
        total = _number(info.get("number_of_cached_scripts")) or 0
        if total > _MOST_SCRIPTS:
            yield Finding(
                "script cache",
                "warning",
                f"{total} scripts are cached: a client makes a new one for each call, "
                "and the server keeps them all in memory",
                "find it with MONITOR or SLOWLOG; SCRIPT FLUSH empties the cache, and reliq "
                "loads its scripts again by itself",
            )
        elif cached is not None:
            text = f"{sum(cached)} of reliq's {len(ours)} scripts are cached; the rest when used"
            yield Finding("script cache", "ok", text)

    def _foreign(self) -> Iterator[Finding]:
        """Look for keys under our prefix that reliq did not make."""
        cursor, foreign, looked = b"0", set[str](), 0
        until = time.monotonic() + _SCANNED_S
        pattern = f"{_escaped(self._prefix)}reliq:*"
        while True:
            reply = self._ask("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
            if reply is None:
                return
            cursor, page = reply
            looked += len(page)
            foreign.update(
                key
                for raw in page
                if not is_ours(key := raw.decode("utf-8", "replace"), self._prefix)
            )
            if cursor == b"0" or time.monotonic() > until:
                break
        part = "" if cursor == b"0" else f" (not all were looked at in {_SCANNED_S:g} s)"
        if foreign:
            names = ", ".join(repr(key) for key in sorted(foreign)[:5])
            yield Finding(
                "keys",
                "warning",
                f"{len(foreign)} keys under our prefix are not ours: {names}{part}",
                "find out who writes them; use another database or global_keyprefix for one "
                "of the two",
            )
        else:
            yield Finding("keys", "ok", f"all {looked} keys under our prefix are ours{part}")


_ACL_REMEDY = "give it the rule that `reliq acl` prints"
_CONFIG_REMEDY = (
    "nothing, unless it may read the passwords in there: then the rule that "
    "`reliq acl operator --config` prints"
)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _escaped(prefix: str) -> str:
    return "".join(f"\\{char}" if char in "*?[]^\\" else char for char in prefix)


def _server(info: Info) -> Iterator[Finding]:
    version = info.get("redis_version", "0")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < (6, 2):
        yield Finding("version", "error", f"Redis {version} is too old", "use 6.2 or newer")
    else:
        yield Finding("version", "ok", version)
    if info.get("cluster_enabled") == "1":
        yield Finding(
            "cluster",
            "error",
            "the server is part of a Redis Cluster, which reliq does not support",
            "use one server, with replicas if you like",
        )


def _memory(info: Info) -> Iterator[Finding]:
    policy = info.get("maxmemory_policy", "")
    if policy and policy != "noeviction":
        yield Finding(
            "maxmemory-policy",
            "error",
            f"{policy}: a full server deletes messages, or the tables that route them, "
            "without telling anyone",
            "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf",
        )
    else:
        yield Finding("maxmemory-policy", "ok", policy or "not told")
    used, limit = _number(info.get("used_memory")) or 0, _number(info.get("maxmemory")) or 0
    if not limit:
        yield Finding(
            "memory",
            "warning",
            "maxmemory is not set: a full queue takes all memory until the kernel kills the server",
            "set maxmemory below what the machine has; a full server then refuses publishes, "
            "and workers drain it",
        )
    elif used * 100 >= limit * _FULL_PERCENT:
        yield Finding(
            "memory",
            "warning",
            f"{used * 100 // limit} % of maxmemory are used; at 100 % publishes are refused",
            "raise maxmemory, start workers, or purge what is not needed (reliq status)",
        )
    else:
        yield Finding("memory", "ok", f"{used * 100 // limit} % of maxmemory are used")


def _disk(info: Info, persistence: str, config: Info) -> Iterator[Finding]:
    for field, what in (
        ("rdb_last_bgsave_status", "the last snapshot"),
        ("aof_last_write_status", "the last write to the AOF"),
        ("aof_last_bgrewrite_status", "the last rewrite of the AOF"),
    ):
        if info.get(field, "ok") != "ok":
            yield Finding(
                "persistence",
                "error",
                f"{what} failed: what is confirmed now does not survive a crash",
                "look at the server's log and at its disk",
            )
    if persistence == "none":
        yield Finding(
            "persistence",
            "warning",
            "none: a crash or restart of the server forgets every message",
            "CONFIG SET appendonly yes, and the same in redis.conf (docs/operations.md)",
        )
    elif persistence.startswith("RDB"):
        yield Finding(
            "persistence",
            "warning",
            f"{persistence}: a crash forgets what came since the last snapshot"
            + (f" (save {config['save']})" if config.get("save") else ""),
            "CONFIG SET appendonly yes, and the same in redis.conf (docs/operations.md)",
        )
    elif persistence == "AOF no":
        yield Finding(
            "persistence",
            "warning",
            "AOF without fsync: a power cut forgets up to half a minute",
            "CONFIG SET appendfsync everysec",
        )
    elif persistence:
        yield Finding("persistence", "ok", persistence)


def _replication(info: Info) -> Iterator[Finding]:
    if info.get("role") == "slave":
        master = f"{info.get('master_host')}:{info.get('master_port')}"
        yield Finding(
            "replication",
            "error",
            f"this server is a replica of {master}: it takes no messages",
            "use the URL of the master, or reliq-sentinel://",
        )
        if info.get("master_link_status") != "up":
            yield Finding(
                "replication",
                "error",
                f"its link to {master} is down: what it shows is old",
                "look at the logs of both; the network, masterauth",
            )
        return
    replicas = _number(info.get("connected_slaves")) or 0
    if not replicas:
        yield Finding("replication", "info", "no replica: there is no other copy of the messages")
        return
    yield Finding("replication", "ok", f"{replicas} replica(s)")
    written = _number(info.get("master_repl_offset")) or 0
    for place in range(replicas):
        fields = dict(
            part.split("=", 1) for part in info.get(f"slave{place}", "").split(",") if "=" in part
        )
        name = f"{fields.get('ip')}:{fields.get('port')}"
        behind = written - int(fields.get("offset", written))
        if fields.get("state") != "online" or int(fields.get("lag", "0")) > 10:  # noqa: PLR2004
            yield Finding(
                "replication",
                "warning",
                f"replica {name} is {fields.get('state')}, {behind} bytes and "
                f"{fields.get('lag', '?')} s behind: promoted now, it would have lost that much",
                "look at its log and at the network between the two",
            )


def _clients(info: Info, config: Info) -> Iterator[Finding]:
    here, most = _number(info.get("connected_clients")) or 0, _number(info.get("maxclients"))
    if most and here * 100 >= most * _FULL_PERCENT:
        yield Finding(
            "clients",
            "warning",
            f"{here} of {most} connections are in use; beyond that new ones are refused",
            "raise maxclients, or find who opens so many (CLIENT LIST)",
        )
    else:
        yield Finding("clients", "ok", f"{here} connections" + (f" of {most}" if most else ""))
    timeout = _number(config.get("timeout"))
    if timeout:
        yield Finding(
            "timeout",
            "warning",
            f"the server closes connections that were silent for {timeout} s: idle publishers "
            "connect again and again",
            "CONFIG SET timeout 0; tcp-keepalive finds dead peers",
        )
    elif timeout == 0:
        yield Finding("timeout", "ok", "0: idle connections stay")
    if config.get("tcp-keepalive") == "0":
        yield Finding(
            "tcp-keepalive",
            "warning",
            "0: the connection of a machine that lost its power stays for hours",
            "CONFIG SET tcp-keepalive 60",
        )
