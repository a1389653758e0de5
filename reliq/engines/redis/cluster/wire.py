"""The wire of a cluster: a wire's methods, over connections to each node.

A command goes to the node that has the slot of its first key; one without a key to the anchor,
the node of what belongs to no queue.
"""

from __future__ import annotations

from contextlib import suppress
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from ....errors import BrokerUnavailable, ReliqError, again
from ....forks import OwnLock, here
from ....store.values import ignore_result
from ...poll import Pipe
from ..commands import Commands, raise_first
from ..keys import broker_keys
from ..stream import SILENCE_S
from .calls import ClusterCalls
from .nodes import Nodes
from .posts import ClusterPosts
from .requests import COVER, Request, Unserved, key_of
from .slots import slot_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....options import Options
    from ..pipeline import OnReply
    from ..scripts import Script
    from ..stream import Command, Reply
    from ..wire import Wire
    from .slots import ClusterAddress, Place

# So often the nodes are asked who has which slot, while somebody needs to know.
_LOOK_EVERY_S = 1.0


class ClusterWire(Commands):
    """See :class:`..commands.Commands`."""

    _lock = OwnLock()
    """Guards that a child begins anew, once. Nobody waits under it."""

    address: ClusterAddress

    def __init__(self, address: ClusterAddress, options: Options, name: str) -> None:
        self.address = address
        self.options = options
        self.name = name
        self.slots = address.slots
        self.anchor_slot = slot_of(broker_keys(options.global_keyprefix).guard)
        self._dials_before = 0
        self._lost_s = inf
        # Before that nothing is late, and no node in doubt: it is asked for each ack.
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
        """Send what has waited for a connection; have an event loop watch it."""
        self.posts.hurry()
        self._pipe.write()

    @property
    def alive(self) -> bool:
        """Whether the cluster was connected to, and not all of its nodes were lost since."""
        return self._connected and self._process == here()

    @property
    def waiting(self) -> bool:
        """Whether something posted has no reply yet."""
        return bool(self.posts) or any(wire.waiting for _, wire in self._open())

    @property
    def anchor_connection(self) -> Wire | None:
        """The connection to the anchor; where there is none, the last one."""
        wire = self.nodes.open(self.slots.place_of(self.anchor_slot))
        if wire is not None:
            self._anchor = wire
        return self._anchor

    @property
    def client_id(self) -> int:
        """The anchor's name for its connection; where there is none, for the last one."""
        wire = self.anchor_connection
        return 0 if wire is None else wire.client_id

    @property
    def connected_at(self) -> float:
        """When the connection to the anchor began to be opened (monotonic clock)."""
        wire = self.anchor_connection
        return 0.0 if wire is None else wire.connected_at

    @property
    def dials(self) -> int:
        """Grows whenever a connection to a node is opened."""
        return self._dials_before + self.nodes.dials

    def _open(self) -> list[tuple[Place, Wire]]:
        return self.nodes.all() if self._process == here() else []

    def connect(self) -> None:
        """Connect to the anchor, or where it is lost to any node; raises BrokerUnavailable."""
        self._leave_parent()
        if self._connected:
            return
        self._refuse_closed()
        if self.slots.place_of(self.anchor_slot) is None:
            self.slots.refresh(self.options, self.name)
        try:
            self.wire_of(self.anchor_slot)
        except BrokerUnavailable as exc:
            anchor = self.slots.place_of(self.anchor_slot)  # which takes its time again
            if not self.nodes.reach_any(anchor):
                self.slots.refresh(self.options, self.name)  # somebody answers; but can be reached?
                if not self.nodes.reach_any(self.slots.place_of(self.anchor_slot)):
                    raise again(exc) from exc
        self.connections += 1
        self._connected = True

    def connect_to_post(self) -> None:
        """Have the connection to the anchor that is posted over; raises BrokerUnavailable."""
        self.wire_of(self.anchor_slot).connect_to_post()

    def close(self) -> None:
        """Close for good; commands under way, and later ones, get a BrokerUnavailable."""
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
        """Return what is readable when a reply has come, or there is another connection."""
        self.connect()
        found: dict[int, object] = {self._pipe.fileno(): self._pipe}
        for _, wire in self._open():
            if wire.alive and wire.pipeline.stream is not None:
                with suppress(BrokerUnavailable, OSError):
                    found[wire.fileno()] = wire
        return found

    def disable_reconnect(self) -> None:
        """Do nothing: a connection that has failed is made anew in any case."""

    def check(self) -> None:
        """Look whether a node is late with a reply; who has asked hears of it."""
        for place, wire in self._open():
            if wire.alive and wire.silent_s < self._late_after_s:
                continue
            with suppress(BrokerUnavailable):
                wire.check()
            if not wire.alive:  # found once; who needs its node dials anew
                error = BrokerUnavailable(f"{wire.address}: the connection was lost")
                self.nodes.drop(place, wire, error)
                self.doubt()
            elif wire.silent_s > SILENCE_S:
                self.doubt()
        self._look_if_in_doubt()
        self.posts.pump()

    def is_away(self, slot: int) -> bool:
        """Whether it is known that nobody serves *slot* now; does not wait.

        Known is what became of the last try, whoever made it. Who goes by this makes none, so
        another thread does: the node may be back, or another have its slots.
        """
        place = self.slots.place_of(slot)
        wire = self.nodes.open(place)
        if wire is not None and wire.waiting:  # a process that only calls reads no replies to posts
            with suppress(BrokerUnavailable):
                wire.receive()
        if self.posts.holds(slot):
            return True
        known = place is not None and place not in self.slots.away
        if known and (wire is None or wire.silent_s <= SILENCE_S):
            return False
        self._leave_parent()
        self.doubt()
        if place is not None:
            with suppress(BrokerUnavailable):  # no thread can be had: the next one asks
                self.nodes.look_soon(place)
        return True

    # -- the nodes

    def wire_of(self, slot: int) -> Wire:
        """Return the connections to the node of *slot*; dials if need be.

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
        """Wait no longer than that for a slot that has no node, or one that no replica replaces.

        Such a node is left alone for so long, too.
        """
        self._lost_s = self.unserved.lost_s = after_s
        self.nodes.left_alone_s = 0.0 if after_s == inf else after_s

    def doubt(self) -> None:
        """Have another thread ask who has which slot, soon: a node is lost, or silent."""
        self._doubts = True
        self._look_if_in_doubt()

    def _look_if_in_doubt(self) -> None:
        if self._doubts and self.slots.age_s > _LOOK_EVERY_S and not self._closed:
            with suppress(BrokerUnavailable):  # no thread can be had: who needs the node asks again
                self.nodes.do_soon(None, self.look_for_nodes)

    def look_for_nodes(self) -> None:
        """Ask who has which slot; give up those that are silent and have none any more."""
        self._doubts = False
        try:
            self.slots.refresh(self.options, self.name)
        except ReliqError:
            self._look_for_a_word()
            return
        masters = self.slots.masters
        for place, wire in self._open():
            if place not in masters and (wire.silent_s > SILENCE_S or not wire.waiting):
                self.nodes.drop(place, wire, BrokerUnavailable(f"{wire.address} has been replaced"))
        self._nodes_changed()

    def _look_for_a_word(self) -> None:
        """Find out whether all of the cluster is lost: no node answers who is asked anew."""
        for _, wire in self._open():
            with suppress(BrokerUnavailable):
                if wire.alive and not wire.waiting:
                    wire.post(("PING",))  # one over which nothing is asked would never fail
                wire.check()
        if not any(wire.alive for _, wire in self._open()):
            self._connected = False
            self._pipe.write()

    def _call_hears_nothing(self, place: Place) -> None:
        """Give a call up where its node, silent for a second, has been replaced."""
        self.doubt()
        if place not in self.slots.masters:
            raise BrokerUnavailable(f"{place} has been replaced")

    # -- calls

    def replies(
        self, commands: Sequence[tuple[Command, Script | None]], patience_s: float = 0.0
    ) -> list[Reply]:
        """Write all *commands*; a refusal is a reply."""
        replies = [item.reply for item in self.tried(commands, patience_s)]
        return raise_first(replies, BrokerUnavailable)

    def call_in_order(self, command: Command, script: Script) -> Reply:
        """Run *command*: there is no order over several nodes."""
        return self.call(command, script)

    def tried(
        self, commands: Sequence[tuple[Command, Script | None]], patience_s: float = 0.0
    ) -> list[Request]:
        """Do as :meth:`replies` does, and say which node has answered; a loss is a reply, too."""
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
        """Write *command* now, or when its slot is served. Never waits."""
        self._leave_parent()
        self._refuse_closed()
        request = Request(self._slot_of(command), command, script, patience_s, on_reply)
        self.posts.post(request)

    def receive(self) -> None:
        """Read what has come, without waiting, and hand it out."""
        self._leave_parent()
        self._pipe.read()
        self.posts.receive()

    def wait_for_replies(self, timeout_s: float = inf) -> None:
        """Wait until everything that was posted so far has its reply; at most *timeout_s*."""
        self._leave_parent()
        self.posts.wait(min(monotonic() + timeout_s, self.calls.patience_ends_at), self.check)
