"""The faults of a cluster: slots move, and nodes die, freeze and are replaced.

Each fault ends when the cluster is complete again. The next one then finds the replicas that a
confirmation has relied on.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, ClassVar

from tests.chaos.cluster_broker import (
    ANCHOR,
    DISAGREE,
    HANDED_OVER,
    KEYS,
    ClusterBroker,
    redis_cli,
    slot,
)
from tests.chaos.kind import FaultKind, OfAGroup
from tests.chaos.model import PROMOTION
from tests.chaos.settings import DIVIDED, MOST_PARTITIONS
from tests.support.cluster import Migration
from tests.support.commands import RELIQ, environment
from tests.support.processes import Process
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.chaos.kind import Stage
    from tests.chaos.model import Fault, Strike
    from tests.chaos.settings import Brokers
    from tests.support.cluster import ClusterNode

_MOST_SLOTS = 1500
_FEWEST_SLOTS = 400
_DISAGREES_S = 20.0
"""Seconds after which nodes that disagree will not agree by themselves."""
_HANDOVER_S = 12.0
"""Seconds after which a requested failover has been abandoned."""


class OfTheCluster(OfAGroup):
    """A fault of the nodes that serve the run; only one at a time."""

    brokers: ClassVar[frozenset[Brokers]] = frozenset({"cluster"})
    dies = False
    """Whether a master dies or freezes. If it is replaced, the fault counts from then on."""
    is_replaced = False
    """Whether a replica must replace it, which has all confirmed data."""

    def __init__(self, stage: Stage, strike: Strike) -> None:
        super().__init__(stage, strike)
        assert isinstance(stage.broker, ClusterBroker)
        self.broker = stage.broker
        self.chance = random.Random(strike.chance)
        self._mended = False
        self._masters: dict[ClusterNode, frozenset[str]] = {}
        """The masters before the fault, and the queues at each."""

    def apply(self) -> Fault:
        """Apply the fault if the cluster is complete."""
        if missing := self.broker.missing():
            return self._nothing(missing)
        broker = self.broker
        self._masters = {node: broker.places_at(node) for node in broker.masters()}
        return self._strike()

    def _place(self) -> tuple[str, ClusterNode]:
        """Return a name in KEYS and the owner of its slot."""
        places = {name: self.broker.owner(name) for name in sorted(KEYS)}
        assert None not in places.values(), f"nobody has the slot of one of {places}"
        fit = [name for name, node in places.items() if node is not None and self._fits(node)]
        self.place = name = self.chance.choice(fit or sorted(KEYS))
        node = places[name]
        assert node is not None
        return name, node

    def _other(self, node: ClusterNode) -> ClusterNode:
        others = [one for one in self.broker.masters() if one is not node]
        return self.chance.choice([one for one in others if self._fits(one)] or others)

    def _fits(self, node: ClusterNode) -> bool:
        """Whether a node can be hit: its designated successor may stand for election."""
        return not (self.is_replaced and self.broker.was_elected_lately(node))

    def left(self, fault: Fault) -> str:
        """Return the reason why the cluster is incomplete; record whether a master was replaced."""
        missing = super().left(fault)
        if missing.startswith(DISAGREE):
            self._mend_once(fault)
        if missing or not fault.applied:
            return missing
        fault.master = self.dies and not self._masters.keys() <= set(self.broker.masters())
        return ""

    def _mend_once(self, fault: Fault) -> None:
        """Mend slots as an operator does if the nodes disagree for long; note which."""
        if not self._mended and time.monotonic() > fault.until + _DISAGREES_S:
            self._mended = True
            fault.note += f"; given back to their owners: {self.broker.adopt()}"


def half_moved(
    name: str, source: ClusterNode, target: ClusterNode, chance: random.Random
) -> tuple[Migration, int]:
    """Move half of the keys of a slot in KEYS; return the migration and the number of keys."""
    migration = Migration(source, target, KEYS[name])
    migration.open()
    keys = migration.keys(source)
    migration.move(chance.sample(keys, len(keys) // 2))
    return migration, len(keys)


class SlotMove(OfTheCluster):
    """For some time, each of two nodes has half of a queue."""

    name, about = "slot-move", "the slot of a loaded queue or of {%} moves, its keys in two parts"
    second = False
    span = (0.05, 0.8)
    migration: Migration

    def _strike(self) -> Fault:
        name, source = self._place()
        target = self._other(source)
        self.migration, count = half_moved(name, source, target, self.chance)
        queues = frozenset({name})
        return self._fault(outage=True, queues=queues, note=f"{name}, half of {count} keys")

    def undo(self) -> None:
        """Move the rest."""
        self.migration.end()


class Reshard(OfTheCluster):
    """Slots move one by one, most of them empty, as when an operator reshards."""

    name, about = "reshard", "redis-cli --cluster reshard of some hundred slots to another master"
    second = False
    span = (0.1, 0.1)
    process: Process

    def _strike(self) -> Fault:
        command = redis_cli()
        if command is None:
            return self._nothing("there is no redis-cli")
        name, source = self._place()
        claim = next(claim for claim in self.broker.claims() if claim.node is source)
        before = sum(
            min(last, slot(name)) - first + 1 for first, last in claim.ranges if first <= slot(name)
        )
        count = min(max(before, _FEWEST_SLOTS), _MOST_SLOTS, self._half(claim.ranges))
        target = self._other(source)
        asked = ["--cluster-from", source.id, "--cluster-to", target.id, "--cluster-yes"]
        asked += ["--cluster-slots", str(count), "--cluster-timeout", "5000"]
        self.process = Process(
            [command, "--cluster", "reshard", f"127.0.0.1:{source.port}", *asked],
            log_path=source.directory / "reshard.log",
        )
        return self._fault(note=f"{count} slots of the node of {name}")

    @staticmethod
    def _half(ranges: tuple[tuple[int, int], ...]) -> int:
        return sum(last - first + 1 for first, last in ranges) // 2

    def ready(self) -> bool:
        """Whether all slots have moved."""
        return not self.process.running

    def undo(self) -> None:
        """Wait for the rest; if redis-cli has given up, fix the cluster as an operator does.

        It gives up if a master was replaced, which can happen without a fault on a slow machine.
        """
        if self.process.wait(60) != 0:
            said = self.process.tail()
            wait_until(self._fixed, timeout_s=60, what=lambda: f"redis-cli: {said}")

    def _fixed(self) -> bool:
        port = self.broker.masters()[0].port
        log = self.broker.masters()[0].directory / "fix.log"
        command = [str(redis_cli()), "--cluster", "fix", f"127.0.0.1:{port}", "--cluster-yes"]
        return Process(command, log_path=log).wait(60) == 0


class NodeKill(OfTheCluster):
    """A replica is promoted; the old master returns as a replica of the new one."""

    name, about = "node-kill", "SIGKILL to a master until a replica is promoted, then a restart"
    dies = True
    is_replaced = True
    span = (5.0, 8.0)
    node: ClusterNode

    def _strike(self) -> Fault:
        _, self.node = self._place()
        if not self._fits(self.node):
            return self._nothing("all were elected a moment ago")
        queues = self.broker.places_at(self.node)
        self.broker.away.add(self.node)
        self._hit(self.node)
        return self._fault(
            outage=True, master=True, queues=queues, note=f"{self.node.port}: {_list(queues)}"
        )

    def watch(self, fault: Fault) -> None:
        """Record when its queues are served again."""
        if not fault.served and self._due() and self._replaced(fault):
            fault.served = time.monotonic()

    def _replaced(self, fault: Fault) -> bool:
        return all(self.broker.owner(name) is not None for name in fault.queues)

    def ready(self) -> bool:
        """Whether it has been replaced."""
        return all(self.broker.owner(name) is not None for name in KEYS)

    def undo(self) -> None:
        """Restart it."""
        self._return(self.node)
        self.broker.away.discard(self.node)

    def _hit(self, node: ClusterNode) -> None:
        node.kill()

    def _return(self, node: ClusterNode) -> None:
        node.start()


class NodeFreeze(NodeKill):
    """It does not respond, and does not know at its return that it was replaced."""

    name, about = "node-freeze", "SIGSTOP to a master until a replica is promoted, then SIGCONT"

    def _hit(self, node: ClusterNode) -> None:
        node.freeze()

    def _return(self, node: ClusterNode) -> None:
        node.thaw()


class NodeRestart(OfTheCluster):
    """It returns with all confirmed data before it is replaced.

    A restarted master serves no client for some two more seconds.
    """

    name, about = "node-restart", "SIGKILL to a master, and a restart before it is replaced"
    second = False
    dies = True
    span = (0.1, 0.8)
    node: ClusterNode

    def _strike(self) -> Fault:
        _, node = self._place()
        return self._kill(node, self.broker.places_at(node))

    def _kill(self, node: ClusterNode, queues: frozenset[str]) -> Fault:
        self.node = node
        self.broker.away.add(node)
        node.kill()
        return self._fault(outage=True, queues=queues, note=f"{node.port}: {_list(queues)}")

    def ready(self) -> bool:
        """Start it; return whether it serves clients again."""
        if self.node in self.broker.away:
            self.node.start()
            self.broker.away.discard(self.node)
        return self.broker.serves(self.node)


class NodeFailover(OfTheCluster):
    """The master waits until the replica has all its data: nothing is lost."""

    name, about = HANDED_OVER, "CLUSTER FAILOVER of a replica"
    span = (0.1, 0.1)
    replica: ClusterNode

    def _strike(self) -> Fault:
        _, node = self._place()
        queues = self.broker.places_at(node)
        self.replica = self.chance.choice(self.broker.replicas_of(node))
        self._gives_up_at = time.monotonic() + _HANDOVER_S
        self.broker.ask(self.replica, "CLUSTER", "FAILOVER")
        return self._fault(outage=True, queues=queues, note=f"{node.port}: {_list(queues)}")

    def ready(self) -> bool:
        """Whether the replica has taken over, or never will."""
        return self.broker.owner(self.place) is self.replica or time.monotonic() > self._gives_up_at


class SourceRestart(NodeRestart):
    """The slot is unserved, and then half of a queue. The source knows the move in progress."""

    name, about = "source-restart", "SIGKILL to the source of a moving slot, and a restart"
    migration: Migration

    def _strike(self) -> Fault:
        name, source = self._place()
        self.migration, _ = half_moved(name, source, self._other(source), self.chance)
        # A key is handed over without the replicas. A key moved a moment ago is lost with its new
        # master, even if it was confirmed before. No client can prevent that.
        if not all(self.broker.wait_replicated(node) for node in self._ends):
            self.migration.end()
            return self._nothing("the replicas were not in step")
        victim = self._victim()
        return self._kill(victim, self.broker.places_at(victim) | {name})

    @property
    def _ends(self) -> tuple[ClusterNode, ClusterNode]:
        return self.migration.source, self.migration.target

    def _victim(self) -> ClusterNode:
        return self.migration.source

    def undo(self) -> None:
        """Move the rest."""
        assert self.broker.owner(self.place) is self.migration.source, "the source was replaced"
        self.migration.end()


class TargetRestart(SourceRestart):
    """The source refuses to serve the part that has moved."""

    name, about = "target-restart", "SIGKILL to the target of a moving slot, and a restart"

    def _victim(self) -> ClusterNode:
        return self.migration.target

    def undo(self) -> None:
        """Move the rest; start again if a replica has replaced the target."""
        heir = self._heir()
        if heir is not None:
            self.migration = Migration(self.migration.source, heir, KEYS[self.place])
            self.migration.open()
        self.migration.end()

    def _heir(self) -> ClusterNode | None:
        masters = self.broker.masters()
        return next((node for node in masters if node not in self._masters), None)


class TargetKill(TargetRestart):
    """Its replica takes over without knowing the move, which must be announced to it again."""

    name, about = "target-kill", "SIGKILL to the target of a moving slot; SETSLOT at its replica"
    is_replaced = True
    span = (5.0, 8.0)

    def _strike(self) -> Fault:
        fit = [node for node in self.broker.masters() if self._fits(node)]
        if len(fit) < 2:
            return self._nothing("too many were elected a moment ago")
        return super()._strike()

    def ready(self) -> bool:
        """Whether it was replaced and has returned: as a replica, it forgets the slot."""
        if self.node in self.broker.away and self._heir() is None:
            return False
        return super().ready() and self._heir() is not None


class AnchorFlap(OfTheCluster):
    """Hits the node of the register: no consumer may be taken for dead because of it."""

    name, about = "anchor-flap", "SIGSTOP and SIGCONT, in turn, to the node of {%}"
    second = False
    span = (4.0, 8.0)

    def _strike(self) -> Fault:
        node = self.broker.owner(ANCHOR)
        assert node is not None
        self.node = node
        queues = self.broker.places_at(node)
        self._frozen = False
        self._turn(0.0)
        return self._fault(outage=True, queues=queues, note=f"{node.port}: {_list(queues)}")

    def _turn(self, now: float) -> None:
        self._frozen = not self._frozen
        if self._frozen:
            self.broker.away.add(self.node)
            self.node.freeze()
        else:
            self.node.thaw()
            self.broker.away.discard(self.node)
        # Shorter than the time until it is replaced.
        self._next_turn = (now or time.monotonic()) + self.chance.uniform(0.2, 1.0)

    def watch(self, fault: Fault) -> None:
        """Freeze or thaw it when due."""
        now = time.monotonic()
        if now >= self._next_turn:
            self._turn(now)

    def undo(self) -> None:
        """Thaw it."""
        if self._frozen:
            self._turn(0.0)


class Repartition(OfTheCluster):
    """Partitions come and go under load: all are consumed, and only empty ones are removed."""

    name, about = "repartition", "`reliq queue set` of another number of partitions"
    second = False
    span = (0.1, 0.1)
    process: Process

    def _strike(self) -> Fault:
        count = self.chance.randint(1, MOST_PARTITIONS)
        self.process = Process(
            [*RELIQ, "queue", "set", DIVIDED, "--partitions", str(count)],
            log_path=self.broker.masters()[0].directory / "repartition.log",
            env=environment(self.broker.url("reliq")),
        )
        return self._fault(note=f"{DIVIDED}: {count}")

    def ready(self) -> bool:
        """Whether all consumers use the new partitions."""
        return not self.process.running

    def undo(self) -> None:
        """Check the result: done, or refused because a worker that also changed it was killed."""
        said = "" if self.process.wait(60) == 0 else self.process.tail()
        assert not said or "changed by another process" in said, said


class Promotion(OfTheCluster):
    """Not scheduled: found in the logs of the nodes afterwards."""

    name, about = (
        PROMOTION,
        "a master was slow, and a replica was elected (by itself; in no schedule)",
    )
    brokers = frozenset()


def _list(queues: frozenset[str]) -> str:
    return ", ".join(sorted(queues)) or "nothing"


KINDS: tuple[type[FaultKind], ...] = (
    SlotMove,
    Reshard,
    NodeKill,
    NodeRestart,
    NodeFreeze,
    NodeFailover,
    SourceRestart,
    TargetRestart,
    TargetKill,
    AnchorFlap,
    Repartition,
    Promotion,
)
