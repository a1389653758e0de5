"""The background loop: a session's background duties, in one :meth:`BackgroundLoop.tick`.

It renews leases, says that the consumer lives, returns messages whose lease has
ended (``restore_visible``), ends the leases of consumers that died, removes expired
messages and queues, in use or not. Two drivers: a timer of the event loop
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

from .._version import __version__
from ..errors import BrokerRefused, ReliqError, again
from ..failover.jitter import JITTER
from ..forks import OwnLock, under_way
from ..integrations.celery import WATCH
from ..signals import emit, identity, lease_lost
from ..store.values import Duties, Lease, Lost
from ..transfer.dead_letter_exchange import DeadLetterRouter
from . import log_events
from .dead_consumers import Orphans
from .maintenance import Passes

if TYPE_CHECKING:
    from collections.abc import Callable

    from blinker import NamedSignal

    from ..store.protocol import Store
    from .session import Held, Session

logger = logging.getLogger("reliq")

_RENEWED_AT_ONCE = 200
_AT_A_TIME_S = 0.05
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


class BackgroundLoop:
    """The background duties of one session."""

    _thread_lock = OwnLock()

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
        self._next_heartbeat = 0.0
        self._next_look = 0.0
        self._look_s = options.restore_interval
        self._registered = False
        self._registered_as: tuple[str, int, dict[str, str]] | None = None
        self._pool = ""
        shared = {name: getattr(options, name) for name in _SHARED_OPTIONS}
        self._shared_options = json.dumps(shared)
        self._later: deque[Callable[[Store], None]] = deque()
        self._orphans = Orphans(session)
        self._dead_letter_router = DeadLetterRouter()
        self._passes = Passes(session, self._orphans, self._later, self.route_soon)
        self._dead_letter_routed: frozenset[str] = frozenset()
        self._thread: threading.Thread | None = None
        self._rest = _Rest()
        self._paused: threading.Thread | None = None
        # What a thread leaves to the one after a fork.
        self._left_store: Store | None = None
        self._next_tick = 0.0
        self._failures = 0

    # -- drivers

    @property
    def threaded(self) -> bool:
        """Whether the thread is the driver now, or will be after the fork that is under way."""
        return self._thread is not None

    def start(self) -> None:
        """Start the thread unless it runs; where the process forks, after that."""
        with self._thread_lock:
            if self._thread is None:
                self._next_tick = monotonic() + self.period
                self._rest = _Rest()
                self._thread = self._new_thread()
                if under_way():
                    self._rest.pause()
                    self._paused = self._thread
                else:
                    self._thread.start()

    def _new_thread(self) -> threading.Thread:
        given = (self._rest,)
        return threading.Thread(target=self._run, args=given, name="reliq-background", daemon=True)

    def stop(self) -> None:
        """Stop the thread and wait until it is gone."""
        with self._thread_lock:
            thread, self._thread = self._thread, None
            self._paused = None
            self._rest.end()
        _join(thread)
        with self._thread_lock:
            store, self._left_store = self._left_store, None
        if store is not None:
            store.close()

    def pause(self) -> None:
        """Have the thread end, for a fork; :meth:`resume` goes on where it was."""
        with self._thread_lock:
            if self._thread is not None:
                self._rest.pause()
                self._paused = self._thread

    def wait_paused(self) -> None:
        """Wait until no thread runs. A tick that is due is done first: forks may be frequent."""
        _join(self._paused)

    def resume(self) -> None:
        """Start a thread again after a fork; a tick that is due by now it does at once."""
        with self._thread_lock:
            paused, self._paused = self._paused, None
            if paused is None:
                return
            if paused is threading.current_thread():  # it forks itself, and runs on
                self._rest.resume()
                return
            self._rest = _Rest()
            self._thread = self._new_thread()
            self._thread.start()

    def subscribed(self, queue: str) -> None:
        """Look after *queue* soon, and tell the register about it."""
        self._passes.begin(queue)
        self._later.append(partial(self._orphans.first_look, queue))
        self._next_heartbeat = 0.0

    def heed(self, lease_s: float) -> None:
        """Tick often enough for a lease of that length: a queue may have its own."""
        if lease_s / 6 < self.period:
            self.period = lease_s / 6
            self._rest.cut()

    def _run(self, rest: _Rest) -> None:
        with self._thread_lock:
            left, self._left_store = self._left_store, None
        store = left or self.session.open_store()
        while rest.wait(self._next_tick - monotonic()):
            store = self._turn(store)
            self._next_tick = monotonic() + self._pause(self._failures)
            self.session.maybe_end()
        if rest.paused:
            self._left_store = store
        else:
            store.close()

    def _turn(self, store: Store) -> Store:
        """Do what is due, and wait for it; return the connection for the next time."""
        try:
            self.session.read_replies()
            if not store.alive:
                store.connect()
                store.require_writable()  # a replica takes the login too
            if store.connected_at < self.session.replaced_at:
                store.close()  # perhaps to a server that was replaced
                return self.session.open_store()
            self.tick(store)
            store.wait_for_replies()
            while self._later:
                self.do_later(store)
                store.wait_for_replies()
            self._failures = 0
        except ReliqError as exc:
            if not self._failures:
                logger.warning("background loop: %s; it goes on when the broker answers", exc)
            self._failures += 1
        except Exception:
            # Not around a message: a background loop that dies of a mistake would end
            # the renewal of every lease of this process without a word.
            logger.exception("background loop: a duty failed; it goes on")
        return store

    def _pause(self, failures: int) -> float:
        """Return how long to wait for the next tick: longer, and not as long as others, if down."""
        if not failures:
            return self.period
        longest = min(self.period * 2.0 ** min(failures, 8), self._longest_pause_s)
        return longest * JITTER.uniform(0.5, 1.0)

    def do_later(self, store: Store) -> None:
        """Do what replies asked for; waits for the broker.

        Not all at once where it takes long, so that an event loop turns meanwhile.
        """
        enough = monotonic() + _AT_A_TIME_S
        while monotonic() < enough:
            try:
                duty = self._later.popleft()
            except IndexError:
                return
            try:
                duty(store)
            except BrokerRefused as exc:
                logger.error("background loop: %s", exc)  # noqa: TRY400 - the message says it all

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
        self.session.running.tell(store)
        if now >= self._next_look:
            # The others are asked for as often as they are heard of; who has the duty, more.
            self._next_look = now + self._heartbeat_s
            hold_ms = int(self._look_s * 2500)
            store.post_look(self.session.id, hold_ms, self._look_after_all)
        self._passes.tick(store, self._dead_letter_routed)

    def poll(self, store: Store, queue: str) -> None:
        """Look after *queue* for a process that only polls it; waits, once an interval.

        There may be nobody else to return what a consumer held that was killed.
        """
        self._orphans.tick(self._later)
        if self._passes.poll(store, queue):
            store.wait_for_replies()
        while self._later:
            self.do_later(store)
            store.wait_for_replies()

    def look_after(self, queue: str) -> None:
        """Look after the dead letters of a queue from now on, before the register names it."""
        self._dead_letter_routed |= {queue}

    def route_soon(self, queue: str) -> None:
        """Route the dead letters of *queue* on at the next opportunity, where it asks for it."""
        self._later.append(partial(self._dead_letter_router.route, queue))

    def restore_now(self, queue: str, store: Store) -> None:
        """Begin a pass over *queue* now: leases were ended."""
        self._passes.restore(store, queue, force=True)

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
        self.session.lease_lost(tag, held.token)
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
            held = self.session.lease_lost(tag, tokens[tag])
            if held is None:
                continue  # acked or returned meanwhile
            if tag in result.gone:
                log_events.lease_gone(queue, tag)
                self._tell_lost(tag, held, "gone")
                continue
            log_events.lease_lost(queue, tag, self.session.options.visibility_timeout)
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
        store.wait_for_replies()

    def _heartbeat(self, store: Store) -> None:
        known = self._registered_as
        if known is None:
            seconds = self.session.options.visibility_timeout
            log_events.consuming(store.broker, self.session.id, seconds)
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
            "queues": "\n".join(self.session.queues),
            "held": str(len(self.session.held)),
            "processes": str(WATCH.processes),
        }
        ttl_ms = int(self._heartbeat_s * 3000) + 1000
        again_ms = int(self._heartbeat_s * 1000)
        on_result = partial(self._heard, store)
        store.post_heartbeat(self.session.id, ttl_ms, again_ms, record, on_result)
        self.session.running.tell(store, again=True)

    def _heard(self, store: Store, result: Duties | ReliqError) -> None:
        if not isinstance(result, ReliqError):
            self._dead_letter_routed = frozenset(result.dead_letter_routed)
            if result.more:
                self._next_heartbeat = 0.0
            strange = [queue for queue in result.due if queue not in self.session.subscriptions]
            if strange:
                self._passes.look_at(store, strange)
            if result.new and self._registered:
                self._later.append(self.session.come_back)
            self._registered = True

    def unregister(self, store: Store) -> None:
        """Take this consumer, which has no subscription any more, out of the register."""
        self._registered, self._registered_as = False, None
        store.forget_consumer(self.session.id)

    def _look_after_all(self, result: list[str] | ReliqError) -> None:
        if isinstance(result, ReliqError):
            if isinstance(result, BrokerRefused):
                logger.error("consumers that died cannot be looked for: %s", result)
        elif result:
            self._next_look = monotonic() + self._look_s * JITTER.uniform(0.9, 1.1)
            self._later.append(partial(self._orphans.look_after, result))

    def end_dead(self, store: Store) -> None:
        """See to the dead of a broker that is only visited, unless somebody there does; waits."""
        found: list[list[str] | ReliqError] = []
        store.post_look(self.session.id, int(self._look_s * 1000), found.append)
        store.wait_for_replies()
        for names in found:
            if isinstance(names, ReliqError):
                raise again(names)
            self._orphans.end_dead(names, store)

    def clear(self, queue: str, store: Store) -> None:
        """Take dead consumers off a queue that is about to be used; waits. See Orphans."""
        self._orphans.clear(queue, store)


class _Rest:
    """The pauses of one thread between its ticks."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._over = False
        self.paused = False

    def wait(self, seconds: float) -> bool:
        """Wait so long at most; False when the thread is to end.

        Where the next tick is due, *seconds* are 0 or less: it is done before the process
        forks. Else forks that follow each other sooner than ticks would end them all.
        """
        if seconds <= 0:
            return not self._over
        self._event.wait(seconds)
        self._event.clear()
        return not (self._over or self.paused)

    def cut(self) -> None:
        """End this pause: the next ones are shorter."""
        self._event.set()

    def end(self) -> None:
        """End this pause, and the thread."""
        self._over = True
        self.paused = False
        self._event.set()

    def pause(self) -> None:
        """End the thread for a fork: another one goes on."""
        self.paused = True
        self._event.set()

    def resume(self) -> None:
        """Go on in the same thread."""
        self.paused = False


def _join(thread: threading.Thread | None) -> None:
    # One that was wanted while the process forks was never started.
    if thread is None or thread.ident is None or thread is threading.current_thread():
        return
    thread.join()


def _tell(signal: NamedSignal, arguments: dict[str, Any], store: Store) -> None:
    emit(signal, store.broker, **arguments)
