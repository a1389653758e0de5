"""ACL rules: the least that a Redis user needs who publishes, works, or operates.

Redis checks the commands inside a script as well as the script's own call, so they are
named one by one. A test runs everything that a role does under exactly its rule, and
finds each command of the rule used.
"""

from __future__ import annotations

from ..errors import ConfigurationError


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CONNECT = _words("client|id client|setname eval evalsha ping select")
_PRODUCER = _CONNECT | _words(
    "del exists hdel hexists hget hgetall hincrby hkeys hlen hmget hset hsetnx hstrlen llen "
    "pexpire rpush time unlink zadd zcard zrange zrangebyscore zrank zrem zremrangebyscore zscore"
)
_WORKER = _PRODUCER | _words(
    "blpop client|list client|unblock get hscan info pttl set zmscore zpopmin"
)
_OPERATOR = _CONNECT | _words(
    "acl|whoami client|list config|get exists get hdel hexists hget hgetall hincrby hkeys hlen "
    "hmget hset hsetnx hstrlen info llen pexpire rpush scan script|exists set time unlink zadd "
    "zcard zmscore zrange zrangebyscore zrem zremrangebyscore zscore"
)
_COMMANDS = {"producer": _PRODUCER, "worker": _WORKER, "operator": _OPERATOR}
_CONFIRMS = {"replicated": "wait", "fsynced": "waitaof"}

ROLES = tuple(_COMMANDS)
"""producer: publishes and declares. worker: also consumes. operator: all that ``reliq`` does."""


def acl_rule(
    role: str,
    user: str | None = None,
    prefix: str = "",
    password: str = "<password>",  # noqa: S107 - a place for one
    confirm: str = "accepted",
) -> str:
    """Return the Redis command that makes *user* with the least that *role* needs.

    prefix: the ``global_keyprefix``. confirm: "replicated" and "fsynced" need a command
    more. A user of that name is made anew, whatever it was before. Raises
    ConfigurationError for a role there is not, and for a name with a space.
    """
    if role not in _COMMANDS:
        raise ConfigurationError(f"expected role to be one of {', '.join(ROLES)}, got: {role!r}")
    for name, text in (("user", user or ""), ("prefix", prefix), ("password", password)):
        if any(char.isspace() for char in text):
            raise ConfigurationError(f"expected {name} to be free of spaces, got: {text!r}")
    commands = set(_COMMANDS[role])
    if role != "operator" and confirm in _CONFIRMS:
        commands.add(_CONFIRMS[confirm])
    allowed = " ".join(f"+{command}" for command in sorted(commands))
    escaped = "".join(f"\\{char}" if char in "*?[]\\" else char for char in prefix)
    who = user or f"reliq-{role}"
    return f"ACL SETUSER {who} reset on >{password} ~{escaped}reliq:* {allowed}"
