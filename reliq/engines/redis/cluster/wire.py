"""The wire of a cluster: a wire's methods, over one connection to each node.

A command goes to the node that has the slot of its first key; one without a key to the anchor,
the node of what belongs to no queue. Where that is the wrong node, or the slot is on its way,
nobody else hears of it: see :mod:`.parked`. Whoever waits waits for one node only.
"""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from ....errors import BrokerTimeout, BrokerUnavailable, ReliqError, again
from ....forks import OwnLock, here
from ....store.protocol import ignore_result
from ...pipe import Pipe
from .. import keys
from ..commands import Commands
from . import advice
from .asked import Asked, send, wait_for
from .nodes import Nodes
from .parked import Parked
from .request import Request, key_of, next_number, slot_for
from .slots import Place, slot_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from ....options import Options
    from ..posts import OnReply
    from ..scripts import Script
    from ..stream import Command, Reply
    from ..wire import Wire
    from .address import ClusterAddress

# The node has not carried it out: another may, or this one later.
_NOT_HERE = re.compile(r"^(MOVED|ASK|TRYAGAIN|CLUSTERDOWN|LOADING|MASTERDOWN|READONLY)\b")
_MOVED = re.compile(r"^MOVED (\d+) (.*):(\d+)$")
_ASK = re.compile(r"^ASK (\d+) (\S+)")
_ON_ITS_WAY = frozenset({"ASK", "TRYAGAIN"})
# Of those: where the whole map may be out of date.
_DOUBTFUL = frozenset({"CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY"})
# A node may name another that does not know of it yet, and names it in turn.
_MOVES_AT_ONCE = 3
# After so much silence other nodes are asked who has its slots: a frozen node never says.
_SILENCE_S = 1.0
# So often they are asked who has the slots of a node that is away, while somebody needs to know.
_LOOK_EVERY_S = 1.0
# Past socket_timeout, whoever waits for what is parked looks after it itself.
_LATE_S = 1.0


class _UnderWay:
    """What was asked of a slot and has no reply yet: over one connection, for its order."""

    __slots__ = ("count", "wire")

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.count = 0


class _Patience(threading.local):
    """Until when each thread waits for a node at most (monotonic clock)."""

    ends_at = inf


