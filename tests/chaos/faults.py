"""Every fault of the nemesis: its name, its effect, and how it is undone.

A new fault is a class here and a line in FAULTS. The faults of a cluster are in
`cluster_faults.py`, those of a Sentinel group in `sentinel_faults.py`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING, ClassVar

from reliq import ReliqError
from reliq.admin import Inspector
from tests.chaos import cluster_faults, login_broker, sentinel_faults
from tests.chaos.embedded_broker import EmbeddedKill
from tests.chaos.kind import FaultKind
from tests.chaos.model import Fault
from tests.chaos.settings import LIMITED, LIMITS
from tests.support.processes import Process

if TYPE_CHECKING:
    from tests.chaos.crew import Slot
    from tests.chaos.kind import Stage
    from tests.chaos.model import Strike
    from tests.chaos.settings import Brokers


_PROXIED: frozenset[Brokers] = frozenset({"one", "two"})


class _OfAWorker(FaultKind):
    """A fault of one worker, selected among the running ones."""

    pools: ClassVar[tuple[str, ...]] = ()

    def _target(self) -> Slot | None:
        able = [
            slot
            for slot in self.stage.crew.slots
            if slot.target and (not self.pools or slot.pool in self.pools)
        ]
        return able[int(self.strike.chance * len(able))] if able else None


class WorkerKill(_OfAWorker):
    """The whole process group at once, including children."""

    name, about = "worker-kill", "SIGKILL to a worker's process group"

    def apply(self) -> Fault:
        """Kill it."""
        slot = self._target()
        if slot is None:
            return self._nothing("no worker is up")
        assert slot.worker is not None
        slot.killed = True
        slot.worker.kill_group()
        return self._fault(worker=slot.name)


class MainKill(_OfAWorker):
    """The main process alone: its children must detect its end themselves."""

    name, about = "main-kill", "SIGKILL to a prefork worker's main process only"
    pools = ("prefork",)

    def apply(self) -> Fault:
        """Kill it."""
        slot = self._target()
        if slot is None:
            return self._nothing("no such worker is up")
        assert slot.worker is not None
        slot.killed = True
        slot.worker.kill()
        return self._fault(worker=slot.name)


class ChildKill(_OfAWorker):
    """A child of the pool; the worker handles its task."""

    name, about = "child-kill", "SIGKILL to one child of a prefork worker"
    pools = ("prefork",)

    def apply(self) -> Fault:
        """Kill it."""
        slot = self._target()
        children = slot.children() if slot is not None else []
        if slot is None or not children:
            return self._nothing("no child is up")
        pid = children[int(self.strike.chance * 977) % len(children)]
        os.kill(pid, signal.SIGKILL)
        return self._fault(worker=slot.name, pid=pid)


class WorkerFreeze(_OfAWorker):
    """Longer than its lease: when it continues, others have its messages."""

    name, about = "worker-freeze", "SIGSTOP to a worker for longer than its lease, then SIGCONT"
    span = (5.0, 8.0)

    def __init__(self, stage: Stage, strike: Strike) -> None:
        super().__init__(stage, strike)
        self._slot: Slot | None = None

    def apply(self) -> Fault:
        """Freeze it."""
        self._slot = slot = self._target()
        if slot is None:
            return self._nothing("no worker is up")
        assert slot.worker is not None
        slot.frozen = True
        slot.worker.freeze()
        return self._fault(worker=slot.name)

    def undo(self) -> None:
        """Thaw it."""
        if self._slot is not None and self._slot.worker is not None:
            self._slot.worker.thaw()
            self._slot.frozen = False


class Starve(WorkerFreeze):
    """All cores are busy, and a worker is stopped meanwhile: it may lose its leases, or not.

    The busy loops end with the run, however it ends: see :class:`Process`.
    """

    name, about = "starve", "busy loops on all cores, and SIGSTOP to a worker meanwhile"
    span = (0.5, 5.0)
    when_asked = True

    def __init__(self, stage: Stage, strike: Strike) -> None:
        super().__init__(stage, strike)
        self.loops: list[Process] = []

    def apply(self) -> Fault:
        """Start the busy loops, and freeze a worker."""
        log = self.stage.crew.settings.directory / "starve.log"
        command = [sys.executable, "-S", "-c", "while True: pass"]
        self.loops = [Process(command, log_path=log) for _ in range(os.cpu_count() or 1)]
        fault = super().apply()
        return fault if fault.applied else self._fault(note="no worker is up: busy loops alone")

    def undo(self) -> None:
        """Thaw the worker, and end the loops."""
        super().undo()
        for loop in self.loops:
            loop.kill_group()


class WorkerTerm(_OfAWorker):
    """A rolling restart, which must not repeat any task."""

    name, about = "worker-term", "SIGTERM to a worker, which is replaced when it has ended"

    def apply(self) -> Fault:
        """Request its end."""
        slot = self._target()
        if slot is None:
            return self._nothing("no worker is up")
        assert slot.worker is not None
        slot.asked = time.monotonic()
        slot.worker.terminate()
        return self._fault(note=slot.name)


class LimitChange(FaultKind):
    """It applies at once, stops nothing that runs, and opens what it has closed."""

    name, about = "limit-change", "`reliq queue set` changes x-concurrency of the limited queue"
    brokers = frozenset({"one", "sentinels", "cluster", "embedded"})
    of_broker = True

    def apply(self) -> Fault:
        """Set another limit."""
        limit = LIMITS[int(self.strike.chance * len(LIMITS))]
        at = time.monotonic()
        try:
            with Inspector(next(iter(self.stage.broker.views())).url) as inspector:
                inspector.configure(LIMITED, {"x-concurrency": limit})
        except ReliqError as exc:
            # It may have been applied.
            return Fault(self.name, at, time.monotonic(), limit=limit, note=f"{limit}: {exc}")
        return Fault(self.name, at, time.monotonic(), limit=limit, note=str(limit))


class BrokerKill(FaultKind):
    """Its confirmed data is on its disk."""

    name, about = "broker-kill", "SIGKILL to the Redis in charge, and a restart from its log"
    brokers = _PROXIED
    of_broker = True
    span = (0.1, 1.2)

    def apply(self) -> Fault:
        """Kill it."""
        self.stage.broker.primary.kill()
        return self._fault(outage=True)

    def undo(self) -> None:
        """Start it again."""
        self.stage.broker.primary.start()


class Demotion(FaultKind):
    """It responds, and refuses every write."""

    name, about = "demotion", "REPLICAOF: the Redis in charge is a replica for a while (READONLY)"
    brokers = _PROXIED
    of_broker = True
    span = (0.2, 1.5)

    def apply(self) -> Fault:
        """Demote it."""
        self.stage.broker.demote()
        return self._fault(outage=True)

    def undo(self) -> None:
        """Promote it."""
        self.stage.broker.promote()


class SwitchOver(FaultKind):
    """The synced replica takes over; connections to the old server get READONLY."""

    name, about = "switch-over", "FAILOVER to the replica; the old server stays as its replica"
    brokers = _PROXIED
    of_broker = True

    def apply(self) -> Fault:
        """Hand over."""
        at = time.monotonic()
        if not self.stage.broker.switch_over():
            return self._nothing("the replica was not in step")
        now = time.monotonic()
        return Fault(self.name, at, now, outage=True, lifted=now)


class UrlFailover(BrokerKill):
    """Unreachable until all clients have switched to the second broker; then they fail back."""

    name, about = "url-failover", "SIGKILL to the first of two brokers, back after some seconds"
    brokers = frozenset({"two"})
    second = True
    span = (6.0, 10.0)


class ScriptFlush(FaultKind):
    """As after a failover: the script cache is empty."""

    name, about = "script-flush", "SCRIPT FLUSH"
    of_broker = True

    def apply(self) -> Fault:
        """Flush."""
        for client in self.stage.broker.clients():
            with client:
                client.script_flush()
        return self._fault()


class ClientKill(FaultKind):
    """The server closes all connections."""

    name, about = "client-kill", "CLIENT KILL of every connection"
    of_broker = True

    def apply(self) -> Fault:
        """Kill them."""
        number = 0
        for client in self.stage.broker.clients():
            with client:
                number += client.client_kill_filter(_type="normal", skipme=True)
        return self._fault(cuts=True, note=f"{number} connections")


class NetCut(FaultKind):
    """The network closes all connections."""

    name, about = "net-cut", "every connection is closed by the proxy"
    brokers = _PROXIED

    def apply(self) -> Fault:
        """Cut."""
        return self._fault(cuts=True, note=f"{self.stage.broker.proxy.cut()} connections")


class NetDelay(FaultKind):
    """The network is slow, but not interrupted."""

    name, about = "net-delay", "each chunk is delayed by 50 to 400 ms for some seconds"
    brokers = _PROXIED
    span = (1.0, 4.0)

    def apply(self) -> Fault:
        """Slow down."""
        seconds = 0.05 + 0.35 * self.strike.chance
        self.stage.broker.proxy.delay(seconds)
        return self._fault(slows=seconds, note=f"{seconds * 1000:.0f} ms")

    def undo(self) -> None:
        """Speed up."""
        self.stage.broker.proxy.delay(0.0)


class NetHalfOpen(FaultKind):
    """Packets are lost silently: clients must detect it themselves."""

    name, about = "net-half-open", "data on open connections vanishes; new connections work"
    brokers = _PROXIED

    def apply(self) -> Fault:
        """Discard the data. It is over when the last client must have noticed."""
        number = self.stage.broker.proxy.black_hole()
        now = time.monotonic()
        options = self.stage.options
        noticed = now + options["socket_timeout"] + options.get("poll_interval", 0.0)
        return Fault(self.name, now, noticed, outage=True, note=f"{number} connections")


class NetReplyLost(FaultKind):
    """The request is executed, and its reply is lost: the worst case for a publish."""

    name, about = "net-reply-lost", "each connection loses its next reply and is cut"
    brokers = _PROXIED
    span = (1.0, 1.0)

    def apply(self) -> Fault:
        """Discard the next replies."""
        self.stage.broker.proxy.lose_replies()
        return self._fault(cuts=True)

    def undo(self) -> None:
        """Forward replies again."""
        self.stage.broker.proxy.lose_replies(False)


FAULTS: dict[str, type[FaultKind]] = {
    kind.name: kind
    for kind in (
        WorkerKill,
        MainKill,
        ChildKill,
        WorkerFreeze,
        WorkerTerm,
        LimitChange,
        BrokerKill,
        Demotion,
        SwitchOver,
        UrlFailover,
        ScriptFlush,
        ClientKill,
        NetCut,
        NetDelay,
        NetHalfOpen,
        NetReplyLost,
        *sentinel_faults.KINDS,
        EmbeddedKill,
        *login_broker.KINDS,
        *cluster_faults.KINDS,
        Starve,
    )
}


def kinds(brokers: Brokers, *, every: bool = False) -> list[str]:
    """Return the kinds of a run; *every*: including kinds that must be requested."""
    return [
        name
        for name, kind in FAULTS.items()
        if brokers in kind.brokers and (every or not kind.when_asked)
    ]
