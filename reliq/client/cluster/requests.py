"""Requests: one command to a slot of a cluster, its outcome, and advice about failures.

A node that does not have the slot, or does not serve it now, has not executed the command.
`redis-cli --cluster fix` is only for slots that are left between two nodes or have no node. A node
that is down must be started or replaced; while it is unreachable, no slot needs a fix.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import count
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from ...errors import BrokerTimeout, ReliqError
from ...lua.keys import queue_named_in
from ...message.queue_names import number_of, queue_of
from ..stream import Prefix
from .nodes import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...lua.scripts import Script
    from ..pipeline import OnReply
    from ..stream import Command, Reply
    from ..wire import Wire
    from .nodes import Nodes
    from .slots import ClusterAddress, Place

COVER = "assign it by `redis-cli --cluster fix`, or by CLUSTER ADDSLOTS at the node that had it"
_END_MOVE = "unless a move is in progress, it was interrupted: run `redis-cli --cluster fix`"
_DOWN = (
    "a node or a slot is missing, which `reliq doctor` names; with "
    "cluster-require-full-coverage no, the others continue meanwhile"
)
_BY_CODE = {
    "ASK": _END_MOVE,
    "TRYAGAIN": _END_MOVE,
    "CLUSTERDOWN": _DOWN,
    "LOADING": "it serves the slot when it has loaded its data",
    "MASTERDOWN": "it is a replica whose master is down: start the master, or promote the replica",
    "READONLY": "it is a replica now; if it stays one, compare CLUSTER NODES of each node",
    "MOVED": "the nodes disagree about the owner of the slot: compare CLUSTER NODES of each",
}
# The node has not executed the command: another node may, or this one later.
_NOT_HERE = re.compile(rf"^({'|'.join(_BY_CODE)})\b")
_MOVED = re.compile(r"^MOVED (\d+) (.*):(\d+)$")
_ASK = re.compile(r"^ASK (\d+) (\S+)")
_ON_ITS_WAY = frozenset({"ASK", "TRYAGAIN"})
# A node may name another node that has not learned of the move yet and names the first in turn.
_MOVES_AT_ONCE = 3
# Commands without keys go to the anchor, the node of the keys that belong to no queue.
_KEYLESS = frozenset(
    {"PING", "INFO", "TIME", "CLIENT", "SCRIPT", "CONFIG", "ACL", "SCAN", "ROLE", "CLUSTER"}
)
_numbers = count()


@dataclass(slots=True, eq=False)
class Request:
    """A command that is called, or posted with the handler of its reply."""

    slot: int
    command: Command
    script: Script | None
    patience_s: float = 0.0
    on_reply: OnReply | None = None
    number: int = field(default_factory=_numbers.__next__)
    began: float = field(default_factory=monotonic)
    moves: int = 0
    """The number of redirections to another node."""
    why: str = ""
    """Why its slot was not served."""
    advice: str = ""
    """The remedy."""
    way: str = ""
    """The source and target of its moving slot."""
    lost: bool = False
    """Whether the slot stays lost until an operator acts."""
    pause_s: float = 0.0
    """The pause before the next try."""
    due: float | None = None
    """When a post is resent; None while its reply is pending."""
    reply: Reply = None
    finished: bool = False

    @property
    def cause(self) -> str:
        """The reason and the remedy for an error: why its slot is not served."""
        why = f"{self.why}; {self.way}" if self.way else self.why
        why = (why or "the reason is unknown").removesuffix(".")
        return f"{why}. Remedy: {self.advice}" if self.advice else why

    @property
    def at_once(self) -> bool:
        """Whether it is resent without a pause, to the node that a redirection named."""
        return 0 < self.moves <= _MOVES_AT_ONCE

    def note_way(self, wire: Wire, error: ReliqError) -> None:
        """Record the source and target of its moving slot, if the node's reply names them."""
        if (way := _ASK.match(error.reply)) is not None:
            self.way = f"the slot is moving from {wire.address} to {way[2]}"

    def finish(self, reply: Reply) -> None:
        """Record the reply; call the handler of a post."""
        self.reply = reply
        self.finished = True
        if self.on_reply is not None:
            self.on_reply(reply)


