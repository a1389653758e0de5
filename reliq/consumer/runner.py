"""Runner: the duties of a session, or of a transport, in order, each when it is due.

It alone knows what becomes of a duty whose node of a cluster is lost: the duty waits, and delays
neither the other duties nor the renewal of leases.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from ..errors import BrokerRefused, BrokerUnavailable, logger
from ..values.protocol import NODE_PATIENCE_S, Attempt
from ..values.values import ignore_result

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..values.protocol import Store


_AT_A_TIME_S = 0.05
# Pause before a duty that failed at an unreachable node of a cluster is retried.
_AGAIN_S = 1.0
# After a node did not respond in a tick, others get this time: leases elsewhere must be renewed.
_LEAST_PATIENCE_S = 0.01
LATER: Final = object()
"""Returned by a step that must be repeated after a pause."""


@dataclass(slots=True)
class Duty:
    """Work that needs the broker. Equal duties have the same step for the same queue."""

    step: Callable[..., object]
    """Called with the queue, its other arguments, and the store; may wait for the broker."""
    queue: str = ""
    """Its queue; another name, such as that of a batch, or none."""
    args: tuple[Any, ...] = ()
    at: float = field(default=0.0, compare=False)
    """When it is due (monotonic clock)."""
    patience_s: float | None = field(default=None, compare=False)
    """How long it waits for a node. None: as long as its runner does in this tick."""
    pause_s: float = field(default=_AGAIN_S, compare=False)
    """The pause before it is repeated."""

    def __call__(self, store: Store) -> object:
        """Do the step."""
        of_queue = (self.queue,) if self.queue else ()
        return self.step(*of_queue, *self.args, store)


class Runner:
    """The pending duties of one owner. Any thread may add one; one driver does them."""

    def __init__(
        self,
        owes: Callable[[Store], object] = ignore_result,
        send_owed: Callable[[Store], object] = ignore_result,
        *,
        raises: bool = False,
        most_pause_s: float = _AGAIN_S,
    ) -> None:
        """Start without duties, except to *send_owed* reports before all others if one *owes*.

        *raises*: the driver gets the broker's refusals, which are logged otherwise. The pause
        before a duty is repeated doubles up to *most_pause_s*.
        """
        self.due: deque[Duty] = deque()
        """The duties to do now, in order."""
        self.later: list[Duty] = []
        """The duties that wait for their time."""
        self._owes = owes
        self._reports = Duty(send_owed, patience_s=inf)
        self._patience_s = NODE_PATIENCE_S
        self._raises, self._most_pause_s = raises, most_pause_s

    def soon(self, step: Callable[..., object], queue: str = "", *args: Any) -> None:
        """Do *step* at the next opportunity."""
        self.due.append(Duty(step, queue, args))

    def at(self, at: float, step: Callable[..., object], queue: str = "", *args: Any) -> None:
        """Do *step* in the first tick after *at*, once for equal duties."""
        self.put_off(Duty(step, queue, args, at))

    def put_off(self, duty: Duty) -> None:
        """Do *duty* in the first tick after its time, once for equal duties."""
        if duty not in self.later:
            self.later.append(duty)

    def repeat(self, duty: Duty) -> None:
        """Do *duty* after its pause, and double the pause."""
        duty.at = monotonic() + duty.pause_s
        duty.pause_s = min(2 * duty.pause_s, self._most_pause_s)
        self.put_off(duty)

    def clear(self) -> None:
        """Forget all duties."""
        self.due.clear()
        self.later.clear()

    def begin(self) -> None:
        """Begin a tick: with full patience, and with the duties that are due by now."""
        self._patience_s = NODE_PATIENCE_S
        now = monotonic()
        for duty in [duty for duty in self.later if duty.at <= now]:
            with suppress(ValueError):  # another thread has begun a tick
                self.later.remove(duty)
                self.due.append(duty)

    def run_all(self, store: Store, between: Callable[[Store], object] = ignore_result) -> None:
        """Do all due duties, including those that follow from their replies; waits.

        Calls *between* regularly, as this may take long.
        """
        while self.due:
            self.run(store)
            between(store)
            with store.patience(self._patience_s):
                store.wait_for_replies()
            self.put_reports_first(store)

    def run(self, store: Store) -> bool:
        """Do due duties; waits for the broker. Returns whether some are left.

        Stops after a short time, so that an event loop can continue.
        """
        enough = monotonic() + _AT_A_TIME_S
        self.put_reports_first(store)
        while monotonic() < enough:
            try:
                duty = self.due.popleft()
            except IndexError:  # perhaps another thread does them, too
                return False
            self._do(duty, store)
        return bool(self.due)

    def put_reports_first(self, store: Store) -> None:
        """Send pending reports next: an ack must not wait for a backlog of other duties."""
        if monotonic() >= self._reports.at and self._owes(store):
            self._reports.at = inf  # once at a time
            self.due.appendleft(self._reports)

    def _do(self, duty: Duty, store: Store) -> None:
        if duty is self._reports:
            duty.at = 0.0
        patience_s = self._patience_s if duty.patience_s is None else duty.patience_s
        result: object = None
        try:
            with Attempt(store, patience_s, refused=not self._raises) as attempt:
                result = duty(store)
        except BrokerUnavailable:
            if duty.at:  # for the next connection
                self.put_off(duty)
            raise
        if isinstance(attempt.lost, BrokerRefused):
            logger.error("background loop: %s", attempt.lost)
        if duty is self._reports:
            duty.at = monotonic() + _AGAIN_S if attempt.lost else 0.0
        elif isinstance(attempt.lost, BrokerUnavailable):
            self._patience_s = _LEAST_PATIENCE_S
            self.repeat(duty)
        elif result is LATER:
            self.repeat(duty)
