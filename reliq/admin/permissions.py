"""ACL rules: the least that a Redis user needs who publishes, works, or operates.

The commands are those that the engine sends (``engines/redis/rights.py``). Tests run what
each role does, real workers included, under exactly its rule.
"""

from __future__ import annotations

from ..engines.redis import rights
from ..errors import ConfigurationError, require_one_of
from .names import ROLES


def acl_rule(
    role: str,
    user: str | None = None,
    prefix: str = "",
    password: str = "<password>",  # noqa: S107 - a place for one
    confirm: str = "accepted",
    *,
    config: bool = False,
    sentinels: bool = False,
    cluster: bool = False,
) -> str:
    """Return the Redis command that makes *user* with the least that *role* needs.

    prefix: the ``global_keyprefix``. confirm: "replicated" and "fsynced" need a command
    more, for who publishes. config: let an operator read the server's settings; all of
    them, passwords included. sentinels: the server is reached through Sentinels. cluster: it
    is a node of a Redis Cluster; nodes do not tell each other of users, so each of them,
    replicas too, is to get the command. A user of that name is made anew, whatever it was
    before. Raises ConfigurationError for a role
    there is not, what the role does not take, and for a name with a space.
    """
    require_one_of("role", role, ROLES)
    require_one_of("confirm", confirm, rights.CONFIRMS)
    for name, text in (("user", user or ""), ("prefix", prefix), ("password", password)):
        if any(char.isspace() for char in text):
            got = "one with a space" if name == "password" else repr(text)
            raise ConfigurationError(f"expected {name} to be free of spaces, got: {got}")
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
    # A queue of Kombu's is a list of that very name.
    keys = f"~{escaped}*" if role == "migration" else f"~{escaped}reliq:*"
    if role == "sentinel":
        keys = ""
    return " ".join(filter(None, ("ACL SETUSER", user or f"reliq-{role}", "reset on",
                                  f">{password}", keys, allowed)))  # fmt: skip
