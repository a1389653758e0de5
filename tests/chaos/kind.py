"""What a kind of fault is to the nemesis: it strikes, is watched, undone, and over at some time.

`apply` returns the record that the checker judges by, or one with `applied=False` where there
was nothing to hit.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar, Protocol

from tests.chaos.model import Fault

if TYPE_CHECKING:
    from tests.chaos.broker import Broker
    from tests.chaos.crew import Crew
    from tests.chaos.model import Limits, Strike
    from tests.chaos.settings import Brokers


class Stage(Protocol):
    """What faults can reach."""

    broker: Broker
    crew: Crew
    limits: Limits
    options: dict[str, float]


class FaultKind:
    """One kind of fault; one instance for each time it strikes."""

    name: ClassVar[str]
    span: ClassVar[tuple[float, float]] = (0.0, 0.0)
    """Shortest and longest time until it is undone, in seconds."""
    about: ClassVar[str]
    brokers: ClassVar[frozenset[Brokers]] = frozenset(
        {"one", "two", "sentinels", "cluster", "embedded"}
    )
    """With which brokers it can be."""
    second: ClassVar[bool] = False
    """Whether clients have somewhere else to go, so that they need not wait for the end."""
    of_broker: ClassVar[bool] = False
    """Whether it talks to the server itself: one at a time, in turn."""

    when_asked: ClassVar[bool] = False
    """Whether a run has it only where it is asked for."""

    def __init__(self, stage: Stage, strike: Strike) -> None:
        self.stage, self.strike = stage, strike

    def apply(self) -> Fault:
        """Strike now."""
        raise NotImplementedError

    def undo(self) -> None:
        """Repair it."""

    def watch(self, fault: Fault) -> None:
        """Look at what has become of it, until it is undone; called again and again."""

    def ready(self) -> bool:
        """Whether it can be undone without waiting; asked when it is time."""
        return True

    def left(self, fault: Fault) -> str:
        """Return what is left of it, after which the next one of the broker may strike."""
        return ""

    def _fault(self, **known: object) -> Fault:
        now = time.monotonic()
        return Fault(self.name, now, now, **known)  # type: ignore[arg-type]

    def _nothing(self, note: str) -> Fault:
        return self._fault(applied=False, note=note)


class OfAGroup(FaultKind):
    """A fault of one of the servers that have each other's data: a confirmation relies on others.

    It strikes a group that is whole, and is over when the group is whole again: so the next one
    does not find away what a confirmation has relied on.
    """

    _LOOK_S = 0.1
    of_broker = True
    second = True

    def __init__(self, stage: Stage, strike: Strike) -> None:
        super().__init__(stage, strike)
        self._next_look = 0.0
        self._missing = "not looked at yet"

    def apply(self) -> Fault:
        """Strike a group that is whole."""
        if missing := self.stage.broker.missing():
            return self._nothing(missing)
        return self._strike()

    def _strike(self) -> Fault:
        raise NotImplementedError

    def _due(self) -> bool:
        """Whether it is time to look again: each look asks all servers."""
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + self._LOOK_S
        return True

    def left(self, fault: Fault) -> str:
        """Return what the group misses to be whole."""
        if not fault.applied:
            return ""
        if self._due():
            self._missing = self.stage.broker.missing()
        return self._missing
