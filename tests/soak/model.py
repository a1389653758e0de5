"""What a soak saw: samples, probes of the prefetch limit, visits. Plain values."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Process:
    """What one process, and its children, used so far."""

    rss_kb: float
    cpu_s: float


@dataclass(frozen=True)
class Sample:
    """One look at everything. Times are seconds since the run began."""

    at: float
    finished: int
    """Tasks done so far."""
    processes: dict[str, Process]
    """Workers by their names, `producer`, `visitor`, `server`."""
    server_kb: float
    """`used_memory` of the server."""
    commands: int
    """That clients have sent so far."""
    keys: dict[str, int]
    """By kind: `reliq:{}:messages` and so on."""


@dataclass(frozen=True)
class Probe:
    """The most that each worker held while there was more than enough for all."""

    at: float
    held: dict[str, int]


@dataclass(frozen=True)
class Visit:
    """Something temporary that came and went."""

    at: float
    until: float
    what: str
    error: str = ""
    prefetch: dict[str, int] = field(default_factory=dict)
    """Worker -> the prefetch count that it names, where it was asked."""


@dataclass
class Seen:
    """All of a run that the verdict is made of."""

    limits: dict[str, int]
    """Worker -> how many messages it may hold."""
    samples: list[Sample] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)
    visits: list[Visit] = field(default_factory=list)
    reconnects: list[float] = field(default_factory=list)
    """When all connections were killed."""
    tasks: int = 0
    """Confirmed."""
    findings: list[str] = field(default_factory=list)
    """What the ledger, the audit and the keys say."""
