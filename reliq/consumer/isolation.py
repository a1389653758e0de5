"""Isolation: the last delivery before a message's limit is made to a process that holds nothing.

So what is dead-lettered for its limit has killed a consumer by itself. The broker says which
message that is, and gives it only to who is alone; this module knows, for the whole process,
that one waits for it (then the process finishes what it holds and takes nothing more), or that
one was given (then nothing else is taken until it is done). What is consumed from its beginning
on is its own doing: a task may consume itself. Knows sessions; nothing of Kombu, nothing of an
engine.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from ..forks import PROCESS, Part, here, register

if TYPE_CHECKING:
    from ..store.values import Delivery
    from .sessions import Session

# Who waits asks every second, which keeps its claim; one that has not asked for so long (it was
# cancelled, its connection was lost, a task keeps it busy) keeps nobody waiting.
_FORGOTTEN_S = 5.0
# A process that cannot get done with what it holds does not wait for longer than this.
_LONGEST_S = 3600.0


class Isolation:
    """What this process is to take alone, or holds alone."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin anew, as a child does: what is held alone is its parent's."""
        self._patience_s = 0.0
        self._gave_up_at = 0.0
        self._back_off_until = 0.0
        self._forget()

    def _forget(self) -> None:
        self._on = False
        self.session: Session | None = None
        self.queue = ""
        self.since = 0.0
        """When it was given, or when the process began to wait for it."""
        self._waits_since = 0.0
        self._asked_at = 0.0
        self._given: tuple[str, str] | None = None

    @property
    def active(self) -> bool:
        """Whether a message is held alone or waited for."""
        if not PROCESS[0]:
            here()
        if not self._on:
            return False
        now = monotonic()
        waits = self._given is None and now - self._asked_at < _FORGOTTEN_S
        if waits and now - self._waits_since >= self._patience_s:
            self._give_up(now)
            return False
        if not (waits or self.holds):
            self._forget()
            return False
        return True

    def _give_up(self, now: float) -> None:
        """Go on as long as was waited in vain, then wait twice as long: a task may be long."""
        self._gave_up_at, self._back_off_until = now, now + self._patience_s
        self._patience_s = min(2 * self._patience_s, _LONGEST_S)
        self._forget()

    @property
    def in_back_off(self) -> bool:
        """Whether it has waited in vain, and is to take what there is for a while."""
        return monotonic() < self._back_off_until and not self.active

    @property
    def holds(self) -> bool:
        """Whether it was given, and is not done."""
        if self._given is None or self.session is None:
            return False
        tag, token = self._given
        held = self.session.leases.held.get(tag)
        return held is not None and held.token == token

    def wait_for(self, session: Session, queue: str, asked_at: float, began_at: float) -> None:
        """Note that a message of *queue* waits for this process to be alone.

        Who asks began at *began_at*: after a reconnection that may be later than the wait.
        """
        now = monotonic()
        if not self.active:
            if asked_at <= self._gave_up_at:
                return  # an answer to the last request of a wait that is over
            self.since = self._waits_since = now
            self._patience_s = max(self._patience_s, session.lease_ms / 1000)
        elif self.holds or (self.session is not session or self.queue != queue):
            return
        elif began_at > self.since:
            self.since = now
        self._on, self._asked_at = True, now
        self.session, self.queue = session, queue

    def given(self, session: Session, delivery: Delivery) -> None:
        """Note that a message was delivered to this process alone."""
        self._on, self.since = True, monotonic()
        self.session, self.queue = session, delivery.queue
        self._given = delivery.tag, delivery.token
        self._patience_s = 0.0

    def over(self, session: Session, queue: str) -> None:
        """Note that no message of *queue* waits any more: another consumer has it."""
        if self._given is None and self.session is session and self.queue == queue:
            self._forget()


ISOLATION = Isolation()
register(Part("isolation", forget=ISOLATION.begin))
