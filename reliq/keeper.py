"""The keeper: a session's background duties, in one :meth:`Keeper.tick`.

It renews leases, says that the consumer lives, returns messages whose lease has
ended (``restore_visible``), ends the leases of consumers that died, deletes
queues whose ``x-expires`` has passed. Two drivers: a timer of the event loop
where the process forks children (it should have no threads), a daemon thread
with its own connection everywhere else.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections import deque
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from . import reports
from ._version import __version__
from .contrib.celery import WATCH
from .errors import BrokerRefused, BrokerUnavailable, ReliqError
from .orphans import Orphans
from .pacing import JITTER
from .rerouting import Rerouter
from .signals import (
    emit,
    emit_at_the_limit,
    emit_restored,
    identity,
    lease_lost,
    message_dead,
    message_restored,
)
from .store import Duties, Lease, Lost, Restored, Store, ignore_result

if TYPE_CHECKING:
    from collections.abc import Callable

    from blinker import NamedSignal

    from .session import Held, Session

logger = logging.getLogger("reliq")

_RENEWED_AT_ONCE = 200
# Whoever returns, dead-letters or orders a message goes by its own: all should have the same.
_SHARED_OPTIONS = (
    "visibility_timeout",
    "restore_interval",
    "orphan_grace",
    "delivery_limit",
    "redelivery_backoff",
    "dead_letter_max",
    "dead_letter_ttl",
    "priority_order",
)


class Keeper:
    """The background duties of one session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        options = session.options
        self.period = min(1.0, options.visibility_timeout / 6, options.restore_interval)
        self._resend_s = max(self.period, options.socket_timeout)
        self._heartbeat_s = min(20.0, max(options.visibility_timeout / 3, 1.0))
        # While the broker is away. Others must see us again before they take us for dead.
        self._longest_pause_s = max(
            self.period, min(2.0, options.orphan_grace / 2, options.visibility_timeout / 6)
        )
        self._next_restore: dict[str, float] = {}
        self._passing: set[str] = set()
        self._tally: dict[str, dict[str, int]] = {}
        self._next_heartbeat = 0.0
        self._registered_as: tuple[str, int, dict[str, str]] | None = None
        self._pool = ""
        shared = {name: getattr(options, name) for name in _SHARED_OPTIONS}
        self._shared_options = json.dumps(shared)
        self._later: deque[Callable[[Store], None]] = deque()
        self._orphans = Orphans(session)
        self._rerouter = Rerouter()
        self._rerouted: frozenset[str] = frozenset()
        self._thread: threading.Thread | None = None
        self._rest = _Rest()
        self._thread_lock = threading.Lock()

    # -- drivers

    @property
    def threaded(self) -> bool:
        """Whether the thread is the driver now."""
        return self._thread is not None

    def start(self) -> None:
        """Start the thread unless it runs."""
        with self._thread_lock:
            if self._thread is None:
                self._rest = _Rest()
                self._thread = threading.Thread(
                    target=self._run, args=(self._rest,), name="reliq-keeper", daemon=True
                )
                self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait until it is gone."""
        with self._thread_lock:
            thread, self._thread = self._thread, None
            self._rest.end()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def subscribed(self, queue: str) -> None:
        """Look after *queue* soon, and tell the register about it."""
        self._next_restore.setdefault(queue, 0.0)
        self._later.append(partial(self._orphans.first_look, queue))
        self._next_heartbeat = 0.0

    def heed(self, lease_s: float) -> None:
        """Tick often enough for a lease of that length: a queue may have its own."""
        if lease_s / 6 < self.period:
            self.period = lease_s / 6
            self._rest.cut()

    def _run(self, rest: _Rest) -> None:
        store = self.session.open_store()
        down = 0
        while rest.wait(self._pause(down)):
            try:
                self.session.read_replies()
                if not store.alive:
                    store.connect()
                    store.require_writable()  # a replica takes the login too
                if store.connected_at < self.session.replaced_at:
                    store.close()  # perhaps to a server that was replaced
                    store = self.session.open_store()
                    continue
                self.tick(store)
                store.settle()
                while self._later:
                    self.do_later(store)
                    store.settle()
                down = 0
            except ReliqError as exc:
                if not down:
                    logger.warning("keeper: %s; it goes on when the broker answers", exc)
                down += 1
            except Exception:
                # Not around a message: a keeper that dies of a mistake would end
                # the renewal of every lease of this process without a word.
                logger.exception("keeper: a duty failed; it goes on")
            self.session.maybe_end()
        store.close()

    def _pause(self, failures: int) -> float:
        """Return how long to wait for the next tick: longer, and not as long as others, if down."""
        if not failures:
            return self.period
        longest = min(self.period * 2.0 ** min(failures, 8), self._longest_pause_s)
        return longest * JITTER.uniform(0.5, 1.0)

    def do_later(self, store: Store) -> None:
        """Do what replies asked for; waits for the broker."""
        while True:
            try:
                duty = self._later.popleft()
            except IndexError:
                return
            try:
                duty(store)
            except BrokerRefused as exc:
                logger.error("keeper: %s", exc)  # noqa: TRY400 - the message says it all

    def tell(self, signal: NamedSignal, **arguments: Any) -> None:
        """Send *signal* soon: not while a reply is read, when the connection is locked."""
        if signal.receivers:
            self._later.append(partial(_tell, signal, arguments))

    # -- the tick

    def tick(self, store: Store) -> None:
        """Do what is due over *store*, without waiting for replies.

        Raises BrokerUnavailable; a later tick goes on where this one ended.
        """
        store.receive()  # also finds out that the peer has closed the connection
        store.check()
        store.connect()
        now = monotonic()
        # A loop reads its own replies, so what it has no answer to is really late.
        self.session.resend(self.period if self.threaded else self._resend_s)
        if self.session.owes:
            self._later.append(self.session.send_owed)
        self.renew(store)
        if not (self.session.subscriptions or self.session.expected_back):
            return
        self._orphans.tick(self._later)
        known = self._registered_as
        if (
            now >= self._next_heartbeat
            or known is None
            or known[:2] != (store.consumer, store.epoch)
            or self._pool != WATCH.pool  # a worker has its pool after its first heartbeat
        ):
            self._heartbeat(store)
        for queue, kinds in list(self.session.subscriptions.items()):
            if all(kinds) or now < self._next_restore.get(queue, 0.0) or queue in self._passing:
                continue
            self._next_restore[queue] = now + self._jittered()
            self._restore(store, queue)
        for queue in self._rerouted.difference(self.session.subscriptions):
            # Nobody may consume from it: what has expired there still dies, and is routed.
            if now >= self._next_restore.get(queue, 0.0) and queue not in self._passing:
                self._next_restore[queue] = now + self._jittered()
                store.post_reserve(queue, 0, self.session.lease_ms, False, ignore_result)
                self._restore(store, queue)

    def look_after(self, queue: str) -> None:
        """Look after the dead letters of a queue from now on, before the register names it."""
        self._rerouted |= {queue}

    def route_soon(self, queue: str) -> None:
        """Route the dead letters of *queue* on at the next opportunity, where it asks for it."""
        self._later.append(partial(self._rerouter.route, queue))

    def _jittered(self, low: float = 0.9, high: float = 1.1) -> float:
        return self.session.options.restore_interval * JITTER.uniform(low, high)

    # -- leases

    def renew(self, store: Store, all_of_them: bool = False) -> None:
        """Post the renewal of every lease that is a third gone."""
        session, now = self.session, monotonic()
        limit = session.options.consumer_timeout
        due: dict[str, list[Lease]] = {}
        with session.lock:
            for tag, held in list(session.held.items()):
                if limit is not None and now - held.since > limit:
                    self._overstayed(tag, held)
                elif all_of_them or now - held.granted > held.lease_s / 3 - self.period:
                    held.granted = now
                    due.setdefault(held.queue, []).append(Lease(tag, held.token))
        for queue, leases in due.items():
            for start in range(0, len(leases), _RENEWED_AT_ONCE):
                batch = leases[start : start + _RENEWED_AT_ONCE]
                on_result = partial(self._renewed, queue, batch)
                store.post_renew(queue, session.lease_ms, batch, on_result)

    def _overstayed(self, tag: str, held: Held) -> None:
        del self.session.held[tag]
        logger.warning(
            "message %s of %r was held longer than consumer_timeout (%g s): "
            "its lease is no longer renewed and it will be delivered again",
            tag,
            held.queue,
            self.session.options.consumer_timeout,
        )
        self._tell_lost(tag, held, "consumer_timeout")

    def _renewed(self, queue: str, leases: list[Lease], result: Lost | ReliqError) -> None:
        if isinstance(result, ReliqError):
            if isinstance(result, BrokerRefused):
                logger.error("leases on %r could not be renewed: %s", queue, result)
            for lease in leases:  # due again at the next tick
                held = self.session.held.get(lease.tag)
                if held is not None and held.token == lease.token:
                    held.granted = 0.0
            return
        tokens = dict(leases)
        self._note_length(tokens, result)
        for tag in result.tags:
            with self.session.lock:
                held = self.session.held.get(tag)
                if held is None or held.token != tokens[tag]:
                    continue  # acked or returned meanwhile
                del self.session.held[tag]
            if tag in result.gone:
                reports.lease_gone(queue, tag)
                self._tell_lost(tag, held, "gone")
                continue
            reports.lease_lost(queue, tag, self.session.options.visibility_timeout)
            self._tell_lost(tag, held, "returned")

    def _note_length(self, tokens: dict[str, str], result: Lost) -> None:
        """Note how long what was renewed lasts now: an operator may have changed that."""
        self.heed(result.lease_ms / 1000)
        for tag, token in tokens.items():
            held = self.session.held.get(tag)
            if held is not None and held.token == token:
                held.lease_s = result.lease_ms / 1000

    def _tell_lost(self, tag: str, held: Held, reason: str) -> None:
        if lease_lost.receivers:
            message: Any = None if held.message is None else held.message()
            headers = getattr(message, "headers", None) or {}
            held_s = monotonic() - held.since
            own = {"queue": held.queue, "tag": tag, "reason": reason, "held_s": held_s}
            self.tell(lease_lost, **own, **identity(headers))

    # -- the register

    def register(self, store: Store) -> None:
        """Enter this consumer in the register, as connected by *store*; waits."""
        self._heartbeat(store)
        store.settle()

    def _heartbeat(self, store: Store) -> None:
        known = self._registered_as
        if known is None:
            seconds = self.session.options.visibility_timeout
            reports.consuming(store.broker, self.session.id, seconds)
        if known is None or known[:2] != (store.consumer, store.epoch):
            client_id, run_id = store.server()
            identity = {
                "host": socket.gethostname(),
                "pid": str(os.getpid()),
                "version": __version__,
                "client_id": client_id,
                "run_id": run_id,
                "started_ms": str(store.now_ms() - int(self.session.age_s * 1000)),
            }
            known = self._registered_as = (store.consumer, store.epoch, identity)
        self._next_heartbeat = monotonic() + self._heartbeat_s
        self._pool = WATCH.pool
        record = {
            **known[2],
            "pool": self._pool,
            "options": self._shared_options,
            "queues": "\n".join(self.session.subscriptions),
            "held": str(len(self.session.held)),
        }
        ttl_ms = int(self._heartbeat_s * 3000) + 1000
        store.post_heartbeat(self.session.id, ttl_ms, record, self._heard)

    def _heard(self, result: Duties | ReliqError) -> None:
        if not isinstance(result, ReliqError):
            for queue in result.expiring:
                if queue in self.session.subscriptions:
                    continue  # in use, by us
                self._later.append(partial(self._orphans.expire_queue, queue))
            self._rerouted = frozenset(result.rerouted)

    # -- restore_visible

    def _restore(self, store: Store, queue: str, hurry: bool = False) -> None:
        self._passing.add(queue)
        on_result = partial(self._restored, store, queue)
        try:
            store.post_restore(queue, self.session.lease_ms, on_result, hurry, _returns_are_told())
        except BrokerUnavailable:
            self._passing.discard(queue)
            raise

    def _restored(self, store: Store, queue: str, result: Restored | ReliqError) -> None:
        self._passing.discard(queue)
        if isinstance(result, ReliqError):
            if isinstance(result, BrokerRefused):
                logger.error("restore_visible on %r failed: %s", queue, result)
            return
        tally = self._tally.setdefault(queue, {})
        for consumer, number in result.by_consumer.items():
            tally[consumer] = tally.get(consumer, 0) + number
        reports.at_the_limit(queue, result.dead)
        if (result.restored or result.dead) and _returns_are_told():
            self._later.append(partial(_tell_returns, queue, result))
        if result.more:
            self._go_on(store, queue)
            return
        if result.to_route:
            self.route_soon(queue)
        for consumer, number in self._tally.pop(queue, {}).items():
            reports.restored(queue, consumer, number)
        if not result.granted:
            soon = result.retry_ms / 1000 + self._jittered(0.0, 0.1)
            self._next_restore[queue] = monotonic() + soon
        else:
            own = sum(1 for held in list(self.session.held.values()) if held.queue == queue)
            if result.unacked > own:
                self._orphans.suspect(queue, result.consumers, self._later)

    def _go_on(self, store: Store, queue: str) -> None:
        """Post the next batch at once, from the reply of the one before."""
        try:
            self._restore(store, queue, hurry=True)
        except BrokerUnavailable:
            self._next_restore[queue] = 0.0  # the next tick goes on, or says why not

    def hurry(self, queue: str, store: Store) -> None:
        """Begin a pass over *queue* now: leases were ended."""
        self._restore(store, queue, hurry=True)


class _Rest:
    """The pauses of one thread between its ticks."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._over = False

    def wait(self, seconds: float) -> bool:
        """Wait so long at most; False when the thread is to end."""
        self._event.wait(seconds)
        self._event.clear()
        return not self._over

    def cut(self) -> None:
        """End this pause: the next ones are shorter."""
        self._event.set()

    def end(self) -> None:
        """End this pause, and the thread."""
        self._over = True
        self._event.set()


def _tell(signal: NamedSignal, arguments: dict[str, Any], store: Store) -> None:
    emit(signal, store.broker, **arguments)


def _returns_are_told() -> bool:
    return bool(message_restored.receivers or message_dead.receivers)


def _tell_returns(queue: str, result: Restored, store: Store) -> None:
    emit_restored(store.broker, queue, result.restored)
    emit_at_the_limit(store.broker, queue, result.dead, "lease ended")
