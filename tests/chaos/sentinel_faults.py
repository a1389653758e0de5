"""The faults of a Sentinel group: its master dies or freezes, and a replica is promoted.

Each fault ends when the group is complete again: see `kind.OfAGroup`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.chaos.kind import FaultKind, OfAGroup
from tests.chaos.model import WENT_BACK
from tests.chaos.sentinel_broker import SentinelBroker

if TYPE_CHECKING:
    from tests.chaos.kind import Stage
    from tests.chaos.model import Fault, Strike
    from tests.support.servers import RedisServer


class SentinelKill(OfAGroup):
    """A replica is promoted; the old master returns, empty, as a replica of the new one."""

    name, about = "sentinel-kill", "SIGKILL to the master; Sentinels promote a replica"
    brokers = frozenset({"sentinels"})
    span = (6.0, 9.0)
    _old: RedisServer

    def __init__(self, stage: Stage, strike: Strike) -> None:
        super().__init__(stage, strike)
        assert isinstance(stage.broker, SentinelBroker)
        self.broker = stage.broker

    def _strike(self) -> Fault:
        self._old = self.broker.primary
        self.broker.note(self._old)
        self._hit(self._old)
        return self._fault(outage=True, master=True)

    def undo(self) -> None:
        """Wait for the new master, and restart the old one."""
        new = self.broker.wait_failover(self._old)
        self._return(self._old, new)

    def _hit(self, server: RedisServer) -> None:
        server.kill()

    def _return(self, server: RedisServer, new: RedisServer) -> None:
        server.replica_of = new
        server.start()


class SentinelFreeze(SentinelKill):
    """It does not respond, and does not know at its return that it was replaced."""

    name, about = (
        "sentinel-freeze",
        "SIGSTOP to the master until a replica is promoted, then SIGCONT",
    )

    def _hit(self, server: RedisServer) -> None:
        server.freeze()

    def _return(self, server: RedisServer, new: RedisServer) -> None:
        server.thaw()
        server.replica_of = new


class WentBack(FaultKind):
    """Not scheduled: found in the logs of the servers afterwards."""

    name, about = (
        WENT_BACK,
        "a replica was promoted that had less than another had confirmed (in no schedule)",
    )
    brokers = frozenset()


KINDS: tuple[type[FaultKind], ...] = (SentinelKill, SentinelFreeze, WentBack)
