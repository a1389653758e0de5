"""Spread: selects the partition of a queue for each message.

Messages go to the partitions in turn, or to the partition of their key. A retry goes to the same
partition, which knows the publish number. It may use another one only if the message was definitely
not stored there: the partition is closed, or its node was unreachable and nothing was sent.
"""

from __future__ import annotations

from random import getrandbits
from typing import TYPE_CHECKING

from ..errors import BrokerUnavailable
from ..forks import OwnLock
from ..message.queue_names import number_of, partition_name, partition_of_key, queue_of
from ..values.limits import MOST_REMEMBERED
from ..values.values import CLOSED, NO_QUEUE
from .partitions import layout_of_others

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ..values.protocol import Store
    from .publish_ids import PublishTag


def redirected(partition: str, outcome: int) -> bool:
    """Whether *partition* definitely did not store the message, which may go to another one."""
    return outcome == CLOSED or (outcome == NO_QUEUE and number_of(partition) > 0)


class Spread:
    """The next partition of each queue, for this process. Thread-safe."""

    _lock = OwnLock()
    """Guards the turns. A nested call may repeat a turn, which is harmless."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}

    def place(
        self,
        store: Store,
        queue: str,
        tag: PublishTag | None,
        key: str | None = None,
        *,
        stays: bool = False,
    ) -> str:
        """Return the partition of *queue* for the message with *tag*.

        *stays*: use the partition of the previous message, so that one script can store both.
        """
        if tag is not None and queue in tag.places:
            return tag.places[queue]
        if key is not None and queue not in store.partitions and not self._ask(store, queue):
            return queue
        partitions = store.partitions.get(queue, 1)
        if partitions == 1:
            return queue
        if tag is not None and queue in tag.numbers:
            place = queue  # it was tried before, when the queue had one partition
        elif key is not None:
            place = partition_name(queue, partition_of_key(key, partitions))
        else:
            place = self._next(store, queue, partitions, stays=stays)
        if tag is not None:
            tag.places[queue] = place
        return place

    def redirect(self, store: Store, tag: PublishTag | None, partition: str) -> None:
        """Record that *partition* is closed, and read the layout again for another partition.

        After an unchanged layout or a second refusal, use partition 0, which never closes.
        """
        queue = queue_of(partition)
        known = store.partitions.get(queue)
        if not self._ask(store, queue):
            store.partitions.pop(queue, None)
        if tag is not None:
            tag.places.pop(queue, None)
            if queue in tag.redirected or known == store.partitions.get(queue):
                tag.places[queue] = queue
            tag.redirected.add(queue)

    @staticmethod
    def refused(tag: PublishTag, partitions: Iterable[str], divided: Collection[str]) -> None:
        """Record that a message was never sent to *partitions*: the next try is the first.

        divided: the queues now known to be partitioned.
        """
        for partition in partitions:
            queue = queue_of(partition)
            if queue in divided and tag.places.get(queue, queue) == partition:
                tag.places.pop(queue, None)
                tag.publisher.take_back(tag, partition)

    @staticmethod
    def divided(store: Store, queues: Iterable[str]) -> set[str]:
        """Return the partitioned ones of *queues*, as known here or to the reachable nodes."""
        for queue in queues:
            if queue not in store.partitions and (layout := layout_of_others(store, queue)):
                store.partitions[queue] = layout.partitions
        return {queue for queue in queues if store.partitions.get(queue, 1) > 1}

    @staticmethod
    def _ask(store: Store, queue: str) -> bool:
        """Query and store the layout of *queue*; return False if it does not exist."""
        try:
            layout = store.layout(queue)
        except BrokerUnavailable:
            layout = layout_of_others(store, queue)
            if layout is None:
                raise
        if layout is not None:
            store.partitions[queue] = layout.partitions
        return layout is not None

    def _next(self, store: Store, queue: str, partitions: int, *, stays: bool) -> str:
        """Return the next partition; skip those of unreachable nodes if another is reachable."""
        with self._lock:
            if len(self._turns) >= MOST_REMEMBERED:
                self._turns.clear()
            turn = self._turns.get(queue)
            turn = getrandbits(16) if turn is None else turn + (0 if stays else 1)
            self._turns[queue] = turn
        first = partition_name(queue, turn % partitions)
        if not store.is_unreachable(first):
            return first
        names = (partition_name(queue, (turn + i) % partitions) for i in range(1, partitions))
        return next((name for name in names if not store.is_unreachable(name)), first)


SPREAD = Spread()
