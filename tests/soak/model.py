"""The observations of a soak as plain values: samples, probes of the prefetch limit, visits."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Process:
    """The resource use of one process and its children so far."""

    rss_kb: float
    cpu_s: float


@dataclass(frozen=True)
class Sample:
    """One sample of all measured values. Times are seconds since the start of the run."""

    at: float
    finished: int
    """Number of tasks finished so far."""
    processes: dict[str, Process]
    """By name: the workers, `producer`, `visitor` and `server`."""
    server_kb: float
    """`used_memory` of the server."""
    commands: int
    """Number of commands that the server has processed so far."""
    keys: dict[str, int]
    """By kind: `reliq:{}:messages` and so on."""


@dataclass(frozen=True)
class Probe:
    """The most messages that each worker held while more than enough were ready."""

    at: float
    held: dict[str, int]


@dataclass(frozen=True)
class Visit:
    """One use of something temporary, such as a queue or a reply."""

    at: float
    until: float
    what: str
    error: str = ""
    prefetch: dict[str, int] = field(default_factory=dict)
    """Worker -> the prefetch count that it reported, if it was queried."""


@dataclass
class Seen:
    """All observations of a run, the input of the verdict."""

    limits: dict[str, int]
    """Worker -> the maximum of messages that it may hold."""
    samples: list[Sample] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)
    visits: list[Visit] = field(default_factory=list)
    reconnects: list[float] = field(default_factory=list)
    """The times at which all connections were killed."""
    tasks: int = 0
    """Number of confirmed tasks."""
    findings: list[str] = field(default_factory=list)
    """Findings of the ledger, the audit and the keys."""
