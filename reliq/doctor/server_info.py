"""The checks of a server's report on itself (INFO)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ..values.inspection import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

Info: TypeAlias = "dict[str, str]"

_FULL_PERCENT = 80
FARTHEST_S = 1.0
"""The largest difference between clocks that counts as correct."""


def parse(reply: bytes) -> Info:
    """Return the fields of INFO's reply."""
    lines = reply.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def number_of(text: str | None) -> int | None:
    """Return the number in a field, or None for a missing field or another text."""
    return int(text) if text is not None and text.isdigit() else None


def judge_clock(whose: str, machines: str, off_s: float, took_s: float) -> Finding | None:
    """Return a finding for a clock that is *off_s* ahead of this machine's; None if it is correct.

    *took_s*: duration of the query. *whose*, *machines*: the clock, and the machines to correct.
    """
    if abs(off_s) - took_s / 2 <= FARTHEST_S:
        return None
    off = f"{abs(off_s):.1f} s {'ahead of' if off_s > 0 else 'behind'} this machine's"
    text = f"{whose} is {off}: ages and ETAs are wrong by as much"
    return Finding("clock", "warning", text, f"synchronise {machines} with NTP")


def judge(
    info: Info, persistence: str, config: Info, *, in_cluster: bool = False
) -> Iterator[Finding]:
    """Yield the findings in INFO; *config*: the settings that this user may read.

    in_cluster: it is a node of a cluster.
    """
    yield from _server(info)
    if info.get("cluster_enabled") == "1" and not in_cluster:
        yield Finding(
            "cluster",
            "error",
            "the server is a node of a Redis Cluster, but this URL is for a single server: "
            "it has only some of the queues",
            "use reliq-cluster://host:port instead, with some of the nodes: "
            "reliq-cluster://a:6379;reliq-cluster://b:6379",
        )
    yield from _memory(info)
    yield from _disk(info, persistence, config)
    yield from _replication(info, in_cluster=in_cluster)
    yield from _clients(info, config)


def _server(info: Info) -> Iterator[Finding]:
    version = info.get("redis_version", "0")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < (6, 2):
        yield Finding("version", "error", f"Redis {version} is too old", "use 6.2 or newer")
    else:
        yield Finding("version", "ok", info.get("valkey_version", version))


def _memory(info: Info) -> Iterator[Finding]:
    policy = info.get("maxmemory_policy", "")
    if policy and policy != "noeviction":
        yield Finding(
            "maxmemory-policy",
            "error",
            f"{policy}: a full server deletes messages, or the tables that route them, "
            "without any warning",
            "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf",
        )
    else:
        yield Finding("maxmemory-policy", "ok", policy or "unknown")
    used, limit = number_of(info.get("used_memory")) or 0, number_of(info.get("maxmemory")) or 0
    if not limit:
        yield Finding(
            "memory",
            "warning",
            "maxmemory is not set: a full queue takes all memory until the kernel kills the server",
            "set maxmemory below the machine's memory; a full server then refuses publishes, "
            "and workers drain it",
        )
    elif used * 100 >= limit * _FULL_PERCENT:
        yield Finding(
            "memory",
            "warning",
            f"{used * 100 // limit} % of maxmemory are used; at 100 % publishes are refused",
            "raise maxmemory, start workers, or purge unneeded messages (reliq status)",
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
                f"{what} failed: messages that are confirmed now do not survive a crash",
                "check the server's log and its disk",
            )
    remedy = "CONFIG SET appendonly yes, and the same in redis.conf (docs/operations.md)"
    if persistence == "none":
        text = "none: a crash or restart of the server loses every message"
        yield Finding("persistence", "warning", text, remedy)
    elif persistence.startswith("RDB"):
        save = f" (save {config['save']})" if config.get("save") else ""
        text = f"{persistence}: a crash loses all messages since the last snapshot{save}"
        yield Finding("persistence", "warning", text, remedy)
    elif persistence == "AOF no":
        text = "AOF without fsync: a power cut loses up to half a minute"
        yield Finding("persistence", "warning", text, "CONFIG SET appendfsync everysec")
    elif persistence:
        yield Finding("persistence", "ok", persistence)


def _replication(info: Info, *, in_cluster: bool) -> Iterator[Finding]:
    if info.get("role") == "slave":
        master = f"{info.get('master_host')}:{info.get('master_port')}"
        yield Finding(
            "replication",
            "error",
            f"this server is a replica of {master}: it takes no messages",
            "check again in a moment: it has just been replaced"
            if in_cluster
            else "use the URL of the master, or reliq-sentinel://",
        )
        if info.get("master_link_status") != "up":
            yield Finding(
                "replication",
                "error",
                f"its link to {master} is down: its data is outdated",
                "check the logs of both servers, the network and masterauth",
            )
        return
    replicas = number_of(info.get("connected_slaves")) or 0
    if not in_cluster:  # for a cluster, the caller who knows all shards reports it
        if not replicas:
            text = "no replica: there is no other copy of the messages"
            yield Finding("replication", "info", text)
            return
        yield Finding("replication", "ok", f"{replicas} replica(s)")
    written = number_of(info.get("master_repl_offset")) or 0
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
                f"{fields.get('lag', '?')} s behind: if promoted now, it would lose that much",
                "check its log and the network between the two servers",
            )


def judge_failover(info: Info) -> Iterator[Finding]:
    """Yield the possible losses of a failover by Sentinel; none if INFO has too little."""
    replicas = number_of(info.get("connected_slaves"))
    if replicas is None:
        return
    missing = []
    # Redis reports good replicas only if min-replicas-to-write is set.
    good = number_of(info.get("min_slaves_good_slaves"))
    if good is None:
        missing.append("min-replicas-to-write is 0, so a master without replicas confirms")
    if replicas < 2:  # noqa: PLR2004
        missing.append(f"{replicas} of 2 replicas are connected")
    if info.get("aof_enabled") == "0":
        missing.append("appendonly is no, so a server restarts with old data, or none")
    if missing:
        yield Finding(
            "failover",
            "warning",
            f"a failover can lose confirmed messages: {'; '.join(missing)}",
            "min-replicas-to-write 1, appendonly yes and two replicas, at each server of the group "
            "(docs/failover.md)",
        )
    else:
        yield Finding("failover", "ok", f"{good} replicas in sync, and writes require them")


def _clients(info: Info, config: Info) -> Iterator[Finding]:
    here, most = number_of(info.get("connected_clients")) or 0, number_of(info.get("maxclients"))
    if most and here * 100 >= most * _FULL_PERCENT:
        yield Finding(
            "clients",
            "warning",
            f"{here} of {most} connections are in use; beyond that, new ones are refused",
            "raise maxclients, or find clients with many connections (CLIENT LIST)",
        )
    else:
        yield Finding("clients", "ok", f"{here} connections" + (f" of {most}" if most else ""))
    timeout = number_of(config.get("timeout"))
    if timeout:
        yield Finding(
            "timeout",
            "warning",
            f"the server closes connections that were silent for {timeout} s: idle publishers "
            "reconnect again and again",
            "CONFIG SET timeout 0; tcp-keepalive finds dead peers",
        )
    elif timeout == 0:
        yield Finding("timeout", "ok", "0: idle connections stay open")
    if config.get("tcp-keepalive") == "0":
        yield Finding(
            "tcp-keepalive",
            "warning",
            "0: the connection of a machine that lost power stays for hours",
            "CONFIG SET tcp-keepalive 60",
        )
