"""Isolation: the last delivery before the limit goes to a process that holds no other message.

A message that is dead-lettered at its limit was therefore the only one of its consumer. The broker
selects the message, and delivers it only to an isolated process. This module records, for the
whole process, that such a message waits or was delivered. While it waits, the process finishes
its messages and reserves no more. After the delivery, it reserves nothing until the message is
done. Consumption that starts after the delivery is allowed, because the task itself may consume.
Knows sessions; nothing of Kombu, nothing of an engine.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from ..forks import PROCESS, Part, here, register

if TYPE_CHECKING:
    from ..values.values import Delivery
    from .sessions import Session

# A waiting consumer repeats its request every second, which keeps its claim. After this time
# without a request (cancelled, connection lost, busy with a task), the claim ends.
_FORGOTTEN_S = 5.0
# Longest wait of a process that does not finish its messages.
_LONGEST_S = 3600.0


class Isolation:
    """The message that this process holds in isolation, or waits to hold."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start again, also in a child: an inherited isolated message belongs to the parent."""
        self._patience_s = 0.0
        self._gave_up_at = 0.0
        self.back_off_until = 0.0
        """The end of the last back-off; 0 if no wait has ever failed."""
        self._forget()

    def _forget(self) -> None:
        self.on = False
        """Whether :attr:`active` may be true: read for each message, without a call."""
        self.session: Session | None = None
        self.queue = ""
        self.since = 0.0
        """Time of the isolated delivery, or of the start of the wait."""
        self._waits_since = 0.0
        self._requested_at = 0.0
        self._given: tuple[str, str] | None = None

    @property
    def active(self) -> bool:
        """Whether an isolated message is held or waited for."""
        if not PROCESS[0]:
            here()
        if not self.on:
            return False
        now = monotonic()
        waits = self._given is None and now - self._requested_at < _FORGOTTEN_S
        if waits and now - self._waits_since >= self._patience_s:
            self._give_up(now)
            return False
        if not (waits or self.holds):
            self._forget()
            return False
        return True

    def _give_up(self, now: float) -> None:
        """Continue normally for the time of the failed wait, then double it: tasks may be long."""
        self._gave_up_at, self.back_off_until = now, now + self._patience_s
        self._patience_s = min(2 * self._patience_s, _LONGEST_S)
        self._forget()

    @property
    def in_back_off(self) -> bool:
        """Whether a wait has failed, and the process reserves normally for a while."""
        return monotonic() < self.back_off_until and not self.active

    @property
    def holds(self) -> bool:
        """Whether the isolated message was delivered and is not done."""
        if self._given is None or self.session is None:
            return False
        tag, token = self._given
        held = self.session.leases.held.get(tag)
        return held is not None and held.token == token

    def wait_for(self, session: Session, queue: str, requested_at: float, began_at: float) -> None:
        """Record that a message of *queue* waits for this process to be isolated.

        The consumer began at *began_at*. After a reconnect, that may be later than the wait.
        """
        now = monotonic()
        if not self.active:
            if requested_at <= self._gave_up_at:
                return  # a late reply to a request of an ended wait
            self.since = self._waits_since = now
            self._patience_s = max(self._patience_s, session.lease_ms / 1000)
        elif self.holds or (self.session is not session or self.queue != queue):
            return
        elif began_at > self.since:
            self.since = now
        self.on, self._requested_at = True, now
        self.session, self.queue = session, queue

    def given(self, session: Session, delivery: Delivery) -> None:
        """Record an isolated delivery to this process."""
        self.on, self.since = True, monotonic()
        self.session, self.queue = session, delivery.queue
        self._given = delivery.tag, delivery.token
        self._patience_s = 0.0

    def over(self, session: Session, queue: str) -> None:
        """Record that no message of *queue* waits any more: another consumer has it."""
        if self._given is None and self.session is session and self.queue == queue:
            self._forget()


ISOLATION = Isolation()
register(Part("isolation", forget=ISOLATION.begin))