class ClusterWire(Commands):
    """See :class:`..commands.Commands`."""

    _lock = OwnLock()
    """Guards what is under way, by slot. Nobody waits under it."""

    address: ClusterAddress

    def __init__(self, address: ClusterAddress, options: Options, name: str) -> None:
        self.address = address
        self.options = options
        self.name = name
        self.slots = address.slots
        self.anchor_slot = slot_of(keys.queues(options.global_keyprefix))
        self._dials_before = 0
        self._lost_s = inf
        # Before that nothing is late, and no node in doubt: it is asked for each ack.
        self._late_after_s = min(options.socket_timeout, _SILENCE_S)
        self.connections = 0
        """How often the cluster was connected to, after all of it was lost."""
        self._connected = False
        self._closed = False
        self._pipe = Pipe()
        self._patience = _Patience()
        self._begin()

    def _begin(self) -> None:
        process = here()
        self.nodes = Nodes(self.slots, self.options, self.name, self._nodes_changed)
        self._anchor: Wire | None = None
        self._under_way: dict[int, _UnderWay] = {}
        self._parked = Parked(self, self.options.socket_timeout, str(self.address))
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
        """Go on with what has waited for a connection; have an event loop watch it."""
        self._parked.try_now()
        self._pipe.write()

    # -- state

    @property
    def alive(self) -> bool:
        """Whether the cluster was connected to, and not all of its nodes were lost since."""
        return self._connected and self._process == here()

    @property
    def waiting(self) -> bool:
        """Whether something posted has no reply yet."""
        return bool(self._parked) or any(wire.waiting for _, wire in self._open())

    @property
    def _anchor_if_open(self) -> Wire | None:
        wire = self.nodes.open(self.slots.place_of(self.anchor_slot))
        if wire is not None:
            self._anchor = wire
        return self._anchor

    @property
    def client_id(self) -> int:
        """The anchor's name for its connection; where there is none, for the last one."""
        wire = self._anchor_if_open
        return 0 if wire is None else wire.client_id

    @property
    def connected_at(self) -> float:
        """When the connection to the anchor began to be opened (monotonic clock)."""
        wire = self._anchor_if_open
        return 0.0 if wire is None else wire.connected_at

    @property
    def anchor_connection(self) -> object:
        """The connection to the anchor; where there is none, the last one."""
        return self._anchor_if_open

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
            if not self._reaches_another():
                self.slots.refresh(self.options, self.name)  # somebody answers; but can be reached?
                if not self._reaches_another():
                    raise again(exc) from exc
        self.connections += 1
        self._connected = True

    def connect_to_post(self) -> None:
        """Have the connection to the anchor that is posted over; raises BrokerUnavailable."""
        self.wire_of(self.anchor_slot).connect_to_post()

    def _reaches_another(self) -> bool:
        """Whether a node can be reached that is not the anchor, which takes its time again."""
        anchor = self.slots.place_of(self.anchor_slot)
        for place in sorted(self.slots.masters - {anchor}):
            with suppress(ReliqError):
                self.nodes.connect(place)
                return True
        return False

    def close(self) -> None:
        """Close for good; commands under way, and later ones, get a BrokerUnavailable."""
        self._leave_parent()
        self._closed = True
        self._connected = False
        self._parked.close(self._closed_error())
        self.nodes.close()
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
            if wire.alive:
                with suppress(BrokerUnavailable):
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
                self._parked.doubt()
            elif wire.silent_s > _SILENCE_S:
                self._parked.doubt()
        if self._parked:
            self._parked.revive()

    def is_away(self, slot: int) -> bool:
        """Whether it is known that nobody serves *slot* now; does not wait.

        Known is what became of the last try, whoever made it. Who goes by this makes none, so
        another thread does: the node may be back, or another have its slots.
        """
        if self._parked.holds(slot):
            return True
        place = self.slots.place_of(slot)
        if place is not None and place not in self.slots.away:
            wire = self.nodes.open(place)
            if wire is None or wire.silent_s <= _SILENCE_S:
                return False
        self._leave_parent()
        if self.slots.age_s > _LOOK_EVERY_S:
            self._parked.doubt()
        if place is not None:
            with suppress(BrokerUnavailable):  # no thread can be had: the next one asks
                self.nodes.look_soon(place)
        return True

    # -- the nodes

    def wire_of(self, slot: int) -> Wire:
        """Return the connection to the node of *slot*; dials if need be.

        Raises BrokerUnavailable.
        """
        self._refuse_closed()
        place = self.slots.place_of(slot)
        if place is None:
            self.slots.refresh(self.options, self.name)
            place = self.slots.place_of(slot)
        if place is None:
            raise BrokerUnavailable(f"{self._uncovered(slot)}: {advice.COVER}")
        return self.nodes.connect(place)

    def _uncovered(self, slot: int) -> str:
        return f"{self.address}: no node has slot {slot}"

    def give_up_lost_slots(self, after_s: float) -> None:
        """Wait no longer than that for a slot that is lost until somebody does something.

        No node has it; or one that cannot be reached, and has no replica that could take over:
        it is left alone for so long, too.
        """
        self._lost_s = self._parked.lost_s = after_s
        self.nodes.left_alone_s = 0.0 if after_s == inf else after_s

    def holds(self, slot: int) -> bool:
        """Whether something waits for *slot*, and is tried again and again."""
        return self._parked.holds(slot)

    def reason(self, slot: int) -> str:
        """Return why what waits for *slot* waits, and what to do about that."""
        return self._parked.reason(slot)

    def each_master(self) -> Iterator[tuple[Place, Wire | ReliqError]]:
        """Yield each node that has slots, with the connection to it, or why there is none."""
        for place in sorted(self.slots.masters):
            found: Wire | ReliqError
            try:
                found = self.nodes.connect(place)
            except ReliqError as exc:
                found = again(exc)
            yield place, found

    # -- commands

    def post_packed(
        self,
        data: bytes,
        command: Command,
        on_reply: OnReply = ignore_result,
        script: Script | None = None,
        patience_s: float = 0.0,
    ) -> None:
        """Write *data*, which is *command* packed; otherwise as :meth:`post`."""
        self._leave_parent()
        self._refuse_closed()
        slot = slot_for(command, self.anchor_slot)
        request = Request(slot, command, script, patience_s, on_reply)
        if self._parked.take(request):
            return
        wire = self._begin_on(request)
        if wire is None:
            why = "there is no connection to its node yet"
            self._parked.park(request, why, at_once=True)
            return
        try:
            self._write(wire, request, data)
        except BrokerUnavailable as exc:
            if request.sent is not None:  # it will be answered: a handler of others has raised
                raise
            self._parked.park(request, str(exc), at_once=True)

    def call(self, command: Command, script: Script | None = None) -> Reply:
        """Write *command*, wait for its reply and return it; raises ReliqError."""
        return self.request(command, script).reply

    def request(self, command: Command, script: Script | None = None) -> Request:
        """Do as :meth:`call` does, and say which node has answered."""
        request = self.requests(((command, script),))[0]
        if isinstance(request.reply, ReliqError):
            raise again(request.reply)
        return request

    def execute_in_order(self, script: Script, keys: Sequence[str], args: Sequence[Any]) -> Reply:
        """Run *script*: there is no order over several nodes."""
        return self.execute(script, keys, args)

    def replies(
        self, commands: Sequence[tuple[Command, Script | None]], patience_s: float = 0.0
    ) -> list[Reply]:
        """Do as :meth:`exchange` does; what a command is refused with is its reply."""
        return [request.reply for request in self.requests(commands, patience_s)]

    def requests(
        self, commands: Sequence[tuple[Command, Script | None]], patience_s: float = 0.0
    ) -> list[Request]:
        """Do as :meth:`replies` does, and say which node has answered what.

        What could not be sent when this is interrupted, or out of patience, is not sent later.
        """
        requests = self.tried(commands, patience_s)
        for request in requests:
            if isinstance(request.reply, BrokerUnavailable):
                raise again(request.reply)
        return requests

    def tried(
        self, commands: Sequence[tuple[Command, Script | None]], patience_s: float = 0.0
    ) -> list[Request]:
        """Do as :meth:`requests` does; that a node was lost is a reply, too."""
        self._leave_parent()
        self._refuse_closed()
        requests = [
            Request(slot_for(command, self.anchor_slot), command, script, patience_s)
            for command, script in commands
        ]
        ends_at = self._patience.ends_at
        try:
            self._send_called(requests)
            for request in requests:
                self._wait_for(request, ends_at)
        except BaseException:
            self._give_up(requests)
            raise
        left = [request for request in requests if not request.finished]
        if left:
            self._give_up(left)
            slot = left[0].slot
            raise BrokerTimeout(
                f"{self.address}: nobody waits longer for slot {slot}: {self.reason(slot)}"
            )
        return requests

    def _give_up(self, requests: Sequence[Request]) -> None:
        """Wait no more for those that have no reply."""
        for request in requests:
            if request.finished:
                continue
            request.given_up = True
            self._parked.withdraw(request)
            sent = request.sent
            # What was parked is ended by whoever sends it, what has a handler by its reply.
            mine = request.parked_at is None if sent is None else sent[1].handler is None
            if mine:
                self._end_on(request)

    @contextmanager
    def patience(self, seconds: float) -> Iterator[None]:
        """Let this thread wait no longer than that for a node: BrokerTimeout is raised then."""
        before = self._patience.ends_at
        self._patience.ends_at = min(before, monotonic() + seconds)
        try:
            yield
        finally:
            self._patience.ends_at = before

    def _send_called(self, requests: Sequence[Request]) -> None:
        """Send what threads wait for: all for one connection at once."""
        by_wire: dict[Wire, list[Request]] = {}
        impatient = self._patience.ends_at < inf
        for request in requests:
            if self._parked.take(request):
                continue
            wire = self._begin_on(request)
            if wire is None and not impatient:
                try:
                    self.wire_of(request.slot)
                except BrokerUnavailable as exc:
                    self._parked.park(request, str(exc))
                    self._parked.doubt()
                    continue
                wire = self._begin_on(request)
            if wire is None:
                why = "there is no connection to its node yet"
                self._parked.park(request, why, at_once=True)
                continue
            by_wire.setdefault(wire, []).append(request)
        for wire, mine in by_wire.items():
            asked = []
            for request in mine:
                item = Asked(request.command, request.script, request.patience_s)
                request.sent = (wire, item)
                asked.append(item)
            try:
                send(wire, asked)
            except BrokerUnavailable as exc:
                for request in mine:
                    request.sent = None
                    self._end_on(request)
                    self._parked.park(request, str(exc))
                self._parked.doubt()

    def _wait_for(self, request: Request, ends_at: float = inf) -> None:
        while not request.finished:
            left_s = _SILENCE_S if ends_at == inf else min(ends_at - monotonic(), _SILENCE_S)
            if left_s <= 0:
                return
            sent = request.sent
            if sent is None:
                self._wait_parked(request, monotonic(), left_s)
                continue
            wire, asked = sent
            wait_for(wire, (asked,), left_s)
            if not asked.finished:
                if wire.silent_s > _SILENCE_S:
                    self._parked.doubt()
            elif asked.handler is None and not request.finished:
                self._on_reply(request, wire, asked.reply)

    def _wait_parked(self, request: Request, now: float, left_s: float) -> None:
        since = now if request.parked_at is None else request.parked_at
        late = now - since > self.options.socket_timeout + _LATE_S
        if late and self._parked.withdraw(request):  # the thread, if there is one, has not
            self.fail(request, self._parked.late(request))
        else:
            self._parked.wait(request, left_s)

    # -- the order within a slot

    def _begin_on(self, request: Request) -> Wire | None:
        """Return the connection that *request* goes over; None where there is none.

        That over which others of its slot are under way: where the slot has moved they all hear
        of it, in order, whoever may have learned it before. But not for ever, whatever is said to
        be under way there.
        """
        with self._lock:
            known = self._under_way.get(request.slot)
            if known is None or not known.wire.alive or request.moves > _MOVES_AT_ONCE:
                wire = self.nodes.open(self.slots.place_of(request.slot))
                if wire is None:
                    return None
                if known is None or known.wire is not wire:
                    known = self._under_way[request.slot] = _UnderWay(wire)
            known.count += 1
            request.begun = known.wire
            return known.wire

    def _end_on(self, request: Request) -> None:
        """Note that *request* is under way no more; harmless where it is not."""
        wire, request.begun = request.begun, None
        self._end_under_way(request.slot, wire)

    def _end_under_way(self, slot: int, wire: Wire | None) -> None:
        with self._lock:
            known = self._under_way.get(slot)
            if known is not None and known.wire is wire:
                known.count -= 1
                if known.count <= 0:
                    del self._under_way[slot]

    # -- replies

    def receive(self) -> None:
        """Read what has come, without waiting, and hand it out."""
        self._leave_parent()
        self._pipe.read()
        for _, wire in self._open():
            try:
                wire.receive()
            except BrokerUnavailable:  # noqa: PERF203 - one of few
                self._parked.doubt()

    def wait_for_replies(self, timeout_s: float = inf, but_for: Container[int] = ()) -> None:
        """Wait until everything that was posted so far has its reply; at most *timeout_s*.

        but_for: slots for which nobody waits.
        """
        self._leave_parent()
        ends_at = min(monotonic() + timeout_s, self._patience.ends_at)
        later = next_number()
        for _, wire in self._open():
            with suppress(BrokerUnavailable):  # who posted was told
                wire.wait_for_replies(max(ends_at - monotonic(), 0.0))
        while before := [
            item
            for item in self._parked.waiting()
            if item.number < later and item.slot not in but_for
        ]:
            for request in before:
                self._wait_for(request, ends_at)
            if monotonic() >= ends_at:
                return

    def _on_reply(self, request: Request, wire: Wire, reply: Reply) -> None:
        # It may begin anew, in another thread, before this has ended.
        begun, request.begun = request.begun, None
        try:
            redirected = isinstance(reply, ReliqError) and self._redirected(request, wire, reply)
        finally:
            self._end_under_way(request.slot, begun)
        if not redirected:
            request.answered_by = wire
            self._finish(request, reply)

    def _redirected(self, request: Request, wire: Wire, error: ReliqError) -> bool:
        """Have *request* tried again where the node has only said that it is the wrong one."""
        found = _NOT_HERE.match(error.reply)
        if found is None:
            if isinstance(error, BrokerTimeout) and not error.reply:
                self.nodes.silent(wire)
            return False
        moved = _MOVED.match(error.reply)
        if moved is not None:
            slot, host, port = moved.groups()
            self.slots.moved(int(slot), host or getattr(wire.address, "host", ""), int(port))
            request.moves += 1
        at_once = moved is not None and request.moves <= _MOVES_AT_ONCE
        why, advised = f"{wire.address} says {error.reply}", advice.for_reply(error.reply)
        self._parked.park(request, why, at_once=at_once, advised=advised)
        if found[1] in _DOUBTFUL:
            self._parked.doubt()
        elif found[1] in _ON_ITS_WAY and self._parked.lacks_way(request):
            self._ask_way(request, wire)
        return True

    def _ask_way(self, request: Request, wire: Wire) -> None:
        """Have a node say where the slot goes: of a key that is not there it says so, by ASK."""
        key = key_of(request.command)
        if key is not None:
            absent = key + b":guard" if isinstance(key, bytes) else f"{key}:guard"
            with suppress(BrokerUnavailable):
                wire.post(("EXISTS", absent), partial(self._note_way, wire))

    def _note_way(self, wire: Wire, reply: Reply) -> None:
        found = _ASK.match(reply.reply) if isinstance(reply, ReliqError) else None
        if found is not None:
            way = f"it is on its way from {wire.address} to {found[2]}"
            self._parked.note_way(int(found[1]), way)

    def _finish(self, request: Request, reply: Reply) -> None:
        request.reply = reply
        request.finished = True
        if request.parked_at is not None:
            lost = isinstance(reply, BrokerUnavailable) and not reply.reply
            self._parked.replied(request, served=not lost)
        if request.on_reply is not None:
            request.on_reply(reply)

    # -- for the notifier

    def heed_redirection(self, error: ReliqError) -> bool:
        """Learn from what a node has said to another of our connections.

        False where it is the connection that has failed.
        """
        moved = _MOVED.match(error.reply)
        if moved is not None and moved[2]:
            self.slots.moved(int(moved[1]), moved[2], int(moved[3]))
            return True
        return _NOT_HERE.match(error.reply) is not None

    def doubt(self) -> None:
        """Have the nodes looked for: one is lost."""
        self._parked.doubt()

    def unblock(self, place: Place, client_id: int, on_reply: OnReply) -> None:
        """End the wait of one of our connections to a node; does not wait.

        Raises BrokerUnavailable, and *on_reply* is not called then.
        """
        wire = self.nodes.open(place)
        if wire is None:
            raise BrokerUnavailable(f"{self.address}: there is no connection to {place}")
        wire.post(("CLIENT", "UNBLOCK", client_id), on_reply)

    # -- what :class:`Parked` asks for

    def send_again(self, request: Request) -> None:
        """Send it to the node that has its slot now; raises BrokerUnavailable. Does not wait."""
        self._refuse_closed()
        wire = self._begin_on(request)
        if wire is None:
            place = self.slots.place_of(request.slot)
            if place is None:
                raise BrokerUnavailable(self._uncovered(request.slot))
            self.nodes.require_reachable(place)
            self.nodes.connect_soon(place)
            why = self.nodes.failure(place)  # while it is tried again, too: an error is to tell
            raise BrokerUnavailable(why or f"{self.address}: {place} is being connected to")
        self._write(wire, request, None)

    def judge(self, slot: int) -> tuple[str, bool]:
        """Return what to do about a slot for which nothing can be sent, and whether it is lost."""
        place = self.slots.place_of(slot)
        if place is None:
            return advice.COVER, True
        if place not in self.slots.away:
            return "", False
        replica = self.slots.has_replica(place)
        return advice.for_node(place, replica=replica), not replica

    def _write(self, wire: Wire, request: Request, data: bytes | None) -> None:
        on_reply = partial(self._on_reply, request, wire)
        asked = Asked(request.command, request.script, request.patience_s, on_reply)
        request.sent = (wire, asked)
        try:
            asked.send(wire, data)
        except BaseException:  # also a signal's, or what a handler of others has raised
            if not asked.taken:  # else its reply ends it
                request.sent = None
                self._end_on(request)
            raise

    def read_reply(self, request: Request, timeout_s: float) -> None:
        """Wait for the reply to what was sent; at most so long."""
        sent = request.sent
        if sent is not None:
            wire, asked = sent
            wait_for(wire, (asked,), timeout_s)

    def fail(self, request: Request, error: ReliqError) -> None:
        """Let *error* be what has become of it."""
        error = again(error)
        if isinstance(error, BrokerUnavailable):
            error.unsent = request.sent is None
        self._finish(request, error)

    def look_for_nodes(self) -> None:
        """Ask who has which slot; give up those that are silent and have none any more."""
        try:
            self.slots.refresh(self.options, self.name)
        except ReliqError:
            self._look_for_a_word()
            return
        masters = self.slots.masters
        for place, wire in self._open():
            if place not in masters and (wire.silent_s > _SILENCE_S or not wire.waiting):
                self.nodes.drop(place, wire, BrokerUnavailable(f"{wire.address} has been replaced"))

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
