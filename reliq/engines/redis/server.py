"""One server, asked what it is and what can be wrong with it: for ``reliq doctor``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ...errors import BrokerRefused
from ...store.inspection import BrokerInfo, Finding
from . import keys, refusals, scripts
from .server_info import judge, judge_clock, judge_failover, number_of, parse
from .tls import UNVERIFIED, is_verified

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ...store.inspection import Severity
    from .commands import Commands
    from .server_info import Info
    from .stream import Command, Reply

_MOST_SCRIPTS = 1000
# SCAN goes on for so long at most: a broker may hold millions of keys of others.
_SCANNED_S = 5.0
# What reliq asks of a server, in a form that changes nothing; and what fails without it.
_ASKED: tuple[tuple[Command, Severity, str], ...] = (
    (("EVAL", "return 1", "0"), "error", "nothing works"),
    (("TIME",), "error", "nothing works"),
    (("EVALSHA", "0" * 40, "0"), "warning", refusals.COSTS["EVALSHA"]),
    (("INFO", "server"), "warning", refusals.COSTS["INFO"]),
    (("CLIENT", "ID"), "warning", refusals.COSTS["CLIENT ID"]),
    (("CLIENT", "LIST", "ID", "0"), "warning", refusals.COSTS["CLIENT LIST"]),
    (("CLIENT", "UNBLOCK", "0"), "info", refusals.COSTS["CLIENT UNBLOCK"]),
    (("CLIENT", "SETNAME"), "info", refusals.COSTS["CLIENT SETNAME"]),
    (("CONFIG", "GET", "timeout"), "info", "the doctor does not see timeouts and persistence"),
    (("SCAN", "0", "COUNT", "1"), "info", "the doctor does not look for keys that are not ours"),
)


class Server:
    """One server at the other end of a wire, asked by one user."""

    def __init__(self, wire: Commands, prefix: str) -> None:
        self._wire = wire
        self._prefix = prefix
        # Asked once: each refusal is a line in the server's ACL LOG.
        self._config_refused = False
        self.lacking: frozenset[Command] = frozenset()
        """What this user may not use, as :meth:`diagnose` has found."""

    def about(self, broker: str) -> BrokerInfo:
        """Return what the server says of itself; *broker*: its name."""
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
        """Look at what can be wrong with the server and with this user's rights.

        in_cluster: it is spoken to as a node of a cluster, whose clocks and replicas are
        looked at by who knows all nodes. behind_sentinels: replicas may be promoted.
        """
        info, config = self._info(), self._config()
        found = [*self._rights(), *self._unverified()]
        if not info:
            return found
        found += judge(info, self._persistence(info), config, in_cluster=in_cluster)
        if behind_sentinels:
            found += judge_failover(info)
        if not in_cluster:
            found += self._clock()
        found += [*self._cache(info), *self._foreign()]
        return found

    def _unverified(self) -> Iterator[Finding]:
        address: Any = self._wire.address
        tls = getattr(getattr(address, "master", address), "tls", None)
        if tls is not None and not is_verified(tls):
            remedy = "give ssl_ca_certs the CA of the server in the place of ssl_cert_reqs=none"
            yield Finding("tls", "warning", UNVERIFIED, remedy)

    def refuses(self, known: Collection[Command]) -> list[str]:
        """Return the names of the commands that this user may not use, but for those *known*."""
        on_keys = ("EXISTS", keys.broker_keys(self._prefix).guard)  # elsewhere is no refusal
        asked = [*(command for command, *_ in _ASKED if command not in known), on_keys]
        return [refusals.name_of(command) for command in asked if self._lacks(command)]

    def replicas(self) -> int | None:
        """Return how many replicas are connected to it; None where it may not be asked."""
        return number_of(self._info().get("connected_slaves"))

    def clock(self) -> tuple[float, float] | None:
        """Return (how many seconds it is ahead of this machine, how long its answer took)."""
        began = time.time()
        reply = self._ask("TIME")
        ended = time.time()
        if reply is None:
            return None
        seconds, micros = reply
        return int(seconds) + int(micros) / 1e6 - (began + ended) / 2, ended - began

    # -- asking

    def _ask(self, *command: Any) -> Reply | None:
        """Return the reply; None where this user or this server does not take the command."""
        try:
            return self._wire.call(command)
        except BrokerRefused:
            return None

    def _lacks(self, command: Command) -> bool:
        if refusals.lacks(self._wire.address.identity, command):
            return True  # as the connection was made, or later
        try:
            self._wire.call(command)
        except BrokerRefused as exc:
            return refusals.is_refusal(exc.reply)
        return False

    def _info(self) -> Info:
        reply: bytes = self._ask("INFO") or b""
        return parse(reply)

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
        missing = [item for item in _ASKED if self._lacks(item[0])]
        self.lacking = frozenset(command for command, *_ in missing)
        for command, severity, without in missing:
            name = refusals.name_of(command)
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
        found = self.clock()
        if found is None:
            return
        off_s, took_s = found
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
                f"{total} scripts are cached: a client makes a new one for each call, "
                "and the server keeps them all in memory",
                "find it with MONITOR or SLOWLOG; SCRIPT FLUSH empties the cache, and reliq "
                "loads its scripts again by itself",
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
