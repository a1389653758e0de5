"""Migration: messages from Kombu's Redis transport to reliq, and back, each stored once.

By the three steps of transfer/numbered.py; taken out of the source a message is in a place where
only this move finds it again. Old consumers and publishers may go on meanwhile: a message is
either theirs or ours.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..engines.urls import connect
from ..errors import ConfigurationError, NotFound
from ..message.envelope import EnvelopeError
from ..message.queue_arguments import is_durable
from ..options import parse
from ..store.limits import MOVED_AT_ONCE
from ..store.protocol import status_of
from ..store.values import NO_QUEUE, Lease
from .convert import to_foreign, to_move
from .kombu_messages import bind_in_reliq, kombu_bindings_of, of_durable_queue, queues_of
from .kombu_url import connect_kombu, is_kombu

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .kombu_url import KombuBinding

__all__ = ["Migration", "Plan", "Step"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a queue of the source holds. Counts of one moment, not of one instant."""

    queue: str
    ready: int
    """Messages that would move and be given out at once."""
    delayed: int
    """Messages that would move and wait: delayed in reliq, with an eta in Kombu's lists."""
    unacked: int
    """Messages that consumers hold, or that are half way to Kombu: the former stay, but
    see :meth:`Migration.run_unacked`."""
    dead: int
    """Dead letters: they stay, Kombu has no place for them."""
    half_way: int = 0
    """Out of Kombu's lists by a migration to this target that was cut off: they would move."""
    elsewhere: int = 0
    """The same, to another target: run that migration again, or wait for a day."""
    priorities: dict[int, int] = field(default_factory=dict)
    """Messages in Kombu's lists, by step of priority."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one step of a migration moved: up to 100 messages."""

    moved: int
    """All of them."""
    delayed: int = 0
    """Of these, messages that are delayed in reliq now, or have an eta in Kombu's lists."""
    dead: int = 0
    """Of these, messages that nobody can read: dead letters in reliq now."""
    early: int = 0
    """Of these, delayed messages that are no Celery tasks: Kombu delivers them at once."""


