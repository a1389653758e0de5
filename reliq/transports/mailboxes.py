"""Mailboxes: a queue of its own for each consumer of Kombu's remote control.

Kombu names a mailbox after its node (``<node>.celery.pidbox``). Two workers with one node name
would take turns at one queue: a revoke would reach only one of them. The queue at the broker is
therefore named after the consumer too, and each worker gets each broadcast, as with PUB/SUB.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from ..errors import ReliqError, logger
from ..message.envelope import unpack

if TYPE_CHECKING:
    from .link import Link

_SUFFIX, _REPLIES = ".pidbox", ".reply."


@dataclass(eq=False)
class Mailboxes:
    """The mailboxes that one transport has declared."""

    _link: Link
    _queues: dict[str, str] = field(default_factory=dict, init=False)

    def declare(self, name: str, auto_delete: bool) -> str:
        """Return the queue to declare for *name*: one of its own for a temporary mailbox."""
        if not (auto_delete and name.endswith(_SUFFIX)) or _REPLIES in name:
            return name
        session = self._link.session
        own = f"{name}.{session.id}"
        if not self._queues.get(name, "").startswith(own):
            # Another connection of this process may have a node of this name.
            taken = session.registration.subscriptions
            names = (f"{own}.{i}" if i else own for i in count())
            self._queues[name] = next(queue for queue in names if queue not in taken)
        return self._queues[name]

    def queue(self, name: str) -> str:
        """Return the queue that was declared for *name*."""
        return self._queues.get(name, name)

    def warn(self, name: str) -> None:
        """Log a warning if another living consumer has a mailbox of this *name*."""
        own, store = self.queue(name), self._link.store
        if own == name:
            return
        with suppress(ReliqError):  # only the warning is missing
            for exchange in self._link.routes.bindings_of(own):
                bound = {unpack(binding)[1] for binding in store.exchange_table(exchange).bindings}
                others = {q for q in bound - {own} if q == name or q.startswith(f"{name}.")}
                marks = sorted({mark for queue in others for mark in store.attached(queue).marks})
                if any(item and item.connected for item in store.liveness(marks).values()):
                    logger.warning(
                        "another running worker has the node name %r: each remote control command "
                        "to it reaches both, and monitors show one of them; give each worker a "
                        "name of its own (celery worker -n)",
                        name.removesuffix(f".{exchange}"),
                    )
