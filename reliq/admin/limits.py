"""The limits of queues for operators: in force, declared, and their use now."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..message.queue_arguments import RATE
from ..units import duration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..values.inspection import Consumer, Measure

_PERIODS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000}
_DEFAULT_BURST_MS = 100
_BASE = re.compile(r"[0-9]{1,16}(?:\.[0-9]{1,3})?(?=;|\Z)")
# At an instant: its first token, the leases of one reserve, and those not handed back.
_STARTS = re.compile(r";([0-9]{1,16}),[0-9]+,[0-9]+,([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """The limits of one queue, and their use now."""

    queue: str
    concurrency: int | None
    """The number of messages that consumers may hold at a time; None: no limit."""
    rate: str | None
    """The number of messages that may start in a time, such as ``100/m``; None: no limit."""
    declared_concurrency: int | None
    """The declared limit. It differs from ``concurrency`` if an operator has set another one."""
    declared_rate: str | None
    """The declared rate, as ``declared_concurrency``."""
    unacked: int
    """Messages in hand. An expired lease counts until a consumer has ended it."""
    ready: int
    startable: int
    """Ready and due messages that may start now; 0 while the queue is paused."""
    next_start_ms: int | None
    """If the rate is reached: when the next message may start, by the broker's clock."""
    reached: str
    """The reached limit, such as ``200 of 200 in hand``; "" if a message may start."""

    @property
    def limited(self) -> bool:
        """Whether a limit is in force or declared."""
        limits = (self.concurrency, self.rate, self.declared_concurrency, self.declared_rate)
        return any(limit is not None for limit in limits)


def limits_of(measures: Iterable[Measure]) -> list[QueueLimits]:
    """Return the limits of the queues in *measures*, without divided queues, which have none."""
    return [_limits(measure) for measure in measures if measure.status.partitions == 1]


def unenforced(queues: Iterable[str], consumers: Iterable[Consumer]) -> dict[str, list[Consumer]]:
    """Return for each of *queues* its consumers that do not enforce limits, if there are any."""
    older: dict[str, list[Consumer]] = {}
    for consumer in consumers:
        if consumer.enforces != "limits":
            for queue in set(queues).intersection(consumer.queues):
                older.setdefault(queue, []).append(consumer)
    return older


def _limits(measure: Measure) -> QueueLimits:
    status, now_ms, rate = measure.status, measure.now_ms, measure.rate
    stored = re.fullmatch("[0-9]{1,16}", measure.concurrency)
    most = int(stored[0]) if stored else None
    startable = 0 if status.paused else status.ready + measure.due
    reached, next_start_ms = [], None
    if most is not None:
        startable = min(startable, max(most - status.unacked, 0))
        if status.unacked >= most:
            reached.append(f"{status.unacked} of {most} in hand")
    starts, opens_ms = _starts(rate, measure.rate_state, now_ms)
    if starts is not None:
        startable = min(startable, starts)
        if not starts:
            next_start_ms = opens_ms
            wait = duration((opens_ms - now_ms) / 1000)
            reached.append(f"the next start within {rate} is possible in {wait}")
    declared: dict[str, Any] = status.declared
    declared_most, declared_rate = (declared.get(name) for name in ("x-concurrency", "x-rate"))
    if not isinstance(declared_most, int) or declared_most < 1:
        declared_most = None
    if not isinstance(declared_rate, str) or declared_rate == "none":
        declared_rate = None
    return QueueLimits(
        queue=status.name,
        concurrency=most,
        rate=rate or None,
        declared_concurrency=declared_most,
        declared_rate=declared_rate,
        unacked=status.unacked,
        ready=status.ready,
        startable=startable,
        next_start_ms=next_start_ms,
        reached="; ".join(reached),
    )


def _starts(rate: str, state: str, now_ms: int) -> tuple[int | None, int]:
    """Return how many messages may start now, and when the next one may, in ms.

    The number is None without a rate. The rule is that of ``reserve.lua`` (GCRA).
    """
    parts, base = RATE.fullmatch(rate), _BASE.match(state)
    if parts is None:
        return None, now_ms
    number, period_ms = int(parts[1]), _PERIODS_MS[parts[2]]
    every_ms = period_ms / number
    burst = int(parts[3] or max(number * _DEFAULT_BURST_MS // period_ms, 1))
    starts = [(int(at), int(left)) for at, left in _STARTS.findall(state)]
    # The times of a state from the future move back with the clock.
    ahead_ms = max(starts[-1][0] - now_ms, 0) if starts else 0
    spent_ms = (float(base[0]) if base else 0.0) - ahead_ms
    for at_ms, left in starts:
        if left:
            spent_ms = max(spent_ms, at_ms - ahead_ms) + left * every_ms
    opens_ms = spent_ms - every_ms * (burst - 1)
    if opens_ms > now_ms:
        return 0, int(-(-opens_ms // 1))
    return min(int((now_ms - opens_ms) // every_ms) + 1, burst), now_ms
