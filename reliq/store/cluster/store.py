"""The store over a cluster: splits a step that touches several slots into parts."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from ... import store as engine
from ...client.cluster.nodes import PATIENCE_S
from ...client.cluster.slots import SLOTS, slot_of
from ...client.cluster.wire import ClusterWire
from ...client.commands import raise_first
from ...errors import BrokerUnavailable, ReliqError, again
from ...lazy import Lazy
from ...lua import keys
from ...values.limits import alike, chunks
from ...values.values import STALE
from ..base import gathered, then
from ..confirm import ClusterConfirmer
from ..store import RedisStore
from .notifier import ClusterNotifier

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from ...client.cluster.requests import Request
    from ...client.cluster.slots import ClusterAddress
    from ...client.stream import Reply
    from ...values.values import OnResult, Publication
    from .reads import ClusterBatches, ClusterReads


class ClusterStore(RedisStore):
    """See :class:`..store.RedisStore`."""

    _wire: ClusterWire
    confirmer: ClusterConfirmer
    # They are at another node, and a separate command reads them.
    _checks_bindings = False

    def _open(self, address: ClusterAddress, name: str) -> None:  # type: ignore[override]
        cluster = ClusterWire(address, self.options, name)
        self._wire = cluster
        self.give_up_lost_slots = cluster.give_up_lost_slots
        self.partitions = address.slots.layouts[self._prefix]
        self.confirmer = ClusterConfirmer(cluster, self._prefix, self._slot)
        self.notifier = ClusterNotifier(cluster, f"{name}:notification")

    @Lazy
    def batches(self) -> ClusterBatches:
        """The batches of jobs, each at the node of its slot."""
        return engine.ClusterBatches(self._wire, self._prefix)

    @Lazy
    def reads(self) -> ClusterReads:
        """Reads of queues, messages and consumers at the nodes that answer."""
        return engine.ClusterReads(self._wire, self._prefix)

    def probe(self, *, whole: bool = False) -> None:
        """Raise ReliqError unless a node answers and accepts a write; *whole*: unless all do."""
        slots = self._wire.slots
        refusals = []
        if whole:
            slots.refresh(self.options, self._wire.name)  # an unreachable one may be replaced
            if slots.uncovered:
                refusals.append(f"{slots.uncovered} slots have no node")
        for slot, key in self._a_key_of_each_master():
            try:
                self._wire.wire_of(slot).ask(("DEL", key), PATIENCE_S)
            except ReliqError as exc:  # noqa: PERF203 - one of few
                refusals.append(str(exc))
            else:
                if not whole:
                    return
        if refusals or not whole:
            raise BrokerUnavailable(f"{self.broker} does not take writes: {'; '.join(refusals)}")

    def _a_key_of_each_master(self) -> Iterator[tuple[int, str]]:
        """Yield a slot, and a key in it that never exists, for the anchor and each other master."""
        slots = self._wire.slots
        masters = slots.masters
        key = self._shared.probe
        for number in count():
            slot = slot_of(key)
            place = slots.place_of(slot)
            if place in masters:
                masters.discard(place)
                yield slot, key
            if not masters or number > SLOTS:
                return
            key = keys.probe(self._prefix, number)

    @property
    def registered_by(self) -> object:
        """The connection to the anchor, which has the register of consumers."""
        return self._wire.anchor_connection

    has_nodes = True

    def _slot(self, queue: str) -> int:
        return slot_of(self._keys(queue).meta)

    def is_unreachable(self, queue: str) -> bool:
        """Whether the node of *queue* is known to be unreachable. Does not block."""
        return self._wire.is_unreachable(self._slot(queue))

    def node_of(self, queue: str) -> str:
        """Return the address of the node of *queue*, or its slot if no node is known."""
        slot = self._slot(queue)
        return str(self._wire.slots.place_of(slot) or f"of slot {slot}, which none has,")

    def patience(self, seconds: float) -> AbstractContextManager[None]:
        """Limit the waits of this thread for a node."""
        return self._wire.calls.patience(seconds)

    def now_ms(self) -> int:
        """Return the time of a node that answers, in ms since the epoch."""
        refusals: list[str] = []
        for _, _, reply in self._wire.nodes.ask_each("TIME"):
            if not isinstance(reply, ReliqError):
                seconds, micros = reply
                return int(seconds) * 1000 + int(micros) // 1000
            refusals.append(str(reply))
        raise BrokerUnavailable(f"{self.broker}: no node answers: {'; '.join(refusals)}")

    # -- publishing

    def publish(self, publications: Sequence[Publication]) -> list[int]:
        """Store *publications* in one round trip; similar neighbours in one step.

        A separate command reads the version of the bindings at their node. If the version has
        changed, the outcome is STALE, although the message may be stored in this queue. The caller
        routes it again, which stores it under the same number where it is missing.
        """
        if len(publications) == 1 and not publications[0].exchange:
            return self._publish_one(publications)
        exchanges = _exchanges(publications)
        groups = list(alike(publications))
        commands: list[Any] = [self._publish_command(items) for items in groups]
        queries = [
            (("HGET", keys.bindings(self._prefix, name), "version"), None) for name in exchanges
        ]
        requests = self._wire.tried([*commands, *queries])
        _raise_loss(groups, requests)
        replies = raise_first([request.reply for request in requests], ReliqError)
        outcomes = self._outcomes_of(groups, replies[: len(commands)])
        self._note_kept(publications, outcomes)
        versions = dict(zip(exchanges, replies[len(commands) :], strict=True))
        return _marked(publications, outcomes, versions)

    def _publish_one(self, publications: Sequence[Publication]) -> list[int]:
        """Store the single one of *publications*, which was routed without bindings."""
        (request,) = self._wire.tried((self._publish_command(publications),))
        if isinstance(request.reply, ReliqError):
            _raise_loss((publications,), (request,))
            raise again(request.reply)
        outcomes = self._outcomes(publications, request.reply)
        self._note_kept(publications, outcomes)
        return outcomes

    def post_publish(
        self, publications: Sequence[Publication], on_result: OnResult[list[int]]
    ) -> None:
        """Post the commands of :meth:`publish`."""
        exchanges = _exchanges(publications)
        if not exchanges:
            super().post_publish(publications, on_result)
            return

        def marked(replies: list[Reply]) -> list[int]:
            versions = dict(zip(exchanges, replies[1:], strict=True))
            return _marked(publications, replies[0], versions)

        arrived = gathered(1 + len(exchanges), then(marked, on_result))
        super().post_publish(publications, partial(arrived, 0))
        for place, name in enumerate(exchanges, 1):
            self.post_bindings_version(name, partial(arrived, place))

    # -- surveying

    def _together(self, queues: Sequence[str], at_once: int) -> Iterator[Sequence[str]]:
        by_slot: dict[int, list[str]] = {}
        for queue in queues:
            by_slot.setdefault(self._slot(queue), []).append(queue)
        for names in by_slot.values():
            yield from chunks(names, at_once)


def _raise_loss(groups: Sequence[Sequence[Publication]], requests: Sequence[Request]) -> None:
    """Raise BrokerUnavailable if a node was lost, with the queues that certainly got nothing.

    *requests* begins with the requests that store *groups*.
    """
    lost = [i.reply for i in requests if isinstance(i.reply, BrokerUnavailable)]
    if not lost:
        return
    reached: dict[str, bool] = {}
    for items, request in zip(groups, requests, strict=False):
        unsent = isinstance(request.reply, BrokerUnavailable) and request.reply.unsent
        for item in items:
            reached[item.queue] = reached.get(item.queue, False) or not unsent
    error = again(lost[0])
    error.untouched = frozenset(queue for queue, got in reached.items() if not got)
    raise again(error)


def _exchanges(publications: Sequence[Publication]) -> list[str]:
    return list(dict.fromkeys(i.exchange for i in publications if i.exchange and i.version))


def _marked(
    publications: Sequence[Publication], outcomes: Sequence[int], versions: Mapping[Any, Reply]
) -> list[int]:
    """Return the outcomes, with STALE for messages routed by another version of the bindings.

    Messages of one exchange may have several versions, because a buffer fills over time.
    """
    return [
        STALE
        if item.exchange and item.version and versions[item.exchange] != item.version
        else outcome
        for item, outcome in zip(publications, outcomes, strict=True)
    ]
