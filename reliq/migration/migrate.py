"""Migration of messages from Kombu's Redis transport to reliq, and back, each stored once.

It uses the three steps of transfer/numbered.py. The first step sets a message aside at the
source, where only this migration finds it. Old consumers and publishers may keep running: a
message belongs either to them or to the migration.
"""

from __future__ import annotations

import os
import re
import socket
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError, NotFound, near
from ..message.envelope import EnvelopeError
from ..message.queue_arguments import is_durable
from ..options import parse
from ..store.urls import connect
from ..values.limits import MOVED_AT_ONCE
from ..values.protocol import status_of
from ..values.values import NO_QUEUE, Lease
from .convert import to_foreign, to_move
from .kombu_bindings import bind_in_reliq, kombu_bindings_of, of_durable_queue, queues_of
from .kombu_messages import is_task
from .kombu_url import connect_kombu, is_kombu

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .kombu_url import KombuBinding

__all__ = ["Migration", "Plan", "Step"]


@dataclass(frozen=True, slots=True)
class Plan:
    """The contents of a queue at the source. The counts are not read at one instant."""

    queue: str
    ready: int
    """Messages that would move and be ready."""
    delayed: int
    """Messages that would move and be delayed: by reliq, or by an eta in Kombu's lists."""
    unacked: int
    """Messages held by consumers, or set aside on their way to Kombu. The former stay; see
    :meth:`Migration.run_unacked`."""
    dead: int
    """Dead letters. They stay, because Kombu cannot store them."""
    half_way: int = 0
    """Messages set aside by an interrupted migration to this target. They would move."""
    elsewhere: int = 0
    """The same for another target. Run that migration again, or wait for a day."""
    priorities: dict[int, int] = field(default_factory=dict)
    """Messages in Kombu's lists, by priority step."""


@dataclass(frozen=True, slots=True)
class Step:
    """The messages moved by one step of a migration, at most 100."""

    moved: int
    """All moved messages."""
    delayed: int = 0
    """Those that are now delayed in reliq, or have an eta in Kombu's lists."""
    dead: int = 0
    """Those that are unreadable, and now dead letters in reliq."""
    early: int = 0
    """Delayed messages that are not Celery tasks. Kombu delivers them at once."""


class Migration(AbstractContextManager["Migration"]):
    """Moves messages between Kombu's Redis transport and reliq; a context manager.

    source, target: a URL of Kombu (``redis://``, ``rediss://``, ``redis+socket://`` or
        ``sentinel://``) and one of reliq. They may name the same server and database.
    kombu_options: the options of Kombu's side; see :func:`connect_kombu`.
    transport_options: the options of reliq's side.

    Raises ConfigurationError for a wrong URL or option, and BrokerUnavailable.
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
                "expected a URL of Kombu's (redis://, rediss://, redis+socket://, sentinel://) "
                f"and one of reliq's, got two of {kind}; between reliq URLs, use: reliq move"
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

    # -- reading

    def queues(self) -> list[str]:
        """Return the durable queues of the source.

        On Kombu's side, these are the queues bound to an exchange, except reply and event queues
        of workers. Name other queues explicitly: they look like any Redis list.
        """
        if self.to_reliq:
            self._known = None
            queues = {item.queue for item in self._bindings() if of_durable_queue(item)}
            return sorted(queues | {queue for _, queue in self._kombu.held()})
        statuses = [measure.status for measure in self._store.reads.measure_all().whole()]
        return [status.name for status in statuses if is_durable(status.declared)]

    def plan(self, queue: str) -> Plan:
        """Return the contents of *queue*; changes nothing. Reads all waiting messages of Kombu.

        Raises NotFound for an unknown queue of reliq.
        """
        if not self.to_reliq:
            status = status_of(self._store, queue)
            return Plan(queue, status.ready, status.delayed, status.unacked, status.dead)
        self._require(queue)
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

    def left(self, queues: Sequence[str] = ()) -> dict[str, int]:
        """Return the lists of Kombu's messages that belong to no known queue, with their lengths.

        Their prefix, separator or step of priority is not that of this migration, or no exchange
        is bound to their queue. queues: only lists with such a name.
        """
        if not self.to_reliq:
            return {}
        known = {*queues, *(item.queue for item in self._bindings())}
        ours = {key for queue in known for key in self._kombu.keys_of(queue)}
        # The whole name, perhaps after a prefix, and before a separator and a step.
        names = "|".join(map(re.escape, queues))
        fits = re.compile(
            rf"(.*[^A-Za-z0-9])?({names})([^A-Za-z0-9]+[1-9])?" if names else ".*", re.DOTALL
        )
        return {
            key: length
            for key, length, message in self._kombu.lists()
            if key not in ours and fits.fullmatch(key) and is_task(message)
        }

    def _require(self, queue: str) -> None:
        """Raise NotFound if neither side knows *queue* of Kombu."""
        bindings, held = self._bindings(), self._kombu.held()
        known = {*(item.queue for item in bindings), *(name for _, name in held)}
        if queue in known or any(self._kombu.lengths(queue).values()):
            return
        unacked = (queues_of(message, bindings) for _, message in self._kombu.unacked())
        if any(queue in names for names in unacked) or self._store.reads.status(queue) is not None:
            return
        known.update(self.left())
        raise NotFound(f"no queue {queue!r} at the source{near(queue, known)}")

    def _bindings(self) -> Sequence[KombuBinding]:
        # Finding the bindings reads every key of the server, so do it once for all queues.
        if self._known is None:
            self._known = self._kombu.bindings()
        return self._known

    # -- moving

    def run(self, queue: str) -> Iterator[Step]:
        """Move all waiting messages of *queue*; yield each step.

        An interruption neither loses nor duplicates a message; the next call continues. Dead
        letters and messages held by consumers stay. Raises NotFound and BrokerUnavailable.
        """
        if not self.to_reliq:
            return self._to_kombu(queue)
        self._require(queue)
        return self._to_reliq(queue)

    def run_unacked(
        self, older_than_s: float, queues: Sequence[str] | None = None
    ) -> Iterator[tuple[str, Step]]:
        """Also move messages that Kombu's consumers have held unacked for longer than this.

        Use 0 if no old worker runs. Otherwise, use more than their ``visibility_timeout``: they
        redeliver messages of that age themselves. queues: by default, all of :meth:`queues`.
        Yields (queue, step), including their waiting messages; as safe as :meth:`run`.

        As when Kombu restores it, a message goes to each queue to which its exchange now routes
        it. It stays if there is none, or if one is not in *queues*. Raises ConfigurationError if
        the source is reliq, where unacked messages return to their queue.
        """
        if not self.to_reliq:
            raise ConfigurationError(
                "messages held by reliq's consumers return automatically: stop them, then migrate"
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
        # Store each part before the next, because a step reads all messages set aside.
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
                    raise NotFound(f"queue {queue!r} was deleted in reliq during the migration")
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
                    # A consumer could not read it either. The move holds it with token 0.
                    lease = Lease(move.tag, "0")
                    self._store.dead_letter(queue, "undecodable", str(exc), [lease])
                    continue
                items.append((move.number, priority, message))
                done.append(move.tag)
                delayed += waits
                early += move.delay_ms > 0 and not waits
            self._kombu.accept(queue, origin, low_water, items)
            yield Step(self._store.end_move(queue, done), delayed, early=early)
