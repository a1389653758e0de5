"""The broker of a run over Sentinels: a master, two replicas, and a record of each promotion.

A publish is confirmed when a replica has it. No confirmed publish is then lost with a master, if a
replica that has it is promoted. Acks are not confirmed: recently acked tasks may run again.
"""

from __future__ import annotations

import re
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import redis

from tests.chaos.broker import Broker
from tests.chaos.model import PROMOTION, WENT_BACK, Fault
from tests.support.sentinels import SentinelGroup, ask
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.support.servers import RedisServer

_EVERY_S = 0.25
# Longest delay between a promotion and the record of its fault.
_NOTED_S = 1.0
_PROMOTED = re.compile(
    r"(\d+ \w+ \d{4} \d+:\d+:\d+)\.(\d+) \S Setting secondary replication ID to (\w+), "
    r"valid up to offset: (\d+)"
)


class Sample(NamedTuple):
    """A master's report about itself at a time (CLOCK_MONOTONIC)."""

    at: float
    port: int
    offset: int
    """The replication offset: how many bytes it has written."""
    confirmed: int
    """How many of these bytes a replica has confirmed."""
    history: str = ""
    """The replication ID."""


class Promotion(NamedTuple):
    """A replica that became the master, at an offset of its own."""

    at: float
    port: int
    offset: int
    history: str = ""
    """The replication ID of its data."""


def sample(at: float, port: int, info: Mapping[str, Any]) -> Sample | None:
    """Return a sample from a master's INFO; None for another server."""
    if info["role"] != "master":
        return None
    replicas = [info[f"slave{number}"] for number in range(info["connected_slaves"])]
    confirmed = max((int(replica["offset"]) for replica in replicas), default=0)
    return Sample(at, port, int(info["master_repl_offset"]), confirmed, str(info["master_replid"]))


def promotions(log: str, port: int) -> list[Promotion]:
    """Return the promotions of a server and its data then, according to its log."""
    since = time.time() - time.monotonic()
    return [
        Promotion(
            time.mktime(time.strptime(day, "%d %b %Y %H:%M:%S")) + float(f"0.{ms}") - since,
            port,
            int(valid) - 1,
            history,
        )
        for day, ms, history, valid in _PROMOTED.findall(log)
    ]


def judge(
    promoted: Sequence[Promotion], samples: Sequence[Sample], faults: Sequence[Fault]
) -> list[Fault]:
    """Return events in the group that are not among *faults*.

    These are promotions without a fault (each fault causes one at most), and promotions that went
    back: the replica had less data than another replica had confirmed, or another history.
    """
    found = []
    meant = [fault for fault in faults if fault.applied and fault.master]
    before = samples[0].port if samples else 0
    last = float("-inf")
    for one in sorted(promoted):
        said = [s for s in samples if s.port == before and last <= s.at < one.at]
        cause = next((f for f in meant if f.at <= one.at <= f.until + _NOTED_S), None)
        if cause is not None:
            meant.remove(cause)
        elif said:
            died = one.at + _NOTED_S  # it may respond until then, as it was only slow
            at = said[-1].at
            found.append(
                Fault(PROMOTION, at, one.at, outage=True, master=True, died=died, note=_name(one))
            )
        confirmed = max((s.confirmed for s in said), default=0)
        apart = bool(said) and one.history != said[-1].history
        if one.offset < confirmed or apart:
            at = max((s.at for s in said if not apart and s.offset <= one.offset), default=0.0)
            note = (
                f"{one.port} was promoted at offset {one.offset:,}; the master {before} had "
                f"written {said[-1].offset:,}, and a replica confirmed {confirmed:,}"
                + (" of another history" if apart else "")
            )
            found.append(Fault(WENT_BACK, at, one.at, master=True, died=one.at, note=note))
        before, last = one.port, one.at
    return found


def _name(one: Promotion) -> str:
    return f"{one.port} at offset {one.offset:,}"


class SentinelBroker(Broker):
    """A master with two replicas, and three Sentinels that fail it over; no proxy."""

    def __init__(self, *, second: bool = False) -> None:
        assert not second, "a Sentinel group stands alone"
        self.second = None
        self._stack = ExitStack()
        self._group = SentinelGroup()
        self._stack.callback(self._group.destroy)
        self._group.start()
        self.samples: list[Sample] = []
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        self._stack.callback(self._watcher.join)
        self._stack.callback(self._ended.set)

    @property
    def primary(self) -> RedisServer:  # type: ignore[override]
        """The present master; during a failover, waits for the new one."""

        def agreed() -> RedisServer | None:
            try:
                return self._group.master()
            except (AssertionError, redis.RedisError):
                return None

        found = wait_until(agreed, timeout_s=40, what="a master that all Sentinels name")
        assert found is not None
        return found

    @property
    def servers(self) -> list[RedisServer]:
        """The master and its replicas."""
        return self._group.servers

    @property
    def options(self) -> dict[str, object]:
        """The transport options that the URL needs."""
        return {**self._group.options, "confirm": "replicated", "confirm_timeout": 2.0}

    def url(self, scheme: str) -> str:
        """Return the URL for clients."""
        return self._group.url(f"{scheme}-sentinel")

    def wait_failover(self, old: RedisServer) -> RedisServer:
        """Wait until another server than *old* is the master."""
        return self._group.wait_failover(old)

    def missing(self) -> str:
        """Return why the group is incomplete: see :meth:`SentinelGroup.missing`."""
        return self._group.missing()

    def by_itself(self, faults: Sequence[Fault]) -> list[Fault]:
        """Return promotions without a fault, and those that went back."""
        promoted = [one for server in self.servers for one in promotions(server.log(), server.port)]
        return judge(promoted, sorted(self.samples), faults)

    def note(self, server: RedisServer) -> None:
        """Record the offsets of a master, if it responds."""
        at = time.monotonic()
        try:
            found = sample(at, server.port, ask(server, "INFO", "replication"))
        except redis.RedisError:
            return
        if found is not None:
            self.samples.append(found)

    def _watch(self) -> None:
        while not self._ended.wait(_EVERY_S):
            for server in self.servers:
                self.note(server)
