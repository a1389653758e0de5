"""ACL rules: the least permissions that a Redis user needs for a role.

The commands are those that the engine sends (``lua/rights.py``). Tests run the work of
each role, including real workers, under exactly its rule.
"""

from __future__ import annotations

from ..errors import ConfigurationError, require_one_of
from ..lua import rights
from .names import ROLES


def acl_rule(
    role: str,
    user: str | None = None,
    prefix: str = "",
    password: str = "<password>",  # noqa: S107 - a placeholder
    confirm: str = "accepted",
    *,
    config: bool = False,
    sentinels: bool = False,
    cluster: bool = False,
) -> str:
    """Return the Redis command that creates *user* with the least permissions for *role*.

    prefix: the ``global_keyprefix``. confirm: publishers need one more command for "replicated"
    and "fsynced". config: let an operator read all settings of the server, including its
    passwords. sentinels: the URLs name Sentinels. cluster: the server is a node of a Redis
    Cluster; send the command to every node, including replicas, because nodes do not share
    users. The command replaces an existing user. Raises ConfigurationError for an unknown role or
    confirm, and for a name with a space.
    """
    require_one_of("role", role, ROLES)
    require_one_of("confirm", confirm, rights.CONFIRMS)
    for name, text in (("user", user or ""), ("prefix", prefix), ("password", password)):
        if any(char.isspace() for char in text):
            got = "one with a space" if name == "password" else repr(text)
            raise ConfigurationError(f"expected {name} without spaces, got: {got}")
    commands = set(rights.ROLES[role].commands)
    if role in {"producer", "worker"}:
        commands |= rights.CONFIRMS[confirm]
    if config and role in {"operator", "migration"}:
        commands |= rights.CONFIG
    if sentinels and role != "sentinel":
        commands |= rights.BEHIND_SENTINELS
    if cluster and role != "sentinel":
        commands |= rights.IN_CLUSTER
        if role in {"viewer", "operator", "migration"}:
            commands |= rights.OPERATES_CLUSTER
    allowed = " ".join(f"+{command}" for command in sorted(commands))
    escaped = "".join(f"\\{char}" if char in "*?[]\\" else char for char in prefix)
    # Kombu's key of a queue is the queue's name, without any prefix of reliq.
    keys = f"~{escaped}*" if role == "migration" else f"~{escaped}reliq:*"
    if role == "sentinel":
        keys = ""
    return " ".join(filter(None, ("ACL SETUSER", user or f"reliq-{role}", "reset on",
                                  f">{password}", keys, allowed)))  # fmt: skip