class Migration(AbstractContextManager["Migration"]):
    """Moves messages between Kombu's Redis transport and reliq; a context manager.

    source, target: one URL of each kind (``redis://``, ``rediss://``, ``redis+socket://``
        or ``sentinel://``; any of reliq's). They may be on the same server and database.
    kombu_options: those of Kombu's side, see :func:`connect_kombu`.
    transport_options: those of reliq's side.

    Raises ConfigurationError for a wrong URL or option, BrokerUnavailable.
    """

    def __init__(
        self,
        source: str,
        target: str,
        *,
        kombu_options: Mapping[str, Any] | None = None,
        transport_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.to_reliq = is_kombu(source)
        if self.to_reliq == is_kombu(target):
            kind = "Kombu's" if self.to_reliq else "reliq's"
            raise ConfigurationError(
                "expected one URL of Kombu's (redis://, rediss://, redis+socket://, sentinel://) "
                f"and one of reliq's, got two of {kind}; from reliq to reliq: reliq move"
            )
        theirs, ours = (source, target) if self.to_reliq else (target, source)
        name = f"migration:{socket.gethostname()}:{os.getpid()}"
        self._options = parse(transport_options)
        self._store = connect(ours, transport_options, name, create=self.to_reliq)
        try:
            self._kombu = connect_kombu(theirs, kombu_options, name)
            self._their_id, self._our_id = self._kombu.broker_id(), self._store.broker_id()
        except BaseException:
            self._store.close()
            raise
        self._known: Sequence[KombuBinding] | None = None
        self._target = f"broker:{self._our_id}" if self.to_reliq else f"kombu:{self._their_id}"

    def __exit__(self, *_: object) -> None:
        """Close both connections."""
        self.close()

    def close(self) -> None:
        """Close both connections."""
        self._store.close()
        self._kombu.close()

    # -- looking

    def queues(self) -> list[str]:
        """Return the source's queues that do not go by themselves.

        Of Kombu's: those that an exchange leads to, without the reply and event queues of
        workers. Others have to be named, because they look like anybody's lists.
        """
        if self.to_reliq:
            self._known = None
            found = {item.queue for item in self._bindings() if of_durable_queue(item)}
            return sorted(found | {queue for _, queue in self._kombu.held()})
        statuses = ((queue, self._store.reads.status(queue)) for queue in self._store.queues())
        return [
            queue
            for queue, status in statuses
            if status is not None and is_durable(status.declared)
        ]

    def plan(self, queue: str) -> Plan:
        """Return what *queue* holds; changes nothing. Reads each of Kombu's waiting messages.

        Raises NotFound for a queue that reliq does not have.
        """
        if not self.to_reliq:
            status = status_of(self._store, queue)
            return Plan(queue, status.ready, status.delayed, status.unacked, status.dead)
        bindings = self._bindings()
        waits = Counter(
            to_move(queue, 0, message, self._options, 0).delay_ms > 0
            for message in self._kombu.messages(queue)
        )
        unacked = sum(queue in queues_of(item, bindings) for _, item in self._kombu.unacked())
        held = self._kombu.held()
        here = held.get((self._target, queue), 0)
        everywhere = sum(count for (_, name), count in held.items() if name == queue)
        return Plan(
            queue,
            waits[False],
            waits[True],
            unacked,
            0,
            here,
            everywhere - here,
            self._kombu.lengths(queue),
        )

    def _bindings(self) -> Sequence[KombuBinding]:
        # They are found by a look at every key of the server: one for all queues.
        if self._known is None:
            self._known = self._kombu.bindings()
        return self._known

    # -- moving

    def run(self, queue: str) -> Iterator[Step]:
        """Move what waits in *queue* until nothing does; yield what was done, step by step.

        Killed at any point it loses and doubles nothing; the next call goes on. Messages that
        consumers hold, and dead letters, stay. Raises NotFound, BrokerUnavailable.
        """
        return self._to_reliq(queue) if self.to_reliq else self._to_kombu(queue)

    def run_unacked(
        self, older_than_s: float, queues: Sequence[str] | None = None
    ) -> Iterator[tuple[str, Step]]:
        """Move too what Kombu's consumers got so long ago and have not acknowledged.

        With 0 for when the old workers are gone; while they run, with more than their
        ``visibility_timeout``, after which they deliver it again themselves. Of *queues*,
        or of all that :meth:`queues` names. Yields (queue, step) as :meth:`run` does, with
        what waits in those queues among it; as safe.

        A message goes to each queue that its exchange leads to now, as where Kombu
        restores it; one that leads nowhere, or to another queue too, stays. Raises
        ConfigurationError where the source is reliq: there what is unacked comes back.
        """
        if not self.to_reliq:
            raise ConfigurationError(
                "what reliq's consumers hold comes back by itself: stop them, and migrate again"
            )
        wanted = set(self.queues() if queues is None else queues)
        self._known = None
        bindings = self._bindings()
        routed: list[tuple[str, list[str]]] = []
        for tag, message in self._kombu.unacked(older_than_s):
            goes_to = queues_of(message, bindings)
            if goes_to and wanted.issuperset(goes_to):
                routed.append((tag, goes_to))
            if len(routed) == MOVED_AT_ONCE:
                yield from self._recover(older_than_s, routed)
                routed = []
        yield from self._recover(older_than_s, routed)

    def _recover(
        self, older_than_s: float, routed: Sequence[tuple[str, Sequence[str]]]
    ) -> Iterator[tuple[str, Step]]:
        # Some at a time, each stored before the next: a step reads all that is half way.
        self._kombu.take_unacked(self._target, older_than_s, routed)
        for queue in sorted({queue for _, goes_to in routed for queue in goes_to}):
            yield from ((queue, step) for step in self._to_reliq(queue))

    # -- to reliq

    def _to_reliq(self, queue: str) -> Iterator[Step]:
        origin = f"kombu:{self._their_id}:{queue}"
        self._store.create_queue(queue)
        bind_in_reliq(self._store, queue, self._bindings())
        for step in self._kombu.layout.priority_steps:
            while True:
                low_water, items = self._kombu.take(queue, self._target, step)
                if not items:
                    break
                now_ms = self._store.now_ms()
                moves = [to_move(queue, *item, self._options, now_ms) for item in items]
                if NO_QUEUE in self._store.accept(queue, origin, low_water, moves):
                    raise NotFound(f"queue {queue!r} was deleted in reliq while it was migrated")
                self._kombu.drop([number for number, _ in items])
                yield Step(
                    len(moves),
                    delayed=sum(move.delay_ms > 0 for move in moves),
                    dead=sum(move.dead_letter is not None for move in moves),
                )

    # -- to Kombu

    def _to_kombu(self, queue: str) -> Iterator[Step]:
        origin = f"reliq:{self._our_id}:{queue}"
        if is_durable(status_of(self._store, queue).declared):
            self._kombu.bind(kombu_bindings_of(self._store, queue))
        while True:
            low_water, moves = self._store.move_out(queue, self._target)
            if not moves:
                return
            items, done, delayed, early = [], [], 0, 0
            for move in moves:
                try:
                    priority, message, waits = to_foreign(move)
                except EnvelopeError as exc:
                    # A consumer would give it up as well. The move holds it with token 0.
                    lease = Lease(move.tag, "0")
                    self._store.dead_letter(queue, "undecodable", str(exc), [lease])
                    continue
                items.append((move.number, priority, message))
                done.append(move.tag)
                delayed += waits
                early += move.delay_ms > 0 and not waits
            self._kombu.accept(queue, origin, low_water, items)
            yield Step(self._store.end_move(queue, done), delayed, early=early)
