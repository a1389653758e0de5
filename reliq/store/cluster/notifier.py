"""The notifier of a cluster: a BLPOP for each slot, each over a separate connection.

One BLPOP cannot wait for keys of several slots. Therefore each slot of the consumed queues has a
single-server notifier, up to :data:`MOST`; the consumer polls the queues of further slots. A wait
consists of one part for each slot. A part that has ended begins again with the next wait, and the
others continue. A slot whose node is unreachable is omitted until the node is back.
"""

from __future__ import annotations

import random
from collections import deque
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from ...client.cluster.slots import Place, slot_of
from ...client.poll import Pipe, many_may_wait, readable
from ...client.wire import Wire
from ...errors import BrokerRefused, BrokerUnavailable, ReliqError, again
from ...forks import here
from ...lua.keys import queue_keys
from ..notifier import RedisNotifier

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ...client.cluster.wire import ClusterWire
    from ...client.pipeline import OnReply

MOST = 8
"""The maximum number of connections for notifications."""
# Poll intervals between two queries of a queue whose slot has no connection.
_POLLS = 1.2
# A slot without a wait for this time loses its connection to another slot.
_FORGOTTEN_S = 60.0
# The delay of a wait after which the nodes are checked, because one may be frozen.
_LATE_S = 1.0
# How often a waiting thread checks whether other threads still read the replies left to them.
_POLL_AGAIN_S = 0.1
# The pause before a slot without a wait is tried again.
_AGAIN_S = 0.25
# The reason of a wake-up: a call from another thread; a new connection of a part, or a poll.
_WOKEN, _PROCEED = b"w", b"p"


class _Part:
    """A connection, and its wait for the queues of one slot."""

    def __init__(self, wire: Wire, place: Place, cluster: ClusterWire) -> None:
        self.wire = wire
        self.place = place
        self.notifier = RedisNotifier(wire, cluster, partial(_unblock, cluster, place, wire))
        self.ready = False
        """Whether the opening of its connection has ended, with success or failure."""
        self.queues: tuple[str, ...] = ()
        """The queues that it waits for."""
        self.begun = False
        """Whether the wait has begun; if not, it begins when the part is ready."""
        self.until = 0.0

    @property
    def usable(self) -> bool:
        """Whether it is connected or connecting."""
        return not self.ready or self.wire.alive


