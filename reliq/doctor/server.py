"""Checks of one server, its configuration and the user's rights, for ``reliq doctor``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ..client import refusals
from ..client.tls import UNVERIFIED, is_verified
from ..errors import BrokerRefused
from ..lua import keys, scripts
from ..values.inspection import BrokerInfo, Finding
from .server_info import judge, judge_clock, judge_failover, number_of, parse

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ..client.commands import Commands
    from ..client.stream import Command, Reply
    from ..values.inspection import Severity
    from .server_info import Info

_MOST_SCRIPTS = 1000
# The identities of broker and user that were refused a setting. Tried once in each process,
# because each refusal is a line in the server's ACL LOG.
_without_config: set[object] = set()
# The time limit of SCAN: a broker may hold millions of keys of other programs.
_SCANNED_S = 5.0
_NAMING: Command = ("CLIENT", "SETNAME")
# The commands that reliq sends, in a form that changes nothing; and the effect of a refusal.
_NEEDED: tuple[tuple[Command, Severity, str], ...] = (
    (("EVAL", "return 1", "0"), "error", "nothing works"),
    (("TIME",), "error", "nothing works"),
    (("EVALSHA", "0" * 40, "0"), "warning", refusals.COSTS["EVALSHA"]),
    (("INFO", "server"), "warning", refusals.COSTS["INFO"]),
    (("CLIENT", "ID"), "warning", refusals.COSTS["CLIENT ID"]),
    (("CLIENT", "LIST", "ID", "0"), "warning", refusals.COSTS["CLIENT LIST"]),
    (("CLIENT", "UNBLOCK", "0"), "info", refusals.COSTS["CLIENT UNBLOCK"]),
    (_NAMING, "info", refusals.COSTS["CLIENT SETNAME"]),
    (("CONFIG", "GET", "timeout"), "info", "the doctor does not see timeouts and persistence"),
    (("SCAN", "0", "COUNT", "1"), "info", "the doctor does not check for keys of other programs"),
)


class Server:
    """One server at the other end of a wire, queried by one user."""

    def __init__(self, wire: Commands, prefix: str) -> None:
        self._wire = wire
        self._prefix = prefix
        self.lacking: frozenset[Command] = frozenset()
        """The commands that this user may not use, as found by :meth:`diagnose`."""

    def about(self, broker: str) -> BrokerInfo:
        """Return the server's report on itself; *broker* is its name."""
        info = self._info()
        engine = "valkey" if "valkey_version" in info else "redis"
        return BrokerInfo(
            broker,
            engine,
            info.get("valkey_version") or info.get("redis_version", ""),
            {"slave": "replica"}.get(info.get("role", ""), info.get("role", "")),
            number_of(info.get("uptime_in_seconds")),
            number_of(info.get("used_memory")),
            number_of(info.get("maxmemory")) or None,
            self._persistence(info),
            number_of(info.get("connected_clients")),
        )

    def diagnose(
        self, *, in_cluster: bool = False, behind_sentinels: bool = False
    ) -> list[Finding]:
        """Check the server and this user's rights.

        in_cluster: it is a node of a cluster; the caller, who knows all nodes, checks clocks and
        replicas. behind_sentinels: replicas may be promoted.
        """
        info, config = self._info(), self._config()
        findings = [*self._rights(), *self._unverified()]
        if not info:
            return findings
        findings += judge(info, self._persistence(info), config, in_cluster=in_cluster)
        if behind_sentinels:
            findings += judge_failover(info)
        if not in_cluster:
            findings += self._clock()
        findings += [*self._cache(info), *self._foreign()]
        return findings

    def _unverified(self) -> Iterator[Finding]:
        address: Any = self._wire.address
        tls = getattr(getattr(address, "master", address), "tls", None)
        if tls is not None and not is_verified(tls):
            remedy = "set ssl_ca_certs to the CA of the server instead of ssl_cert_reqs=none"
            yield Finding("tls", "warning", UNVERIFIED, remedy)

    def refuses(self, known: Collection[Command]) -> list[str]:
        """Return the names of the commands that this user may not use, except for *known*."""
        on_keys = ("EXISTS", keys.broker_keys(self._prefix).guard)  # no refusal if at another node
        commands = [*(command for command, *_ in _NEEDED if command not in known), on_keys]
        return [refusals.name_of(command) for command in commands if self._lacks(command)]

    def replicas(self) -> int | None:
        """Return the number of connected replicas, or None if this user may not query it."""
        return number_of(self._info().get("connected_slaves"))

    def clock(self) -> tuple[float, float] | None:
        """Return (seconds that the clock is ahead of this machine's, duration of the query)."""
        began = time.time()
        reply = self._ask("TIME")
        ended = time.time()
        if reply is None:
            return None
        seconds, micros = reply
        return int(seconds) + int(micros) / 1e6 - (began + ended) / 2, ended - began

    # -- queries

    def _ask(self, *command: Any) -> Reply | None:
        """Return the reply, or None if this user or this server refuses the command."""
        try:
            return self._wire.call(command)
        except BrokerRefused:
            return None

    def _lacks(self, command: Command) -> bool:
        if refusals.lacks(self._wire.address.identity, command):
            return True  # refused when connecting, or later
        if command == _NAMING:  # each connection sends it; Redis 6.2 has no harmless form of it
            return False
        try:
            self._wire.call(command)
        except BrokerRefused as exc:
            return refusals.is_refusal(exc.reply)
        return False

    def _info(self) -> Info:
        reply: bytes = self._ask("INFO") or b""
        return parse(reply)

    def _config(self) -> Info:
        values: Info = {}
        for name in ("timeout", "tcp-keepalive", "appendfsync", "save"):
            value = self._setting(name)
            if value is not None:
                values[name] = value
        return values

    def _setting(self, name: str) -> str | None:
        """Return a setting of the server, or None if this user may not read settings."""
        identity = self._wire.address.identity
        if identity in _without_config:
            return None
        reply = self._ask("CONFIG", "GET", name)
        if reply is None:
            _without_config.add(identity)
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

    # -- checks with further queries

    def _rights(self) -> Iterator[Finding]:
        missing = [item for item in _NEEDED if self._lacks(item[0])]
        self.lacking = frozenset(command for command, *_ in missing)
        for command, severity, without in missing:
            name = refusals.name_of(command)
            remedy = _CONFIG_REMEDY if command[0] == "CONFIG" else _ACL_REMEDY
            yield Finding("acl", severity, f"this user may not use {name}: {without}", remedy)
        if not missing:
            yield Finding("acl", "ok", "this user has all rights that reliq needs")
        who = self._ask("ACL", "WHOAMI")
        if who == b"default" and not getattr(self._wire.address, "password", None):
            yield Finding(
                "login",
                "warning",
                "there is no password: any client that reaches the port has all rights",
                "set a password for the server (requirepass), or create users (reliq acl)",
            )

    def _clock(self) -> Iterator[Finding]:
        reading = self.clock()
        if reading is None:
            return
        off_s, took_s = reading
        text = f"within {abs(off_s):.2f} s; an answer took {took_s * 1000:.1f} ms"
        wrong = judge_clock("the server's clock", "both machines", off_s, took_s)
        yield wrong or Finding("clock", "ok", text)

    def _cache(self, info: Info) -> Iterator[Finding]:
        ours = [item for item in vars(scripts).values() if isinstance(item, scripts.Script)]
        cached = self._ask("SCRIPT", "EXISTS", *(item.sha for item in ours))
        total = number_of(info.get("number_of_cached_scripts")) or 0
        if total > _MOST_SCRIPTS:
            yield Finding(
                "script cache",
                "warning",
                f"{total} scripts are cached: a client creates a new one for each call, "
                "and the server keeps them all in memory",
                "find the client with MONITOR or SLOWLOG; SCRIPT FLUSH empties the cache, and "
                "reliq loads its scripts again by itself",
            )
        elif cached is not None:
            text = f"{sum(cached)} of reliq's {len(ours)} scripts are cached; the rest when used"
            yield Finding("script cache", "ok", text)

    def _foreign(self) -> Iterator[Finding]:
        cursor, foreign, looked = b"0", set[str](), 0
        until = time.monotonic() + _SCANNED_S
        pattern = f"{keys.literal(self._prefix)}reliq:*"
        while True:
            reply = self._ask("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
            if reply is None:
                return
            cursor, page = reply
            looked += len(page)
            foreign.update(
                key
                for raw in page
                if not keys.is_ours(key := raw.decode("utf-8", "replace"), self._prefix)
            )
            if cursor == b"0" or time.monotonic() > until:
                break
        part = "" if cursor == b"0" else f" (not all keys were checked in {_SCANNED_S:g} s)"
        if foreign:
            names = ", ".join(repr(key) for key in sorted(foreign)[:5])
            yield Finding(
                "keys",
                "warning",
                f"{len(foreign)} keys under our prefix are not reliq's: {names}{part}",
                "find their writer; use another database or global_keyprefix for one of the "
                "two programs",
            )
        else:
            yield Finding("keys", "ok", f"all {looked} keys under our prefix are reliq's{part}")


_ACL_REMEDY = "give it the rule that `reliq acl` prints"
_CONFIG_REMEDY = (
    "optional: CONFIG GET also shows passwords. If this user may read them, use the rule that "
    "`reliq acl operator --config` prints"
)
