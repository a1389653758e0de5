"""The wire of a cluster: a wire's methods, over connections to each node.

A command goes to the node that has the slot of its first key; one without a key to the anchor,
the node of what belongs to no queue. A node that is the wrong one, or that does not serve the slot
now, has not carried it out: a call is sent again by the thread that waits for it, a post by those
that read (:mod:`.retries`), until ``socket_timeout``. A call waits for one node only.
"""

from __future__ import annotations

import re
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from ....errors import BrokerTimeout, BrokerUnavailable, ReliqError, again
from ....forks import OwnLock, here
from ....store.values import ignore_result
from ...pipe import Pipe
from .. import keys
from ..commands import Commands, require_reached
from ..posts import Post
from ..stream import SILENCE_S, pack
from . import advice
from .nodes import PATIENCE_S, Nodes
from .request import Request, key_of, next_number
from .retries import Retries, lengthen
from .slots import Place, slot_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from ....options import Options
    from ..posts import OnReply
    from ..scripts import Script
    from ..stream import Command, Reply, Stream
    from ..wire import Wire
    from .address import ClusterAddress

# The node has not carried it out: another may, or this one later.
_NOT_HERE = re.compile(r"^(MOVED|ASK|TRYAGAIN|CLUSTERDOWN|LOADING|MASTERDOWN|READONLY)\b")
_MOVED = re.compile(r"^MOVED (\d+) (.*):(\d+)$")
_ASK = re.compile(r"^ASK (\d+) (\S+)")
_ON_ITS_WAY = frozenset({"ASK", "TRYAGAIN"})
# A node may name another that does not know of it yet, and names it in turn.
_MOVES_AT_ONCE = 3
# A node that has not answered a call for so long is away, until it answers.
_SILENT_S = 0.9
# So often the nodes are asked who has which slot, while somebody needs to know.
_LOOK_EVERY_S = 1.0
# A thread that waits for posts looks so often at those that are sent again, and at other nodes.
_LOOK_AGAIN_S = 0.005
_READS_S = 0.02


