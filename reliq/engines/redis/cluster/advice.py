"""Advice: what an operator does about a slot that is not served. It depends on why it is not.

`redis-cli --cluster fix` is for slots that are left between two nodes, or that none has. A node
that is down needs to be started, or replaced: while it is away there is nothing to be fixed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ....errors import BrokerUnavailable
from ....message.queue_names import number_of, queue_of
from ..connect import LOGIN_REFUSED
from ..keys import queue_named_in

if TYPE_CHECKING:
    from ....errors import ReliqError
    from .slots import Place

COVER = "give it one by `redis-cli --cluster fix`, or by CLUSTER ADDSLOTS at the node that had it"
_END_MOVE = "if nobody is moving it now, its move was broken off: `redis-cli --cluster fix` ends it"
_DOWN = (
    "a node or a slot is missing, which `reliq doctor` names; cluster-require-full-coverage no "
    "lets the others go on meanwhile"
)
_BY_CODE = {
    "ASK": _END_MOVE,
    "TRYAGAIN": _END_MOVE,
    "CLUSTERDOWN": _DOWN,
    "LOADING": "it serves when it has loaded its data",
    "MASTERDOWN": "it is a replica whose master is down: start that again, or let it take over",
    "READONLY": "it is a replica now; if that stays so, compare CLUSTER NODES of each node",
    "MOVED": "the nodes do not agree on who has it: compare CLUSTER NODES of each",
}
_CODE = re.compile(r"[A-Z]+")


def for_reply(reply: str) -> str:
    """Return what to do about a node that has refused a command with *reply*."""
    if reply.startswith("CLUSTERDOWN Hash slot"):
        return COVER
    code = _CODE.match(reply)
    return "" if code is None else _BY_CODE.get(code[0], "")


def for_node(place: Place, *, replica: bool) -> str:
    """Return what to do about a node that cannot be reached; *replica*: whether it has one."""
    if replica:
        return (
            f"its replica takes over after cluster-node-timeout; if none does, start {place} "
            "again, or send CLUSTER FAILOVER TAKEOVER to the replica"
        )
    return f"if {place} is down, start it again: it has no replica that could take over"


def for_announced(error: ReliqError) -> ReliqError:
    """Return *error* of a node that only the cluster has named, with what may be wrong there."""
    if error.reply or LOGIN_REFUSED in str(error) or not isinstance(error, BrokerUnavailable):
        return error
    return type(error)(
        f"{error}; the cluster announces this address (cluster-announce-ip, "
        "cluster-announce-hostname): where it cannot be reached from here, the option address_map "
        "names another"
    )


def named(key: str) -> str:
    """Return *key* for an error, and the queue that it is of."""
    name = queue_named_in(key)
    if name is None:
        return repr(key)
    number = number_of(name)
    return f"{key!r} of {f'partition {number} of ' if number else ''}queue {queue_of(name)!r}"
