"""Looking at a cluster some of whose nodes may be lost: what the others hold can be read.

For operators. Who asks for a queue waits for its node until ``socket_timeout``; who asks for all
queues does not: a node that is silent for a second is left out, and its queues are named.
"""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from ....errors import BrokerUnavailable, ReliqError, again
from ....store.inspection import Told, Untold
from .. import keys
from ..base import text_of, texts
from ..measuring import RedisMeasuring
from .nodes import PATIENCE_S
from .requests import COVER, for_node
from .slots import slot_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..stream import Reply
    from ..wire import Wire
    from .slots import Place
    from .wire import ClusterWire

# So long a slot may be on its way; what is left between two nodes never answers.
SLOT_PATIENCE_S = 2.0
# SCAN goes on for so long at most: nodes may hold millions of keys of others.
_SCANNED_S = 5.0


class ClusterLooking(RedisMeasuring):
    """What a store reads of all queues, whichever nodes answer."""

    @property
    def _cluster(self) -> ClusterWire:
        return self._wire  # type: ignore[return-value]

    @cached_property
    def _listed(self) -> set[str]:
        """The queues there were when they could be listed last: for a time when they cannot."""
        return set()

    @cached_property
    def _stuck_slots(self) -> set[int]:
        """The slots that were not served when they were asked last, and are tried ever since."""
        return set()

    # -- the nodes

    def _ask_each(self, *command: Any) -> Iterator[tuple[Place, Wire | None, Reply]]:
        """Yield each master with its reply; an error is one, and then there may be no wire."""
        for place, wire in self._cluster.nodes.each_master():
            if isinstance(wire, ReliqError):
                yield place, None, wire
                continue
            reply: Reply
            try:
                reply = wire.ask(command, PATIENCE_S)
            except ReliqError as exc:
                reply = again(exc)
            yield place, wire, reply

    def answering(self) -> tuple[list[tuple[Place, Wire]], dict[Place | None, str]]:
        """Return the nodes that answer within a second; and of the others, and of None, why not.

        Raises BrokerUnavailable where none does.
        """
        cluster = self._cluster
        cluster.slots.refresh(self.options, cluster.name)
        there: list[tuple[Place, Wire]] = []
        lost: dict[Place | None, str] = {}
        for place, wire, reply in self._ask_each("PING"):
            if wire is None or isinstance(reply, BrokerUnavailable):
                replica = cluster.slots.has_replica(place)
                what_to_do = for_node(place, replica=replica)
                lost[place] = f"{str(reply).removesuffix('.')}; {what_to_do}"
            else:
                there.append((place, wire))
        if not there:
            raise BrokerUnavailable(f"{self.broker}: no node answers: {'; '.join(lost.values())}")
        lost[None] = f"no node has its slot: {COVER}"
        return there, lost

    def now_ms(self) -> int:
        """Return the time of a node that answers, in ms since the epoch."""
        refusals: list[str] = []
        for _, _, reply in self._ask_each("TIME"):
            if not isinstance(reply, ReliqError):
                seconds, micros = reply
                return int(seconds) * 1000 + int(micros) // 1000
            refusals.append(str(reply))
        raise BrokerUnavailable(f"{self.broker}: no node answers: {'; '.join(refusals)}")

    def require_anchor(self) -> None:
        """Raise BrokerUnavailable unless the node of the register answers within a second."""
        anchor = self._cluster.slots.place_of(self._cluster.anchor_slot)
        for place, _, reply in self._ask_each("PING"):
            if place == anchor and isinstance(reply, BrokerUnavailable):
                raise BrokerUnavailable(
                    f"{self.broker}: consumers are registered at {anchor}, which cannot be asked: "
                    f"{reply}"
                )

    # -- the queues

    def told(self) -> Told:
        """Return the names of the queues that can be read now, and of those that cannot."""
        cluster = self._cluster
        there, lost = self.answering()
        names, unlisted = self._names(lost, there)
        missing: dict[Place | None, list[str]] = defaultdict(list)
        served: list[str] = []
        for name in names:
            owner = cluster.slots.place_of(slot_of(self._keys(name).meta))
            (missing[owner] if owner in lost else served).append(name)
        readable, stuck = self._served(served)
        if not missing[None]:
            del lost[None]
        untold = [
            Untold("" if place is None else str(place), tuple(missing[place]), why)
            for place, why in lost.items()
        ]
        return Told(readable, [*untold, *stuck, *unlisted], complete=not unlisted)

    def _names(
        self, lost: dict[Place | None, str], there: Iterable[tuple[Place, Wire]]
    ) -> tuple[list[str], list[Untold]]:
        """Return the names of all queues; and what is to be said where these may not be all."""
        anchor = self._cluster.slots.place_of(self._cluster.anchor_slot)
        why = lost.get(anchor)
        if why is None:
            try:
                with self._cluster.calls.patience(SLOT_PATIENCE_S):
                    listed = self._cluster.call(("ZRANGE", keys.queues(self._prefix), 0, -1))
            except BrokerUnavailable as exc:
                why = str(exc)
            else:
                self._listed.clear()
                self._listed.update(texts(listed))
                return sorted(self._listed), []
        # Which exporters may not scan, and ask again and again.
        names = self._listed or self._scanned(there)
        note = f"the list of all queues cannot be read, so there may be more than are named: {why}"
        return sorted(names), [Untold("" if anchor is None else str(anchor), (), note)]

    def _scanned(self, there: Iterable[tuple[Place, Wire]]) -> set[str]:
        """Return the queues that these nodes have, by their keys; raises BrokerRefused."""
        pattern = keys.metas(self._prefix)
        found: set[str] = set()
        until = time.monotonic() + _SCANNED_S
        for _, wire in there:
            cursor = b""
            with suppress(BrokerUnavailable):  # lost meanwhile
                while cursor != b"0" and time.monotonic() < until:
                    command = ("SCAN", cursor or b"0", "MATCH", pattern, "COUNT", 1000)
                    cursor, page = wire.call(command)
                    found.update(keys.queue_of_meta(text_of(key), self._prefix) for key in page)
        return found

    def _served(self, names: list[str]) -> tuple[list[str], list[Untold]]:
        """Return which of the queues there are, and those whose slot nobody serves now."""
        replies: dict[str, Reply] = {}
        known = set(filter(self._cluster.posts.oldest_of, self._stuck_slots))
        for name in names:
            if slot_of(self._keys(name).meta) not in known:
                command, script = self._measure_command(name)
                self._cluster.post(command, partial(replies.__setitem__, name), script)
        self._cluster.wait_for_replies(SLOT_PATIENCE_S, known)
        readable: list[str] = []
        stuck: dict[int, list[str]] = defaultdict(list)
        for name in names:
            reply = replies.get(name)
            if reply is None or isinstance(reply, BrokerUnavailable):
                stuck[slot_of(self._keys(name).meta)].append(name)
            elif isinstance(reply, ReliqError) or reply[0]:  # it is said to who reads it
                readable.append(name)
        self._stuck_slots = set(stuck)
        return readable, [self._stuck(slot, queues) for slot, queues in stuck.items()]

    def _stuck(self, slot: int, queues: list[str]) -> Untold:
        place = self._cluster.slots.place_of(slot)
        return Untold(
            "" if place is None else str(place),
            tuple(queues),
            f"slot {slot} was not served within {SLOT_PATIENCE_S:g} s: "
            f"{self._cluster.posts.reason(slot)}",
        )
