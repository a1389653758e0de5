"""The commands that each role sends to a server: the only source of the rules of ``reliq acl``.

Redis checks the commands inside a script as well as the script's own call. Those are read
from the Lua files. Commands sent without a script are named here, and a test finds every one
of them in the code, and each script in a role. Nothing is granted by category: the category
of a needed command (``@scripting``) also has commands that harm other users of the server
(FUNCTION LOAD, SCRIPT FLUSH). Redis 6.2 takes ``+command|subcommand`` too.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from . import scripts

if TYPE_CHECKING:
    from .scripts import Script

_CALLED = re.compile(r"redis\.p?call\('(\w+)'")


class Role(NamedTuple):
    """A kind of user: the scripts that it runs, and the other commands that it sends."""

    scripts: frozenset[Script] = frozenset()
    sent: frozenset[str] = frozenset()

    @property
    def commands(self) -> frozenset[str]:
        """All commands that it needs, in lower case, subcommands after a bar."""
        return self.sent.union(*(called_by(script) for script in self.scripts))


def called_by(script: Script) -> frozenset[str]:
    """Return the commands that *script* may call, in lower case."""
    return frozenset(name.lower() for name in _CALLED.findall(script.text))


def _role(*parts: Role, runs: str = "", sends: str = "") -> Role:
    """Return a role with the rights of *parts*, and more scripts and commands, by their names."""
    of_its_own = frozenset(getattr(scripts, name) for name in runs.upper().split())
    whole = Role(of_its_own, frozenset(sends.split()))
    for part in parts:
        whole = Role(whole.scripts | part.scripts, whole.sent | part.sent)
    return whole


# The first commands of every connection; every user may log in.
_DIALS = _role(sends="client|setname")
# EXISTS and HMGET query the format version.
_CONNECTS = _role(_DIALS, sends="client|id eval evalsha exists hmget ping select")

PRODUCER = _role(
    _CONNECTS,
    runs="bind change_jobs configure declare declare_exchange delete_queue layout list_batch "
    "list_queue log note_bound note_callback note_job once open_batch pause publish unbound",
    sends="del exists hdel hexists hget hgetall hkeys hmget hscan hsetnx lrange pexpire "
    "smembers srem zrange zrem",
)
WORKER = _role(
    PRODUCER,
    runs="accept ack attach dead_letter elect end_leases expire hand_back heartbeat leases_of move "
    "moved move_out next_batches promote purge read_log release renew replay reserve "
    "restore_visible measure snapshot survey report_running wake whereabouts",
    sends="blpop client|list client|unblock get info set time unlink zrangebyscore "
    "zremrangebyscore",
)
EXPORTER = _role(_CONNECTS, runs="measure", sends="client|list info time zrange")
# Reads everything and changes nothing: no command writes.
VIEWER = _role(
    EXPORTER,
    runs="locate scan",
    # The doctor tries CLIENT UNBLOCK, with an unused id.
    sends="acl|whoami client|unblock hget hgetall hkeys hscan lrange scan script|exists zcount "
    "zrangebyscore",
)
OPERATOR = _role(
    VIEWER,
    runs="accept attach bind change_jobs configure dead_letter declare declare_exchange "
    "delete_queue layout leases_of list_queue move moved move_out note_bound note_callback "
    "pause publish purge purge_dead release renew replay unbound whereabouts",
    sends="del get hdel hexists hsetnx set smembers srem zrem",
)
MIGRATION = _role(
    OPERATOR,
    runs="kombu_accept kombu_take kombu_take_unacked",
    sends="hvals llen sadd zscore",
)
# At the Sentinels themselves.
SENTINEL = _role(_DIALS, sends="sentinel|get-master-addr-by-name")

ROLES = {
    "producer": PRODUCER,
    "worker": WORKER,
    "operator": OPERATOR,
    "exporter": EXPORTER,
    "viewer": VIEWER,
    "migration": MIGRATION,
    "sentinel": SENTINEL,
}
# Commands that only some options or set-ups need.
CONFIG = frozenset({"config|get"})
BEHIND_SENTINELS = frozenset({"role"})
IN_CLUSTER = frozenset({"cluster|slots"})
OPERATES_CLUSTER = frozenset({"cluster|nodes"})
CONFIRMS = {
    "none": frozenset[str](),
    "accepted": frozenset[str](),
    "replicated": frozenset({"wait"}),
    "fsynced": frozenset({"waitaof"}),
}
