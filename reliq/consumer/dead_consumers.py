"""Dead consumers: detect them early, and end their leases, subscriptions and queues.

The sockets of a killed process close at once. The pass over a queue looks up the connections of
its other consumers. If a connection stays missing for ``orphan_grace``, the leases of its consumer
end now, each fenced by its token, instead of at their deadline.

One consumer at a time checks all others, on all queues. A temporary queue is also checked before
each use: it ends with its last consumer, and a later queue of that name must not get its messages.
Each dead consumer of a queue is a separate duty, so acks are sent in between.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from ..errors import BrokerRefused, ReliqError, logger
from ..routing.routes import Routes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..options import Options
    from ..values.protocol import Store
    from ..values.values import Liveness
    from .runner import Runner


@dataclass(eq=False)
class DeadConsumers:
    """The knowledge of one session about possibly dead consumers."""

    _name: str
    _options: Options
    _consumes: Callable[[str], bool]
    """Whether this session consumes from a queue."""
    _restore: Callable[[Store, str], None]
    """Posts a pass over a queue after its leases were ended."""
    _is_of_this_process: Callable[[str], bool]
    """Whether a consumer is another session of this process."""
    _runner: Runner

    def __post_init__(self) -> None:
        """Start without suspects."""
        self._grace_s = self._options.orphan_grace
        # Start of the absence, and the connection that was missing then.
        self._missing: dict[tuple[str, str], tuple[float, str]] = {}
        # The same for all consumers in the register, if this session checks them all.
        self._gone: dict[str, tuple[float, str]] = {}

    def check_first(self, queue: str, store: Store) -> None:
        """Check the other consumers when consumption begins: a dead one may hold messages."""
        self.check_twice(queue, store.consumers_of(queue), store)

    def check_twice(self, queue: str, consumers: Sequence[str], store: Store) -> None:
        """Check the other *consumers* of *queue* now, and half way to the next pass."""
        others = sorted({name for name in consumers if name != self._name})
        if others:
            # With the defaults, a death is then handled in less than ten seconds.
            half_way = monotonic() + self._options.restore_interval / 2
            self._runner.at(half_way, self._check, queue, others)
            self._check(queue, others, store)

    def _check_missing(self, queue: str, store: Store) -> None:
        """Check the consumers of *queue* without a connection, one of which has been for long."""
        self._check(queue, sorted(name for of, name in self._missing if of == queue), store)

    def _check(self, queue: str, names: Sequence[str], store: Store) -> None:
        marks = store.attached(queue).marks
        for name, liveness in store.liveness(names).items():
            key = (queue, name)
            if liveness is None or liveness.lapsed:
                # It only cancelled its consumers, or could not send a heartbeat: its leases decide.
                self._missing.pop(key, None)
                if name in marks and (liveness is None or self._has_stopped(liveness, store)):
                    self._runner.soon(self._end_idle, queue, name, liveness)
                continue
            if liveness.connected:
                self._missing.pop(key, None)
                continue
            if self._stays_absent(self._missing, key, liveness, store):
                self._missing.pop(key, None)
                # Its other queues, such as its mailbox, do not wait for the check of all consumers.
                for each in dict.fromkeys((queue, *liveness.queues)):
                    self._runner.soon(self._end_absent, each, name, liveness, each == queue)
                self._runner.soon(self._forget, name, liveness)
            else:
                since, _ = self._missing[key]
                self._runner.at(since + self._grace_s, self._check_missing, queue)

    def check_gone(self, names: Sequence[str], store: Store) -> None:
        """Check *names* from the register, and end those that are gone."""
        absent = dict(self._without_connection(names, store))
        self._gone = {name: seen for name, seen in self._gone.items() if name in absent}
        for name, liveness in absent.items():
            if self._stays_absent(self._gone, name, liveness, store):
                self._gone.pop(name, None)
                self._end_each(self._end_absent, name, liveness, False)
        if self._gone:
            again_at = monotonic() + self._grace_s
            self._runner.at(again_at, self.check_gone, "", sorted(self._gone))

    def end_dead(self, names: Sequence[str], gone: dict[str, str], store: Store) -> None:
        """End the dead consumers among *names* at a broker that is only visited.

        A consumer is dead if it has no connection now and had none at the previous visit (*gone*).
        """
        before = gone.copy()
        gone.clear()
        for name, liveness in self._without_connection(names, store):
            stayed = liveness.lapsed and before.get(name) == liveness.client_id
            if stayed or (not self._is_of_this_process(name) and _process_has_ended(liveness)):
                self._end_each(self._end_absent, name, liveness, False)
            else:
                gone[name] = liveness.client_id

    def _without_connection(
        self, names: Sequence[str], store: Store
    ) -> Iterator[tuple[str, Liveness]]:
        """Yield the *names* without a connection; end silent others that have no leases."""
        others = [name for name in names if name != self._name]
        for name, liveness in (store.liveness(others) if others else {}).items():
            if liveness is None:  # its record expired before its name
                store.forget_consumer(name)
            elif not liveness.connected:
                yield name, liveness
            elif self._has_stopped(liveness, store):
                self._end_each(self._end_idle, name, liveness)

    @staticmethod
    def _has_stopped(liveness: Liveness, store: Store) -> bool:
        """Whether a consumer was silent for too long while the broker was reachable.

        Only the time of this connection counts: an earlier silence may be an outage for all.
        """
        seen_ms = (monotonic() - store.connected_at) * 1000
        return liveness.lapsed and seen_ms >= liveness.ttl_ms

    def _stays_absent(
        self, missing: dict[Any, tuple[float, str]], who: Any, liveness: Liveness, store: Store
    ) -> bool:
        """Whether a consumer has had no connection for ``orphan_grace``."""
        now = monotonic()
        since, client_id = missing.get(who, (now, liveness.client_id))
        if client_id != liveness.client_id:
            since = now  # it reconnected and was lost again: two short absences
        # An absence before this connection may be an outage of the broker for all.
        since = max(since, store.connected_at)
        missing[who] = since, liveness.client_id
        return now - since >= self._grace_s

    def _end_each(
        self, end: Callable[..., None], name: str, liveness: Liveness, *more: bool
    ) -> None:
        """Schedule the end of a consumer at each of its queues, and its removal afterwards."""
        for queue in liveness.queues:
            self._runner.soon(end, queue, name, liveness, *more)
        self._runner.soon(self._forget, name, liveness)

    def _end_absent(
        self, queue: str, name: str, liveness: Liveness, in_use: bool, store: Store
    ) -> None:
        """End a dead consumer of *queue*, unless it has reconnected since it was found.

        *in_use*: this session consumes from the queue, or polls it.
        """
        mark = store.attached(queue).marks.get(name)
        if self._is_silent(name, liveness, store):
            self._end(queue, name, mark, liveness, store)
            if in_use or self._consumes(queue):
                self._restore(store, queue)

    def _end_idle(self, queue: str, name: str, liveness: Liveness | None, store: Store) -> None:
        """Remove a silent consumer from *queue*, unless it has leases there."""
        mark = store.attached(queue).marks.get(name)
        if self._is_silent(name, liveness, store) and not store.leases_of(queue, f"{name}/"):
            self._remove(store, queue, name, mark, liveness)

    @staticmethod
    def _is_silent(name: str, liveness: Liveness | None, store: Store) -> bool:
        """Whether no heartbeat has arrived since *liveness* was read."""
        now = store.liveness([name], connections=False)[name]
        if now is None or liveness is None:
            return now is None
        return now.client_id == liveness.client_id and now.silent_ms >= liveness.silent_ms

    def _forget(self, name: str, liveness: Liveness, store: Store) -> None:
        """Remove a silent consumer from the register if no queue lists it."""
        listed = any(name in store.consumers_of(queue) for queue in liveness.queues)
        if not listed and self._is_silent(name, liveness, store):
            store.forget_consumer(name)

    def clear(self, queue: str, store: Store) -> None:
        """End the dead consumers of a temporary *queue*, which ends with its last consumer.

        Only consumers that have certainly ended: a connection lost a moment ago may come back.
        """
        attached = store.attached(queue)
        marks = {name: mark for name, mark in attached.marks.items() if name != self._name}
        if not (attached.temporary and marks):
            return
        for name, liveness in store.liveness(sorted(marks)).items():
            if self._has_ended(name, queue, liveness, store):
                self._end(queue, name, marks[name], liveness, store)
                if self._consumes(queue):
                    self._restore(store, queue)

    def _has_ended(self, name: str, queue: str, liveness: Liveness | None, store: Store) -> bool:
        if liveness is None:
            return False  # another check has just removed it, and it may be back
        if liveness.connected:
            return liveness.lapsed and not store.leases_of(queue, f"{name}/")
        # A living consumer sends several heartbeats in its ttl, unless the broker was unreachable.
        # The others need as much time to reconnect as this process.
        silence_ms = liveness.ttl_ms / 2 + self._grace_s * 1000
        established = monotonic() - store.connected_at >= self._grace_s
        if established and liveness.silent_ms >= silence_ms:
            return True
        return not self._is_of_this_process(name) and _process_has_ended(liveness)

    def _end(
        self, queue: str, name: str, mark: str | None, liveness: Liveness | None, store: Store
    ) -> None:
        """End the leases of a dead consumer. The next pass returns and counts the messages."""
        leases = store.leases_of(queue, f"{name}/")
        if leases:
            store.post_end_leases(queue, leases, _refused)
        self._remove(store, queue, name, mark, liveness)
        store.wait_for_replies()
        if leases:
            logger.warning(
                "consumer %s is gone: the leases of its %d messages in %r were ended",
                name,
                len(leases),
                queue,
            )

    @staticmethod
    def _remove(
        store: Store, queue: str, name: str, mark: str | None, liveness: Liveness | None
    ) -> None:
        silent_ms = 0 if liveness is None else liveness.silent_ms
        if mark is not None and not store.drop_consumer(queue, name, mark, silent_ms):
            Routes(store).forget_queue(queue)
            logger.info("queue %r was deleted with its last consumer, %s, now dead", queue, name)

    def expire_queue(self, queue: str, store: Store) -> None:
        """Delete *queue* if its ``x-expires`` has passed with no living consumer."""
        self.clear(queue, store)
        marks = store.attached(queue).marks
        for name, liveness in (store.liveness(sorted(marks)) if marks else {}).items():
            if liveness is None:  # silent for days, or the register was lost
                self._end_idle(queue, name, None, store)
        deleted = store.delete_queue(queue, if_idle=True)
        if deleted.outcome == "deleted":
            logger.info("queue %r was unused for its x-expires and was deleted", queue)
        if deleted.outcome in {"deleted", "missing"}:
            Routes(store).forget_queue(queue)


def _process_has_ended(liveness: Liveness) -> bool:
    """Whether a process of this host has ended; False if that cannot be determined."""
    if liveness.host != socket.gethostname() or liveness.pid <= 0:
        return False
    if liveness.pid == os.getpid():
        return True  # an earlier process with the same id, in a restarted container
    try:
        os.kill(liveness.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    with suppress(OSError, IndexError):
        # A killed process remains until its parent reaps it. The state follows the name.
        stat = Path(f"/proc/{liveness.pid}/stat").read_text("utf-8", "replace")
        return stat.rpartition(")")[2].split()[0] in {"Z", "X"}
    return False


def _refused(result: list[str] | ReliqError) -> None:
    if isinstance(result, BrokerRefused):
        logger.error("the leases of a dead consumer could not be ended: %s", result)
