"""The interface of a kind of fault for the nemesis: it is applied, watched, undone, and ends.

`apply` returns the record that the checker uses, with `applied=False` if the fault could not hit
anything.
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
    """The parts that faults can access."""

    broker: Broker
    crew: Crew
    limits: Limits
    options: dict[str, float]


class FaultKind:
    """One kind of fault; one instance for each strike."""

    name: ClassVar[str]
    span: ClassVar[tuple[float, float]] = (0.0, 0.0)
    """Shortest and longest seconds until it is undone."""
    about: ClassVar[str]
    brokers: ClassVar[frozenset[Brokers]] = frozenset(
        {"one", "two", "sentinels", "cluster", "embedded", "logins"}
    )
    """The broker setups in which it can occur."""
    second: ClassVar[bool] = False
    """Whether clients have another server, so that they need not wait for the end."""
    of_broker: ClassVar[bool] = False
    """Whether it uses the server itself. Such faults are applied one at a time."""

    when_asked: ClassVar[bool] = False
    """Whether a run has it only on request."""

    def __init__(self, stage: Stage, strike: Strike) -> None:
        self.stage, self.strike = stage, strike

    def apply(self) -> Fault:
        """Apply the fault now."""
        raise NotImplementedError

    def undo(self) -> None:
        """Undo it."""

    def watch(self, fault: Fault) -> None:
        """Check its progress; called repeatedly until it is undone."""

    def ready(self) -> bool:
        """Whether it can be undone without waiting; called when it is due."""
        return True

    def left(self, fault: Fault) -> str:
        """Return its remaining effect. The next fault of the broker waits until there is none."""
        return ""

    def _fault(self, **known: object) -> Fault:
        now = time.monotonic()
        return Fault(self.name, now, now, **known)  # type: ignore[arg-type]

    def _nothing(self, note: str) -> Fault:
        return self._fault(applied=False, note=note)


class OfAGroup(FaultKind):
    """A fault of one of several servers that replicate data, on which confirmations rely.

    It is applied only to a complete group, and ends when the group is complete again. The next one
    then finds the servers on which a confirmation has relied.
    """

    _LOOK_S = 0.1
    of_broker = True
    second = True

    def __init__(self, stage: Stage, strike: Strike) -> None:
        super().__init__(stage, strike)
        self._next_look = 0.0
        self._missing = "not looked at yet"

    def apply(self) -> Fault:
        """Apply the fault if the group is complete."""
        if missing := self.stage.broker.missing():
            return self._nothing(missing)
        return self._strike()

    def _strike(self) -> Fault:
        raise NotImplementedError

    def _due(self) -> bool:
        """Whether the next check is due, as each check queries all servers."""
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + self._LOOK_S
        return True

    def left(self, fault: Fault) -> str:
        """Return the reason why the group is incomplete."""
        if not fault.applied:
            return ""
        if self._due():
            self._missing = self.stage.broker.missing()
        return self._missing