class _Patience(threading.local):
    """Until when each thread waits for a node at most (monotonic clock)."""

    ends_at = inf


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
        self.anchor_slot = slot_of(keys.queues(options.global_keyprefix))
        self._dials_before = 0
        self._lost_s = inf
        # Before that nothing is late, and no node in doubt: it is asked for each ack.
        self._late_after_s = min(options.socket_timeout, SILENCE_S)
        self._connected = False
        self._closed = False
        self._pipe = Pipe()
        self._patience = _Patience()
        self._begin()

    def _begin(self) -> None:
        process = here()
        self.nodes = Nodes(
            self.slots, self.options, self.name, self._nodes_changed, self._call_hears_nothing
        )
        self._anchor: Wire | None = None
        self._doubts = False
        self._retries = Retries(self._send_post, self._give_up_late)
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
        self._retries.hurry()
        self._retries.pump()
        self._pipe.write()

    # -- state

    @property
    def alive(self) -> bool:
        """Whether the cluster was connected to, and not all of its nodes were lost since."""
        return self._connected and self._process == here()

    @property
    def waiting(self) -> bool:
        """Whether something posted has no reply yet."""
        return bool(self._retries) or any(wire.waiting for _, wire in self._open())

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
        self.nodes.close()
        for request in self._retries.take_all():
            self._fail(request, self._closed_error())
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
            if wire.alive and wire.posts.stream is not None:
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
        self._retries.pump()

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
        if self.holds(slot):
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
        self._lost_s = after_s
        self.nodes.left_alone_s = 0.0 if after_s == inf else after_s

    def holds(self, slot: int) -> bool:
        """Whether a post waits for *slot*, and is sent again and again."""
        return self._retries.of(slot) is not None

    def reason(self, slot: int) -> str:
        """Return why the posts of *slot* wait, and what to do about that."""
        request = self._retries.of(slot)
        return "no reason is known" if request is None else request.told

    def each_master(self) -> Iterator[tuple[Place, Wire | ReliqError]]:
        """Yield each node that has slots, with the connections to it, or why there is none."""
        for place in sorted(self.slots.masters):
            found: Wire | ReliqError
            try:
                found = self.nodes.connect(place)
            except ReliqError as exc:
                found = again(exc)
            yield place, found

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
        return require_reached([item.reply for item in self.tried(commands, patience_s)])

    def execute_in_order(self, script: Script, keys: Sequence[str], args: Sequence[Any]) -> Reply:
        """Run *script*: there is no order over several nodes."""
        return self.execute(script, keys, args)

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
        left = requests
        while True:
            self._call(left)
            left = [request for request in left if not request.finished]
            left = [request for request in left if not self._give_up_late(request)]
            if not left:
                return requests
            if monotonic() >= self._patience.ends_at:
                slot = left[0].slot
                raise BrokerTimeout(
                    f"{self.address}: nobody waits longer for slot {slot}: {left[0].told}"
                )
            if not all(0 < request.moves <= _MOVES_AT_ONCE for request in left):
                time.sleep(max(map(lengthen, left)))

    @contextmanager
    def patience(self, seconds: float) -> Iterator[None]:
        """Let this thread wait no longer than that for a node: BrokerTimeout is raised then."""
        before = self._patience.ends_at
        self._patience.ends_at = min(before, monotonic() + seconds)
        try:
            yield
        finally:
            self._patience.ends_at = before

    def _slot_of(self, command: Command) -> int:
        key = key_of(command)
        return self.anchor_slot if key is None else slot_of(key)

    def _call(self, requests: Sequence[Request]) -> None:
        """Send them, all for one node at once, and wait for their replies."""
        by_wire: dict[Wire, list[Request]] = {}
        for request in requests:
            wire = self._wire_to_call(request)
            if wire is not None:
                by_wire.setdefault(wire, []).append(request)
        begun: list[tuple[Wire, list[Request], Stream]] = []
        try:
            for wire, mine in by_wire.items():
                try:
                    begun.append((wire, mine, wire.calls.begin(_asked(mine))))
                except BrokerUnavailable as exc:  # noqa: PERF203 - one of few
                    self.nodes.unreachable(wire, exc)
                    for request in mine:
                        self._not_served(request, str(exc))
            while begun:
                self._end_call(*begun.pop())
        finally:
            for _, _, stream in begun:
                stream.close()

    def _wire_to_call(self, request: Request) -> Wire | None:
        """Return the connections to its node; None where there are none now."""
        place = self.slots.place_of(request.slot)
        if place is None:
            self._not_served(request, self._uncovered(request.slot))
            return None
        if (wire := self.nodes.open(place)) is not None:
            return wire
        try:
            if self._patience.ends_at == inf:
                return self.nodes.connect(place)
            self._connect_soon(place)  # may take longer than this thread waits
            why = f"{place} is being connected to"
        except BrokerUnavailable as exc:
            why = str(exc)
        self._not_served(request, why)
        return None

    def _end_call(self, wire: Wire, requests: Sequence[Request], stream: Stream) -> None:
        patience_s = max(request.patience_s for request in requests)
        began = monotonic()
        try:
            ends_at = self._patience.ends_at
            replies = wire.calls.end(stream, _asked(requests), patience_s, ends_at)
        except BrokerUnavailable as exc:
            for request in requests:
                request.finish(again(exc))
            lost = not wire.alive
            # Also where only the patience of this thread was at an end.
            if isinstance(exc, BrokerTimeout) and (lost or monotonic() - began > _SILENT_S):
                self.nodes.silent(wire)
            if lost:
                self.doubt()
            return
        for request, reply in zip(requests, replies, strict=True):
            if not (isinstance(reply, ReliqError) and self._redirected(request, wire, reply)):
                request.finish(reply, wire)

    # -- a slot that is not served

    def _not_served(self, request: Request, why: str) -> None:
        """Note that *request* was not sent, and why; the nodes are looked for."""
        place = self.slots.place_of(request.slot)
        request.why, request.advice, request.lost = why, "", False
        if place is None:
            request.advice, request.lost = advice.COVER, True
        elif place in self.slots.away:
            replica = self.slots.has_replica(place)
            request.advice, request.lost = advice.for_node(place, replica=replica), not replica
        self.doubt()

    def _redirected(self, request: Request, wire: Wire, error: ReliqError) -> bool:
        """Whether the node has only said that it is the wrong one; what it says is noted."""
        found = _NOT_HERE.match(error.reply)
        if found is None:
            return False
        moved = _MOVED.match(error.reply)
        if moved is not None:
            slot, host, port = moved.groups()
            self.slots.moved(int(slot), host or getattr(wire.address, "host", ""), int(port))
            request.moves += 1
        elif found[1] not in _ON_ITS_WAY:
            self.doubt()
        request.why = f"{wire.address} says {error.reply}"
        request.advice, request.lost = advice.for_reply(error.reply), False
        way = _ASK.match(error.reply)
        if way is not None:
            request.way = f"it is on its way from {wire.address} to {way[2]}"
        return True

    def _find_way(self, request: Request) -> None:
        """Have the node say where the slot goes: of a key that is not there it says so, by ASK."""
        key, place = key_of(request.command), self.slots.place_of(request.slot)
        wire = None if place is None else self.nodes.open(place)
        if key is None or wire is None or request.way or " TRYAGAIN" not in request.why:
            return
        absent = key + b":guard" if isinstance(key, bytes) else f"{key}:guard"
        try:
            wire.ask(("EXISTS", absent), PATIENCE_S)
        except ReliqError as exc:
            found = _ASK.match(exc.reply)
            if found is not None:
                request.way = f"it is on its way from {wire.address} to {found[2]}"

    def _give_up_late(self, request: Request) -> bool:
        """Fail *request* where it has waited for too long; whether it has."""
        timeout_s = self.options.socket_timeout
        limit_s = min(self._lost_s, timeout_s) if request.lost else timeout_s
        if monotonic() - request.began <= limit_s:
            return False
        if request.on_reply is None:
            self._find_way(request)
        key = key_of(request.command)
        name = key.decode("utf-8", "replace") if isinstance(key, bytes) else key or "none"
        in_time = f"in time (socket_timeout {timeout_s:g} s)"
        error = BrokerTimeout(
            f"{self.address}: slot {request.slot} was not served "
            f"{in_time if limit_s >= timeout_s else f'within {limit_s:g} s'}: {request.told}. It "
            f"was asked for {advice.named(name)}; nothing was changed"
        )
        error.unsent = True
        self._fail(request, error)
        return True

    def _fail(self, request: Request, error: ReliqError) -> None:
        request.finish(error)
        self._retries.remove(request)
        if request.on_reply is not None:
            request.on_reply(error)

    # -- posts

    def post_packed(
        self,
        data: bytes,
        command: Command,
        on_reply: OnReply = ignore_result,
        script: Script | None = None,
        patience_s: float = 0.0,
    ) -> None:
        """Write *data* now, or when its slot is served. Never waits."""
        self._leave_parent()
        self._refuse_closed()
        slot = self._slot_of(command)
        request = Request(slot, command, script, patience_s, on_reply)
        if self.holds(slot):
            self._retries.add(request, 0.0)  # behind the others
            self._retries.pump()
        else:
            self._send_post(request, data)

    def _send_post(self, request: Request, data: bytes | None = None) -> None:
        """Write it to its node, or put it off."""
        place = self.slots.place_of(request.slot)
        wire = self.nodes.open(place)
        if wire is not None:
            handler = partial(self._replied, request, wire)
            post = Post(request.command, request.script, request.patience_s, handler)
            try:
                if wire.posts.post(data or pack(request.command), post):
                    return
                why = "there is no connection to its node yet"
            except BrokerUnavailable as exc:
                if post.number:  # it will be answered: a handler of others has raised
                    raise
                why = str(exc)
        elif place is None:
            why = self._uncovered(request.slot)
        else:
            why = self.nodes.failure(place) or f"{place} is being connected to"
        self._not_served(request, why)
        self._retries.add(request, lengthen(request))
        if place is not None:
            try:
                self._connect_soon(place)
            except BrokerUnavailable as exc:
                request.why = str(exc)

    def _connect_soon(self, place: Place) -> None:
        self.nodes.require_reachable(place)
        self.nodes.connect_soon(place)

    def _replied(self, request: Request, wire: Wire, reply: Reply) -> None:
        if isinstance(reply, ReliqError):
            if self._redirected(request, wire, reply):
                at_once = 0 < request.moves <= _MOVES_AT_ONCE
                self._retries.add(request, 0.0 if at_once else lengthen(request))
                return
            if isinstance(reply, BrokerTimeout) and not reply.reply:
                self.nodes.silent(wire)
        request.finish(reply, wire)
        self._retries.remove(request)
        if request.on_reply is not None:
            request.on_reply(reply)

    def receive(self) -> None:
        """Read what has come, without waiting, and hand it out."""
        self._leave_parent()
        self._pipe.read()
        for _, wire in self._open():
            try:
                wire.receive()
            except BrokerUnavailable:  # noqa: PERF203 - one of few
                self.doubt()
        self._retries.pump()

    def wait_for_replies(self, timeout_s: float = inf, but_for: Container[int] = ()) -> None:
        """Wait until everything that was posted so far has its reply; at most *timeout_s*.

        but_for: slots for which nobody waits.
        """
        self._leave_parent()
        ends_at = min(monotonic() + timeout_s, self._patience.ends_at)
        later = next_number()
        posts = [(wire.posts, wire.posts.number) for _, wire in self._open()]
        while True:
            self._retries.pump()
            posts = [(known, number) for known, number in posts if not known.are_over(number)]
            put_off = self._retries.before(later, but_for)
            if not (posts or put_off) or monotonic() >= ends_at:
                return
            if put_off:
                self.receive()
            for known, number in posts:
                with suppress(BrokerUnavailable):  # who posted was told
                    known.wait(_READS_S if len(posts) > 1 or put_off else _LOOK_EVERY_S, number)
            if not posts:
                time.sleep(_LOOK_AGAIN_S)
            self.check()

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

    def unblock(self, place: Place, client_id: int, on_reply: OnReply) -> None:
        """End the wait of one of our connections to a node; does not wait.

        Raises BrokerUnavailable, and *on_reply* is not called then.
        """
        wire = self.nodes.open(place)
        if wire is None:
            raise BrokerUnavailable(f"{self.address}: there is no connection to {place}")
        wire.post(("CLIENT", "UNBLOCK", client_id), on_reply)


def _asked(requests: Sequence[Request]) -> list[tuple[Command, Script | None]]:
    return [(request.command, request.script) for request in requests]
