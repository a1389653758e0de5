"""The wire of a cluster: the methods of a wire, over connections to each node.

A command goes to the node that has the slot of its first key. A command without a key goes to the
anchor: the node of the keys that belong to no queue.
"""

from __future__ import annotations

from contextlib import suppress
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from ...errors import BrokerUnavailable, ReliqError, again
from ...forks import OwnLock, here
from ...lua.keys import broker_keys
from ...values.values import ignore_result
from ..commands import Commands, raise_first
from ..poll import Pipe
from ..stream import SILENCE_S
from .calls import ClusterCalls
from .nodes import Nodes
from .posts import ClusterPosts
from .requests import COVER, Request, Unserved, key_of
from .slots import slot_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...lua.scripts import Script
    from ...options import Options
    from ..pipeline import OnReply
    from ..stream import Command, Reply
    from ..wire import Wire
    from .slots import ClusterAddress, Place

# The interval of queries for the slot map while a slot or node is in doubt.
_CHECK_EVERY_S = 1.0


class ClusterWire(Commands):
    """See :class:`..commands.Commands`."""

    _lock = OwnLock()
    """Guards the new start in a child, which happens once. No thread waits while it holds this. The
    last of nested starts counts; posts over the connections of the others are sent again."""

    address: ClusterAddress

    def __init__(self, address: ClusterAddress, options: Options, name: str) -> None:
        self.address = address
        self.options = options
        self.name = name
        self.slots = address.slots
        self.anchor_slot = slot_of(broker_keys(options.global_keyprefix).guard)
        self._dials_before = 0
        self._lost_s = inf
        # Before this time, no reply is late and no node in doubt; check() runs for each ack.
        self._late_after_s = min(options.socket_timeout, SILENCE_S)
        self._connected = False
        self._closed = False
        self._pipe = Pipe()
        self._begin()

    def _begin(self) -> None:
        process = here()
        self.nodes = Nodes(
            self.slots, self.options, self.name, self._nodes_changed, self._call_hears_nothing
        )
        self._anchor: Wire | None = None
        self._doubts = False
        self.unserved = Unserved(self.address, self.nodes, self.options.socket_timeout, self.doubt)
        self.posts = ClusterPosts(self.nodes, self.unserved)
        self.calls = ClusterCalls(self.nodes, self.unserved)
        self.give_up_lost_slots(self._lost_s)
        self._process = process

    def _leave_parent(self) -> None:
        if self._process != here():
            with self._lock:
                if self._process != here():
                    self._connected = False
                    self._dials_before = self.dials
                    self._begin()

    def _nodes_changed(self) -> None:
        """Send the posts that wait for a connection; wake the event loop to watch it."""
        self.posts.hurry()
        self._pipe.write()

    @property
    def alive(self) -> bool:
        """Whether the cluster is connected and not all its nodes are lost."""
        return self._connected and self._process == here()

    @property
    def waiting(self) -> bool:
        """Whether a post has no reply yet."""
        return bool(self.posts) or any(wire.waiting for _, wire in self._open())

    @property
    def anchor_connection(self) -> Wire | None:
        """The connection to the anchor, or the last one if there is none now."""
        wire = self.nodes.open(self.slots.place_of(self.anchor_slot))
        if wire is not None:
            self._anchor = wire
        return self._anchor

    @property
    def client_id(self) -> int:
        """The client id of the connection to the anchor, or of the last one."""
        wire = self.anchor_connection
        return 0 if wire is None else wire.client_id

    @property
    def connected_at(self) -> float:
        """When the opening of the connection to the anchor began (monotonic clock)."""
        wire = self.anchor_connection
        return 0.0 if wire is None else wire.connected_at

    @property
    def dials(self) -> int:
        """The number of connections to nodes opened so far."""
        return self._dials_before + self.nodes.dials

    def _open(self) -> list[tuple[Place, Wire]]:
        return self.nodes.all() if self._process == here() else []

    def connect(self) -> None:
        """Connect to the anchor, or to any node if it is lost; raises BrokerUnavailable."""
        self._leave_parent()
        if self._connected:
            return
        self._refuse_closed()
        if self.slots.place_of(self.anchor_slot) is None:
            self.slots.refresh(self.options, self.name)
        try:
            self.wire_of(self.anchor_slot)
        except BrokerUnavailable as exc:
            anchor = self.slots.place_of(self.anchor_slot)  # a second try would take time again
            if not self.nodes.reach_any(anchor):
                self.slots.refresh(self.options, self.name)  # a node answers; check for a master
                if not self.nodes.reach_any(self.slots.place_of(self.anchor_slot)):
                    raise again(exc) from exc
        self.connections += 1
        self._connected = True

    def connect_to_post(self) -> None:
        """Open the connection for posts to the anchor; raises BrokerUnavailable."""
        self.wire_of(self.anchor_slot).connect_to_post()

    def close(self) -> None:
        """Close permanently; pending and later commands get a BrokerUnavailable."""
        self._leave_parent()
        self._closed = True
        self._connected = False
        self.nodes.close()
        self.posts.end(self._closed_error())
        self._pipe.close()

    def _closed_error(self) -> BrokerUnavailable:
        return BrokerUnavailable(f"{self.address}: this connection was closed")

    def _refuse_closed(self) -> None:
        if self._closed:
            raise self._closed_error()

    def descriptors(self) -> dict[int, object]:
        """Return the descriptors that a reply, or a new connection, makes readable."""
        self.connect()
        descriptors: dict[int, object] = {self._pipe.fileno(): self._pipe}
        for _, wire in self._open():
            if wire.alive and wire.pipeline.stream is not None:
                with suppress(BrokerUnavailable, OSError):
                    descriptors[wire.fileno()] = wire
        return descriptors

    def disable_reconnect(self) -> None:
        """Do nothing: a new connection always replaces a failed one."""

    def check(self) -> None:
        """Check for nodes with late replies; the callers of a lost node get an error."""
        for place, wire in self._open():
            if wire.alive and wire.silent_s < self._late_after_s:
                continue
            with suppress(BrokerUnavailable):
                wire.check()
            if not wire.alive:  # handled once; the next use of the node opens a new connection
                error = BrokerUnavailable(f"{wire.address}: the connection was lost")
                self.nodes.drop(place, wire, error)
                self.doubt()
            elif wire.silent_s > SILENCE_S:
                self.doubt()
        self._check_if_in_doubt()
        self.posts.pump()

    def is_unreachable(self, slot: int) -> bool:
        """Whether *slot* is known to be unserved. Does not block.

        The result is that of the last try, over any connection. As its callers make no try of
        their own, another thread checks whether the node is back or another has its slots.
        """
        place = self.slots.place_of(slot)
        wire = self.nodes.open(place)
        if wire is not None and wire.waiting:  # a process that only calls reads no replies to posts
            with suppress(BrokerUnavailable):
                wire.receive()
        if self.posts.holds(slot):
            return True
        known = place is not None and place not in self.slots.unreachable
        if known and (wire is None or wire.silent_s <= SILENCE_S):
            return False
        self._leave_parent()
        self.doubt()
        if place is not None:
            with suppress(BrokerUnavailable):  # no thread can be started: the next call retries
                self.nodes.check_soon(place)
        return True

    # -- the nodes

    def wire_of(self, slot: int) -> Wire:
        """Return the connections to the node of *slot*, if necessary new ones.

        Raises BrokerUnavailable.
        """
        self._refuse_closed()
        if self.slots.place_of(slot) is None:
            self.slots.refresh(self.options, self.name)
        place = self.slots.place_of(slot)
        if place is None:
            raise BrokerUnavailable(f"{self.address}: no node has slot {slot}: {COVER}")
        return self.nodes.connect(place)

    def give_up_lost_slots(self, after_s: float) -> None:
        """Limit the waits for a slot without a node, and for a lost node without a replica.

        Such a node is also not retried for *after_s*.
        """
        self._lost_s = self.unserved.lost_s = after_s
        self.nodes.left_alone_s = 0.0 if after_s == inf else after_s

    def doubt(self) -> None:
        """Query for the slot map soon, in another thread, because a node is lost or silent."""
        self._doubts = True
        self._check_if_in_doubt()

    def _check_if_in_doubt(self) -> None:
        if self._doubts and self.slots.age_s > _CHECK_EVERY_S and not self._closed:
            with suppress(BrokerUnavailable):  # no thread can be started: the next use retries
                self.nodes.do_soon(None, self.find_nodes)

    def find_nodes(self) -> None:
        """Query for the slot map; drop silent and idle nodes that have no slots."""
        self._doubts = False
        try:
            self.slots.refresh(self.options, self.name)
        except ReliqError:
            self._check_nodes()
            return
        masters = self.slots.masters
        for place, wire in self._open():
            if place not in masters and (wire.silent_s > SILENCE_S or not wire.waiting):
                self.nodes.drop(place, wire, BrokerUnavailable(f"{wire.address} has been replaced"))
        self._nodes_changed()

    def _check_nodes(self) -> None:
        """Check whether the whole cluster is lost: no node answers over its connection."""
        for _, wire in self._open():
            with suppress(BrokerUnavailable):
                if wire.alive and not wire.waiting:
                    wire.post(("PING",))  # an idle connection would never fail
                wire.check()
        if not any(wire.alive for _, wire in self._open()):
            self._connected = False
            self._pipe.write()

    def _call_hears_nothing(self, place: Place) -> None:
        """End a call whose node, silent for a second, has been replaced."""
        self.doubt()
        if place not in self.slots.masters:
            raise BrokerUnavailable(f"{place} has been replaced")

    # -- calls

    def replies(
        self, commands: Sequence[tuple[Command, Script | None]], patience_s: float = 0.0
    ) -> list[Reply]:
        """Write *commands* and return their replies; a refusal is a reply."""
        replies = [item.reply for item in self.tried(commands, patience_s)]
        return raise_first(replies, BrokerUnavailable)

    def call_in_order(self, command: Command, script: Script) -> Reply:
        """Run *command*; commands to several nodes have no order."""
        return self.call(command, script)

    def tried(
        self, commands: Sequence[tuple[Command, Script | None]], patience_s: float = 0.0
    ) -> list[Request]:
        """Like :meth:`replies`, but return the requests with their nodes; a loss is a reply."""
        self._leave_parent()
        self._refuse_closed()
        requests = [
            Request(self._slot_of(command), command, script, patience_s)
            for command, script in commands
        ]
        self.calls.finish(requests)
        return requests

    def _slot_of(self, command: Command) -> int:
        key = key_of(command)
        return self.anchor_slot if key is None else slot_of(key)

    # -- posts

    def post(
        self,
        command: Command,
        on_reply: OnReply = ignore_result,
        script: Script | None = None,
        patience_s: float = 0.0,
    ) -> None:
        """Write *command* now, or when its slot is served. Never blocks."""
        self._leave_parent()
        self._refuse_closed()
        request = Request(self._slot_of(command), command, script, patience_s, on_reply)
        self.posts.post(request)

    def receive(self) -> None:
        """Read the available replies without waiting, and call their handlers."""
        self._leave_parent()
        self._pipe.read()
        self.posts.receive()

    def wait_for_replies(self, timeout_s: float = inf) -> None:
        """Wait at most *timeout_s* until each earlier post has its reply."""
        self._leave_parent()
        self.posts.wait(min(monotonic() + timeout_s, self.calls.patience_ends_at), self.check)