class ClusterNotifier:
    """See :class:`..notifier.RedisNotifier`. Not thread-safe, except for :meth:`wake`."""

    def __init__(self, cluster: ClusterWire, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self._prefix = cluster.options.global_keyprefix
        self._pipe = Pipe()
        self._poll_s = _POLLS * cluster.options.poll_interval
        self._forget()

    def _forget(self) -> None:
        self._parts: dict[int, _Part] = {}
        self._waits: set[int] = set()  # the slots whose part waits
        self._slots: frozenset[int] = frozenset()  # the slots of the latest wait
        self._left_out: dict[int, float] = {}  # the omitted slots: when to try again
        self._chosen: dict[int, float] = {}  # the slots with a connection: their last wait
        self.queues: frozenset[str] = frozenset()
        """The queues of the current or the latest wait."""
        self._unheard: frozenset[str] = frozenset()  # those without a connection
        self._poll_at = 0.0  # when to query them
        self._due: frozenset[str] = frozenset()
        self.polled: frozenset[str] = frozenset()
        """As of the last :meth:`receive`; see :class:`..notifier.RedisNotifier`."""
        self._notified: deque[str] = deque()
        self._process = here()

    # -- state

    @property
    def listening(self) -> bool:
        """Whether all parts of a wait are in progress."""
        if self._process != here() or not self._slots <= self._waits:
            return False
        return bool(self._slots) and monotonic() < min(self._left_out.values(), default=inf)

    @property
    def _poll_in_s(self) -> float:
        """The seconds until queues without a connection are queried."""
        return self._poll_at - monotonic() if self._unheard else inf

    def take_notification(self) -> str | None:
        """Return a queue with a notification, each once; None if there is no other."""
        return self._notified.popleft() if self._notified else None

    def descriptors(self) -> dict[int, object]:
        """Return the descriptors that a notification, or a call of :meth:`wake`, makes readable."""
        descriptors: dict[int, object] = {self._pipe.fileno(): self._pipe}
        for part in list(self._parts.values()):
            if part.ready and part.wire.alive:
                with suppress(ReliqError):
                    descriptors[part.wire.fileno()] = part
        return descriptors

    # -- waiting

    def _choose(self, slots: Collection[int]) -> set[int]:
        """Return those of *slots* that have a connection: the same ones while they are waited for.

        The choice is random, so that the consumers of the same queues choose different ones.
        """
        now = monotonic()
        new = [slot for slot in slots if slot not in self._chosen]
        if len(self._chosen) + len(new) > MOST:
            for slot, at in list(self._chosen.items()):
                if now - at > _FORGOTTEN_S:
                    del self._chosen[slot]
                    self._drop(slot)
            random.shuffle(new)
        self._chosen.update(dict.fromkeys(new[: MOST - len(self._chosen)], now))
        chosen = self._chosen.keys() & slots
        self._chosen.update(dict.fromkeys(chosen, now))
        return chosen

    def listen(self, queues: Sequence[str], timeout_s: float) -> None:
        """Begin the wait for *queues*, and continue the parts that already wait. Does not block."""
        if self._process != here():
            self._forget()
        by_slot: dict[int, list[str]] = {}
        for queue in queues:
            slot = slot_of(queue_keys(self._prefix, queue).notification)
            by_slot.setdefault(slot, []).append(queue)
        self.queues = frozenset(queues)
        chosen = self._choose(by_slot.keys())
        self._unheard = frozenset(q for slot in by_slot.keys() - chosen for q in by_slot[slot])
        self._left_out = {}
        waited_for = set()
        for slot in chosen:
            wanted = tuple(by_slot[slot])
            place = self._cluster.slots.place_of(slot)
            if slot in self._waits and self._parts[slot].place != place:
                self._drop(slot)  # its former node may be lost
            if slot in self._waits:
                if self._parts[slot].queues != wanted:
                    self._end(slot)
            elif not self._wait_for(slot, wanted, timeout_s):
                self._left_out[slot] = monotonic() + _AGAIN_S
                continue
            waited_for.add(slot)
        self._slots = frozenset(waited_for)

    def _wait_for(self, slot: int, queues: tuple[str, ...], timeout_s: float) -> bool:
        """Begin the wait for a slot; return False if no connection is available now."""
        part = self._part(slot)
        if part is None:
            return False
        part.queues, part.begun, part.until = queues, False, monotonic() + timeout_s
        self._waits.add(slot)
        self._begin(slot, part)
        return slot in self._waits

    def _begin(self, slot: int, part: _Part) -> None:
        """Begin the wait of a part, if its connection is ready."""
        if part.ready:
            part.begun = True
            try:
                part.notifier.listen(part.queues, max(part.until - monotonic(), 0.001))
            except ReliqError as exc:
                self._lost(slot, exc)

    def _part(self, slot: int) -> _Part | None:
        """Return the part for a slot, which another thread connects; None if there is none now."""
        place = self._cluster.slots.place_of(slot)
        part = self._parts.get(slot)
        if part is not None and (part.place != place or not part.usable):
            self._drop(slot)
            part = None
        if part is None and place is not None:
            part = self._new_part(place)
            if part is not None:
                self._parts[slot] = part
        return part

    def _new_part(self, place: Place) -> _Part | None:
        nodes = self._cluster.nodes
        try:
            nodes.require_reachable(place)
        except BrokerUnavailable:
            return None
        address = self._cluster.slots.address(place)
        part = _Part(Wire(address, self._cluster.options, self._name), place, self._cluster)
        try:
            nodes.do_soon(place, partial(self._connect, part))
        except BrokerUnavailable:
            return None
        return part

    def _connect(self, part: _Part) -> None:
        """Open the connection of a part. Runs in another thread, because this takes time."""
        try:
            self._cluster.nodes.require_reachable(part.place)
            part.wire.connect_to_post()
            part.wire.disable_reconnect()
        except ReliqError as exc:
            part.wire.close()
            self._cluster.nodes.failed(part.place, exc)
            self._cluster.doubt()
        part.ready = True
        self._pipe.write(_PROCEED)

    def _drop(self, slot: int) -> None:
        part = self._parts.pop(slot, None)
        self._waits.discard(slot)
        if part is not None:
            part.notifier.close()

    def receive(self) -> bool:
        """Read notifications without waiting; return True if a part of the wait has ended."""
        self._pipe.read()
        ended = self._take()
        self.polled, self._due = self._due, frozenset()
        return ended

    def _take(self) -> bool:
        for slot in list(self._waits):
            part = self._parts[slot]
            if not part.begun:
                self._begin(slot, part)
                continue
            try:
                over = part.notifier.receive()
            except ReliqError as exc:
                self._lost(slot, exc)
                continue
            if over:
                self._waits.discard(slot)
                notified = part.notifier.take_notification()
                if notified is not None:
                    self._notified.append(notified)
        if self._poll_in_s <= 0:
            self._due, self._poll_at = self._unheard, monotonic() + self._poll_s
        # also a notification of a slot that the latest wait omits while its part still waits
        return bool(self._notified or self._due) or not self.listening

    def _lost(self, slot: int, exc: ReliqError) -> None:
        """End the wait for a slot that has moved, or whose node is lost.

        Raises BrokerRefused if the node refuses the wait, so that the waiting caller is informed.
        """
        self._waits.discard(slot)
        self._slots -= {slot}
        self._left_out[slot] = monotonic() + _AGAIN_S
        if not self._cluster.unserved.heed(exc):
            if isinstance(exc, BrokerRefused):
                raise again(exc)
            self._drop(slot)
        self._cluster.doubt()

    def end_wait(self) -> None:
        """End all parts of the wait; the next one starts from the beginning. Does not block."""
        for slot in list(self._waits):
            self._end(slot)

    def _end(self, slot: int) -> None:
        part = self._parts[slot]
        if part.begun:
            with suppress(BrokerUnavailable):  # in this case the wait times out
                part.notifier.end_wait()
        else:
            self._waits.discard(slot)

    def wait(self, timeout_s: float) -> bool:
        """Wait for a notification, :meth:`wake` or *timeout_s*; return True after a notification.

        The wait also ends when a node has replied to a command.
        """
        listening = bool(self._waits)
        if listening and self._take():
            return True
        deadline = monotonic() + max(timeout_s, 0.0)
        while True:
            mine = self.descriptors().keys()
            left_s = min(deadline - monotonic(), self._poll_in_s)
            others, taken = self._others()
            ready = readable([*mine, *others], min(left_s, _POLL_AGAIN_S) if taken else left_s)
            woken = _WOKEN in self._pipe.read()
            if not listening:
                return False
            self.check()
            if self._take():
                return True
            if woken or (mine.isdisjoint(ready) and (ready or not taken or left_s <= 0)):
                return False

    def _others(self) -> tuple[list[int], bool]:
        """Return the descriptors of the command connections, and whether some are omitted.

        With eventlet, omits those that another thread waits for and reads.
        """
        connections = self._cluster.descriptors()
        if many_may_wait():
            return list(connections), False
        free = [
            number
            for number, what in connections.items()
            if not (isinstance(what, Wire) and what.posts.read_by_another)
        ]
        return free, len(free) < len(connections)

    def disable_reconnect(self) -> None:
        """Do nothing: a new connection always replaces a failed one."""

    def check(self) -> None:
        """Drop the parts whose node did not answer by the end of the wait; wake for a poll."""
        now = monotonic()
        if self._poll_in_s <= 0:
            self._pipe.write(_PROCEED)
        for slot in list(self._waits):
            part = self._parts[slot]
            if now - part.until > _LATE_S:
                self._cluster.doubt()
            try:
                part.notifier.check()
            except ReliqError as exc:
                self._lost(slot, exc)

    def wake(self) -> None:
        """End another thread's :meth:`wait` now."""
        self._pipe.write(_WOKEN)

    def close(self) -> None:
        """Close all connections. Notifications under way are lost, which is harmless."""
        if self._process != here():
            self._forget()
        for slot in list(self._parts):
            self._drop(slot)
        self._pipe.close()


def _unblock(cluster: ClusterWire, place: Place, waits: Wire, on_reply: OnReply) -> None:
    """End the wait of *waits* over the other connection to its node. Does not block.

    Raises BrokerUnavailable, in which case *on_reply* is not called.
    """
    wire = cluster.nodes.open(place)
    if wire is None:
        raise BrokerUnavailable(f"{cluster.address}: there is no connection to {place}")
    wire.post(("CLIENT", "UNBLOCK", waits.client_id), on_reply)