class Unserved:
    """The reasons why slots are not served, from replies and lost nodes, for one client."""

    def __init__(
        self, address: ClusterAddress, nodes: Nodes, timeout_s: float, doubt: Callable[[], None]
    ) -> None:
        """*doubt* requests a query for the slot map soon."""
        self.address = address
        self._slots = address.slots
        self._nodes = nodes
        self._timeout_s = timeout_s
        self.doubt = doubt
        self.lost_s = inf
        """The longest wait for a slot that stays lost until an operator acts."""

    def not_sent(self, request: Request, why: str) -> None:
        """Record why *request* was not sent, and request a query for the slot map."""
        place = self._slots.place_of(request.slot)
        request.why, request.advice, request.lost = why, "", False
        if place is None:
            request.why = f"{self.address}: no node has slot {request.slot}"
            request.advice, request.lost = COVER, True
        elif place in self._slots.unreachable:
            replica = self._slots.has_replica(place)
            request.advice, request.lost = for_node(place, replica=replica), not replica
        self.doubt()

    def redirected(self, request: Request, wire: Wire, error: ReliqError) -> bool:
        """Record a reply by which the node declines the slot; return whether *error* is one."""
        matched = _NOT_HERE.match(error.reply)
        if matched is None:
            return False
        moved = _MOVED.match(error.reply)
        if moved is not None:
            slot, host, port = moved.groups()
            self._slots.moved(int(slot), host or getattr(wire.address, "host", ""), int(port))
            request.moves += 1
        elif matched[1] not in _ON_ITS_WAY:
            self.doubt()
        request.why = f"{wire.address} says {error.reply}"
        request.advice, request.lost = for_reply(error.reply), False
        request.note_way(wire, error)
        return True

    def heed(self, error: ReliqError) -> bool:
        """Learn from a node's reply over another connection of this client.

        Return False if *error* is a failure of that connection.
        """
        moved = _MOVED.match(error.reply)
        if moved is not None and moved[2]:
            self._slots.moved(int(moved[1]), moved[2], int(moved[3]))
            return True
        return _NOT_HERE.match(error.reply) is not None

    def lateness(self, request: Request) -> BrokerTimeout | None:
        """Return the error of a request that has waited too long; None if it has not."""
        timeout_s = self._timeout_s
        limit_s = min(self.lost_s, timeout_s) if request.lost else timeout_s
        if monotonic() - request.began <= limit_s:
            return None
        if request.on_reply is None:
            self._find_way(request)
        key = key_of(request.command)
        name = key.decode("utf-8", "replace") if isinstance(key, bytes) else key or "none"
        in_time = f"in time (socket_timeout {timeout_s:g} s)"
        error = BrokerTimeout(
            f"{self.address}: slot {request.slot} was not served "
            f"{in_time if limit_s >= timeout_s else f'within {limit_s:g} s'}: {request.cause}. "
            f"Key: {named(name)}; nothing was changed"
        )
        error.unsent = True
        return error

    def _find_way(self, request: Request) -> None:
        """Query the node for the target of the slot: its ASK reply for a missing key names it."""
        key, place = key_of(request.command), self._slots.place_of(request.slot)
        wire = self._nodes.open(place)
        if key is None or wire is None or request.way or " TRYAGAIN" not in request.why:
            return
        absent = key + b":guard" if isinstance(key, bytes) else f"{key}:guard"
        try:
            wire.ask(("EXISTS", absent), PATIENCE_S)
        except ReliqError as exc:
            request.note_way(wire, exc)


def next_number() -> int:
    """Return a number greater than that of any existing request."""
    return next(_numbers)


def key_of(command: Command) -> str | bytes | None:
    """Return the first key of *command*; None if it has none."""
    name = command[0]
    if type(name) is Prefix:
        return key_of(name.parts)
    if name in {"EVALSHA", "EVAL"}:
        return command[3] if int(command[2]) else None
    return None if name in _KEYLESS else command[1]


def for_reply(reply: str) -> str:
    """Return the remedy for a node that refused a command with *reply*."""
    if reply.startswith("CLUSTERDOWN Hash slot"):
        return COVER
    code = _NOT_HERE.match(reply)
    return "" if code is None else _BY_CODE[code[1]]


def for_node(place: Place, *, replica: bool) -> str:
    """Return the remedy for an unreachable node; *replica*: whether it has a replica."""
    if replica:
        return (
            f"its replica takes over after cluster-node-timeout; if none does, start {place} "
            "again, or send CLUSTER FAILOVER TAKEOVER to the replica"
        )
    return f"if {place} is down, start it again: it has no replica to take over"


def named(key: str) -> str:
    """Return *key* and its queue, for an error message."""
    name = queue_named_in(key)
    if name is None:
        return repr(key)
    number = number_of(name)
    return f"{key!r} of {f'partition {number} of ' if number else ''}queue {queue_of(name)!r}"
