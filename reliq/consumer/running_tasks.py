"""Running tasks: the register's count of tasks that are acknowledged and still run.

Celery acknowledges a task as it begins, unless it is told otherwise: from then on the broker
holds nothing of it, and who looks at the queues alone takes a busy worker for an idle one.
Owns what was said last, for one session. Knows nothing of Celery but its count.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..errors import BrokerUnavailable, ReliqError
from ..forks import OwnLock
from ..integrations.celery import WATCH
from ..message.queue_names import queue_of

if TYPE_CHECKING:
    from ..store.protocol import Store


class RunningTasks:
    """Tells the register, before the ack of a task that goes on and after its end."""

    _lock = OwnLock()

    def begin(self, name: str) -> None:
        """Begin as the consumer *name*, of which nothing was said."""
        self._name = name
        self._number = 0
        self._said: dict[str, int] = {}

    def before_ack(self, store: Store, queue: str) -> None:
        """Say so over *store*, where an ack follows, if a task of *queue* goes on after it.

        Once: until :meth:`tell` has found that none runs any more.
        """
        queue = queue_of(queue)
        if not WATCH.worker or self._said.get(queue):
            return
        with self._lock:
            running = WATCH.running
            if running.get(queue):
                self._post(store, running)

    def tell(self, store: Store, again: bool = False) -> None:
        """Say what runs now, if it is not what was said last, or to say it *again*."""
        if not WATCH.worker:
            return
        with self._lock:
            said, self._said = self._said, {}
            # After that: a task that begins now is either seen here, or finds nothing said.
            running = WATCH.running
            if again or running != said:
                self._post(store, running)
            else:
                self._said = running

    def _post(self, store: Store, running: dict[str, int]) -> None:
        self._number += 1
        told = partial(self._told, self._number)
        self._said = running
        try:
            store.post_running(self._name, self._number, running, told)
        except BrokerUnavailable:
            self._said = {}
            raise  # an ack that follows goes out over the next connection, and this before it

    def _told(self, number: int, known: bool | ReliqError) -> None:
        """Note that it was not understood: the connection was lost, or the register was."""
        if known is not True and number == self._number:
            self._said = {}
