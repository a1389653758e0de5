"""Requests: one command to a slot of a cluster, its fate, and what may be done about that.

A node that is the wrong one, or that does not serve the slot now, has not carried the command out.
`redis-cli --cluster fix` is for slots that are left between two nodes, or that none has. A node
that is down needs to be started, or replaced: while it is unreachable nothing is to be fixed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import count
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from ....errors import BrokerTimeout, ReliqError
from ....message.queue_names import number_of, queue_of
from ..keys import queue_named_in
from ..stream import Prefix
from .nodes import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..pipeline import OnReply
    from ..scripts import Script
    from ..stream import Command, Reply
    from ..wire import Wire
    from .nodes import Nodes
    from .slots import ClusterAddress, Place

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
# The node has not carried it out: another may, or this one later.
_NOT_HERE = re.compile(rf"^({'|'.join(_BY_CODE)})\b")
_MOVED = re.compile(r"^MOVED (\d+) (.*):(\d+)$")
_ASK = re.compile(r"^ASK (\d+) (\S+)")
_ON_ITS_WAY = frozenset({"ASK", "TRYAGAIN"})
# A node may name another that does not know of it yet, and names it in turn.
_MOVES_AT_ONCE = 3
# Commands of no key: the anchor answers them, the node of what belongs to no queue.
_KEYLESS = frozenset(
    {"PING", "INFO", "TIME", "CLIENT", "SCRIPT", "CONFIG", "ACL", "SCAN", "ROLE", "CLUSTER"}
)
_numbers = count()


@dataclass(slots=True, eq=False)
class Request:
    """A command that is called, or posted: with the handler of its reply."""

    slot: int
    command: Command
    script: Script | None
    patience_s: float = 0.0
    on_reply: OnReply | None = None
    number: int = field(default_factory=_numbers.__next__)
    began: float = field(default_factory=monotonic)
    moves: int = 0
    """How often a node has named another one."""
    why: str = ""
    """Why its slot was not served."""
    advice: str = ""
    """What to do about that."""
    way: str = ""
    """Where the slot goes."""
    lost: bool = False
    """Whether that stays so until somebody does something."""
    pause_s: float = 0.0
    """How long to wait before it is sent again."""
    due: float | None = None
    """When a post is sent again; None while it is under way."""
    answered_by: Wire | None = None
    """The connections over which its reply came."""
    reply: Reply = None
    finished: bool = False

    @property
    def told(self) -> str:
        """Why its slot is not served, and what to do about that, for an error."""
        why = f"{self.why}; {self.way}" if self.way else self.why
        why = (why or "no reason is known").removesuffix(".")
        return f"{why}. What to do: {self.advice}" if self.advice else why

    @property
    def at_once(self) -> bool:
        """Whether it is sent again without a pause, to the node that was named."""
        return 0 < self.moves <= _MOVES_AT_ONCE

    def note_way(self, wire: Wire, error: ReliqError) -> None:
        """Note where its slot goes, where the node says so."""
        if (way := _ASK.match(error.reply)) is not None:
            self.way = f"it is on its way from {wire.address} to {way[2]}"

    def finish(self, reply: Reply, wire: Wire | None = None) -> None:
        """Note the reply that came over *wire*; call the handler of a post."""
        self.reply, self.answered_by = reply, wire
        self.finished = True
        if self.on_reply is not None:
            self.on_reply(reply)


class Unserved:
    """Why slots are not served: learned from replies and lost nodes, for one client."""

    def __init__(
        self, address: ClusterAddress, nodes: Nodes, timeout_s: float, doubt: Callable[[], None]
    ) -> None:
        """*doubt* has the nodes asked for the slot map, soon."""
        self.address = address
        self._slots = address.slots
        self._nodes = nodes
        self._timeout_s = timeout_s
        self.doubt = doubt
        self.lost_s = inf
        """The longest wait for a slot that is lost until somebody does something."""

    def not_sent(self, request: Request, why: str) -> None:
        """Note that *request* was not sent, and why; the nodes are looked for."""
        place = self._slots.place_of(request.slot)
        request.why, request.advice, request.lost = why, "", False
        if place is None:
            request.why = f"{self.address}: no node has slot {request.slot}"
            request.advice, request.lost = COVER, True
        elif place in self._slots.away:
            replica = self._slots.has_replica(place)
            request.advice, request.lost = for_node(place, replica=replica), not replica
        self.doubt()

    def redirected(self, request: Request, wire: Wire, error: ReliqError) -> bool:
        """Whether the node has only said that it is the wrong one; the reply is noted."""
        found = _NOT_HERE.match(error.reply)
        if found is None:
            return False
        moved = _MOVED.match(error.reply)
        if moved is not None:
            slot, host, port = moved.groups()
            self._slots.moved(int(slot), host or getattr(wire.address, "host", ""), int(port))
            request.moves += 1
        elif found[1] not in _ON_ITS_WAY:
            self.doubt()
        request.why = f"{wire.address} says {error.reply}"
        request.advice, request.lost = for_reply(error.reply), False
        request.note_way(wire, error)
        return True

    def heed(self, error: ReliqError) -> bool:
        """Learn from the reply of a node to another of our connections.

        False where it is the connection that has failed.
        """
        moved = _MOVED.match(error.reply)
        if moved is not None and moved[2]:
            self._slots.moved(int(moved[1]), moved[2], int(moved[3]))
            return True
        return _NOT_HERE.match(error.reply) is not None

    def lateness(self, request: Request) -> BrokerTimeout | None:
        """Return the error of a request that has waited for too long; None where it has not."""
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
            f"{in_time if limit_s >= timeout_s else f'within {limit_s:g} s'}: {request.told}. It "
            f"was asked for {named(name)}; nothing was changed"
        )
        error.unsent = True
        return error

    def _find_way(self, request: Request) -> None:
        """Have the node say where the slot goes: of a key that is not there it says so, by ASK."""
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
    """Return a number greater than that of any request there is."""
    return next(_numbers)


def key_of(command: Command) -> str | bytes | None:
    """Return the first key of *command*; None where it has none."""
    name = command[0]
    if type(name) is Prefix:
        return key_of(name.parts)
    if name in {"EVALSHA", "EVAL"}:
        return command[3] if int(command[2]) else None
    return None if name in _KEYLESS else command[1]


def for_reply(reply: str) -> str:
    """Return the advice about a node that has refused a command with *reply*."""
    if reply.startswith("CLUSTERDOWN Hash slot"):
        return COVER
    code = _NOT_HERE.match(reply)
    return "" if code is None else _BY_CODE[code[1]]


def for_node(place: Place, *, replica: bool) -> str:
    """Return the advice about a node that cannot be reached; *replica*: whether it has one."""
    if replica:
        return (
            f"its replica takes over after cluster-node-timeout; if none does, start {place} "
            "again, or send CLUSTER FAILOVER TAKEOVER to the replica"
        )
    return f"if {place} is down, start it again: it has no replica that could take over"


def named(key: str) -> str:
    """Return *key* for an error, and the queue that it is of."""
    name = queue_named_in(key)
    if name is None:
        return repr(key)
    number = number_of(name)
    return f"{key!r} of {f'partition {number} of ' if number else ''}queue {queue_of(name)!r}"
