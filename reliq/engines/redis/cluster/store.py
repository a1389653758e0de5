"""The store over a cluster: a step that touches several slots is done in parts here."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from ....errors import BrokerUnavailable, ReliqError, again
from ....lazy import Lazy
from ....store.limits import alike, chunks
from ....store.values import STALE
from ... import redis as engine
from .. import keys, scripts
from ..base import gathered, then
from ..commands import raise_first
from ..confirm import ClusterConfirmer
from ..store import RedisStore
from .nodes import PATIENCE_S
from .notifier import ClusterNotifier
from .slots import SLOTS, slot_of
from .wire import ClusterWire

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from ....store.values import OnResult, Publication
    from ..stream import Reply
    from .reads import ClusterBatches, ClusterReads
    from .requests import Request
    from .slots import ClusterAddress


class ClusterStore(RedisStore):
    """See :class:`..store.RedisStore`."""

    _wire: ClusterWire
    confirmer: ClusterConfirmer
    # They are at another node, and read beside the script.
    _checks_bindings = False

    def _open(self, address: ClusterAddress, name: str) -> None:  # type: ignore[override]
        cluster = ClusterWire(address, self.options, name)
        self._wire = cluster
        self.give_up_lost_slots = cluster.give_up_lost_slots
        self.partitions = address.slots.layouts[self._prefix]
        self.confirmer = ClusterConfirmer(cluster, self._prefix)
        self.notifier = ClusterNotifier(cluster, f"{name}:notification")

    @Lazy
    def batches(self) -> ClusterBatches:
        """The batches of jobs, each at the node that has its slot."""
        return engine.ClusterBatches(self._wire, self._prefix)

    @Lazy
    def reads(self) -> ClusterReads:
        """Queues, messages and consumers, at the nodes that answer."""
        return engine.ClusterReads(self._wire, self._prefix)

    def probe(self, *, whole: bool = False) -> None:
        """Raise ReliqError unless a node answers and accepts a write now; *whole*: each has to."""
        slots = self._wire.slots
        refusals = []
        if whole:
            slots.refresh(self.options, self._wire.name)  # one that is away may have been replaced
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
        """Yield a slot, and a key in it that is never there, of the anchor and each other node."""
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
        """The connection to the anchor: its clients are those that the register knows."""
        return self._wire.anchor_connection

    has_nodes = True

    def _slot(self, queue: str) -> int:
        return slot_of(self._keys(queue).meta)

    def is_away(self, queue: str) -> bool:
        """Whether the node that has *queue* is known not to answer; does not wait."""
        return self._wire.is_away(self._slot(queue))

    def node_of(self, queue: str) -> str:
        """Return where the node is that has *queue*, as far as is known."""
        slot = self._slot(queue)
        return str(self._wire.slots.place_of(slot) or f"of slot {slot}, which none has,")

    def patience(self, seconds: float) -> AbstractContextManager[None]:
        """Let this thread wait no longer than that for a node."""
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
        """Store *publications* in one round trip; neighbours alike in one step.

        The version of the bindings is read beside it, at their node. Where that is another by
        then, the outcome is STALE, although it may be stored in that queue: routing it again
        stores it, under the same number, where it is missing.
        """
        if len(publications) == 1 and not publications[0].exchange:
            return self._publish_one(publications)
        exchanges = _exchanges(publications)
        groups = list(alike(publications))
        commands: list[Any] = [(self._publish_command(items), scripts.PUBLISH) for items in groups]
        asked = [
            (("HGET", keys.bindings(self._prefix, name), "version"), None) for name in exchanges
        ]
        requests = self._wire.tried([*commands, *asked])
        _raise_loss(groups, requests)
        replies = raise_first([request.reply for request in requests], ReliqError)
        for items, request in zip(groups, requests, strict=False):
            self.confirmer.note(items, request.answered_by)
        outcomes = self._outcomes_of(groups, replies[: len(commands)])
        self._note_kept(publications, outcomes)
        versions = dict(zip(exchanges, replies[len(commands) :], strict=True))
        return _marked(publications, outcomes, versions)

    def _publish_one(self, publications: Sequence[Publication]) -> list[int]:
        """Store the only one of *publications*, which no bindings have routed."""
        (request,) = self._wire.tried(((self._publish_command(publications), scripts.PUBLISH),))
        if isinstance(request.reply, ReliqError):
            _raise_loss((publications,), (request,))
            raise again(request.reply)
        outcomes = self._outcomes(publications, request.reply)
        self.confirmer.note(publications, request.answered_by)
        self._note_kept(publications, outcomes)
        return outcomes

    def post_publish(
        self, publications: Sequence[Publication], on_result: OnResult[list[int]]
    ) -> None:
        """Post what :meth:`publish` sends."""
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
    """Raise BrokerUnavailable where a node was lost, with the queues that certainly got nothing.

    The first of *requests* are those that store *groups*.
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
    """Return the outcomes; STALE where the bindings have another version than that which routed.

    Messages of one exchange may have been routed by several: a batch is filled over a time.
    """
    return [
        STALE
        if item.exchange and item.version and versions[item.exchange] != item.version
        else outcome
        for item, outcome in zip(publications, outcomes, strict=True)
    ]
