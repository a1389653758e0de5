"""The event loop's side of a transport. No code here waits for the broker."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from ...consumer.host import HOST
from ...errors import BrokerUnavailable, ReliqError, again

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..failback import Failback
    from ..link import Link
    from ..publish.posting import Posting
    from .pull import PullLoop
    from .reserver import Reserver
    from .subscription import Schedule

_DELIVERED_A_TICK = 100
_ALARM_PRECISION_S = 0.0005


class _Kick:
    """Makes the next poll return at once: Kombu's loop polls before it runs scheduled calls."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.setblocking(False)
        loop.add_reader(self._reader.fileno(), self._heed)

    def kick(self) -> None:
        with suppress(BlockingIOError):  # the socket is full of earlier kicks
            self._writer.send(b"-")

    def _heed(self) -> None:
        with suppress(BlockingIOError):
            self._reader.recv(64)

    def leave(self) -> None:
        # After hub.reset() the loop no longer knows the descriptor.
        with suppress(KeyError, ValueError, OSError, AttributeError):
            self._loop.remove_reader(self._reader.fileno())

    def close(self) -> None:
        """Close the sockets. Leave the loop alone: a child shares its poller with the parent."""
        self._reader.close()
        self._writer.close()


@dataclass(eq=False)
class EventLoop:
    """One registration per transport: two readers, one tick callback, one timer.

    Belongs to the loop's thread. Others may only wake it or call ``ack``, which then sends at once.
    """

    _link: Link
    _schedule: Schedule
    _reserver: Reserver
    _pull: PullLoop
    _failback: Failback
    _posting: Posting

    def __post_init__(self) -> None:
        """Start without a loop."""
        self._kick: _Kick | None = None
        self.forget()

    def forget(self) -> None:
        """Forget the loop."""
        self._reserver.woken = bool
        if self._kick is not None:
            self._kick.close()
            self._kick = None
        self.hub: Any = None
        """Kombu's loop that drives the transport, or None."""
        self._failback.is_driven = False
        self._loop_thread = 0
        self._timer: Any = None
        self._timer_period = 0.0
        self._alarm: Any = None
        self._alarm_at = 0.0
        self._watched: dict[int, tuple[object, Callable[[], None]]] = {}
        self._acks: dict[str, list[str]] = {}
        self._unrun = 0
        self._later: Any = None  # the rest of the duties, scheduled for the next turn
        # Whether a task may have run during this turn of the loop.
        self._has_run = False

    def register(self, loop: Any) -> None:
        """Let *loop* drive the transport; leave the previous loop."""
        self.leave()
        store = self._link.store
        self.hub, self._failback.is_driven = loop, True
        self._reserver.woken = self.wake
        self._watch()
        # The loop watches these descriptors; after a failure, Celery makes a new connection.
        store.disable_reconnect()
        store.notifier.disable_reconnect()
        loop.on_tick.add(self.on_tick)
        self._set_timer()

    def _watch(self) -> None:
        """Let the loop watch exactly the connections that are open now."""
        store = self._link.store
        wanted: dict[int, tuple[object, Callable[[], None]]] = {}
        for source, callback in (
            (store, self._on_reply),
            (store.notifier, self._pull.heed_notification),
        ):
            for fd, what in source.descriptors().items():
                wanted[fd] = what, callback
        for fd, known in list(self._watched.items()):
            if wanted.get(fd) is None or wanted[fd][0] is not known[0]:
                self._ignore(fd)
        for fd, (what, callback) in wanted.items():
            if fd not in self._watched:
                # Another thread may have closed it; the next tick watches the open connections.
                with suppress(ValueError, OSError):
                    self.hub.add_reader(fd, callback)
                    self._watched[fd] = what, callback

    def _ignore(self, fd: int) -> None:
        _, callback = self._watched.pop(fd)
        # After hub.reset() the loop no longer knows the descriptor.
        with suppress(KeyError, ValueError, OSError, AttributeError):
            # Another thread may have closed it, and its number may belong to another file now.
            if self.hub.readers[fd][0] == callback:
                self.hub.remove_reader(fd)

    def _set_timer(self) -> None:
        """Adjust the timer of the background loop to the current period."""
        if (period := self._link.session.leases.period_s) != self._timer_period:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.hub.call_repeatedly(period, self._on_timer)
            self._timer_period = period

    def leave(self) -> None:
        """Remove everything from the loop; this tick's acks go over the next connection."""
        loop = self.hub
        if loop is not None:
            loop.on_tick.discard(self.on_tick)
            for timer in (self._timer, self._alarm):
                if timer is not None:
                    timer.cancel()
            for fd in list(self._watched):
                self._ignore(fd)
            if self._kick is not None:
                self._kick.leave()
        for queue, tags in self._acks.items():
            self._link.session.outbox.ack_later(queue, tags)
        self.forget()

    def on_tick(self) -> None:
        """Send this tick's acks, deliver buffered messages, and request more or wait."""
        self._loop_thread = threading.get_ident()
        self._require_connection()
        background = self._link.session.background
        if HOST.forks():
            if background.threaded:
                background.stop()  # a process that forks should have no threads
        elif self._schedule.subscriptions and not background.threaded:
            background.start()
        self._reserver.raise_failure()
        self.flush_acks()
        self._has_run = self._deliver_some()
        if self._has_run and self.hub is not None:
            # Its ack and the next message wait for the next turn of the loop.
            if self._kick is None:
                self._kick = _Kick(self.hub)
            self._kick.kick()
        if self.hub is not None:
            self._reserver.post_requests()
            self._pull.wait_for_notification()
            if self._link.store.has_nodes:
                self._watch()
            self._set_timer()
            self._set_alarm()
            self._failback.disconnect_when_drained()

    def _set_alarm(self) -> None:
        """Wake the loop when the next delayed message is due.

        The notifier's wait ends then too, but Redis checks timeouts only ten times a second.
        """
        left = self._pull.next_due_s()
        if not 0 < left <= self._link.session.options.poll_interval:
            return  # due now, or at a time that a later tick handles
        at = monotonic() + left
        if self._alarm is None or abs(at - self._alarm_at) > _ALARM_PRECISION_S:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm_at = at
            self._alarm = self.hub.call_later(left, self._on_alarm, self.hub)

    def _on_alarm(self, loop: Any) -> None:
        self._alarm = None
        loop.call_soon(_come_back)

    def _deliver_some(self) -> bool:
        """Deliver buffered messages; return whether a task may have run in this call (solo pool).

        In that pool, signals and timers get a turn after each task; a stopping worker starts none.
        """
        inline = HOST.inline()
        if inline and HOST.stopping():
            return False
        deliver_one = self._pull.deliver_one
        for _ in range(_DELIVERED_A_TICK):
            unrun = self._unrun
            if not deliver_one():
                return False
            # A dead letter ran no task, and its ack does not wake the loop.
            if inline and unrun == self._unrun:
                break
        self._come_back_for_more()  # in the next tick, after the timers
        return inline

    def _come_back_for_more(self) -> None:
        loop, subscriptions = self.hub, self._schedule.subscriptions
        if loop is not None and any(item.can_deliver() for item in subscriptions):
            loop.call_soon(_come_back)

    def _on_reply(self) -> None:
        self._link.store.receive()
        self._posting.do_duties()
        if HOST.forks() and self._later is None:
            self._do_later()
        self._reserver.raise_failure()
        if self._has_run:
            # Celery acks at the start of the loop's next turn. This turn's task is finished, and
            # its ack must not wait for another one, perhaps of another node, which may take hours.
            self._come_back_for_more()
        else:
            self._has_run = self._deliver_some()
        self.flush_acks()

    def _on_timer(self) -> None:
        self._require_connection()
        self._pull.do_duties()
        session, store = self._link.session, self._link.store
        store.check()
        store.notifier.check()
        if HOST.forks():
            session.duties.tick(store)
            if not store.waiting:
                self._do_later()

    def _do_later(self) -> None:
        """Run due background work, and the rest in the loop's next turn; raises nothing."""
        link, loop = self._link, self.hub
        later, self._later = self._later, None
        if later is not None:
            later.cancel()  # otherwise a turn would run several shares
        try:
            self.flush_acks()  # background work may wait for the broker
            if loop is not None and link.store.alive and link.session.duties.runner.run(link.store):
                self._later = loop.call_soon(self._do_later)
        except ReliqError as exc:
            # Otherwise Kombu's loop drops its other scheduled calls: Celery's acks.
            self._reserver.failure = again(exc)

    def _require_connection(self) -> None:
        if not self._link.store.alive:
            raise BrokerUnavailable("the connection to the broker was lost")

    def wake(self) -> None:
        """Wake the loop if another thread has read its reply."""
        if self.hub is not None and self._loop_thread != threading.get_ident():
            self.hub.call_soon(_come_back)

    def note_unrun(self) -> None:
        """Record that a message was settled without a run, which frees credit for the next."""
        self._unrun += 1
        if self.hub is not None:
            self.hub.call_soon(_come_back)

    def ack(self, queue: str, tags: Sequence[str]) -> None:
        """Ack messages at the end of the loop's tick, or at once if its end is uncertain."""
        outbox = self._link.session.outbox
        if (
            self.hub is not None
            # With the solo pool, tasks run inside a tick, which lasts as long as they do.
            and HOST.forks()
            and self._loop_thread == threading.get_ident()
            and not all(item.no_ack for item in self._schedule.subscriptions)
        ):
            outbox.owe_acks(queue, tags)
            self._acks.setdefault(queue, []).extend(tags)
        else:
            outbox.ack(self._link.store, queue, tags)
        if queue in self._reserver.held_back:
            self._reserver.ask_again(queue)
        if self._pull.starved:
            self._pull.credit_regained()

    def flush_acks(self) -> None:
        """Send the acks of this tick; the session keeps those that could not be sent."""
        link = self._link
        while self._acks:
            queue, tags = self._acks.popitem()
            link.session.outbox.send_acks(link.store, queue, tags)

    def keep_leases(self, loop_ends: bool = False) -> None:
        """Ensure that leases are renewed, by the loop's timer or by a thread."""
        if self.hub is None or loop_ends:
            self._link.session.background.start()


def _come_back() -> None:
    """Make the loop run one more turn without waiting."""
