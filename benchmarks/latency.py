"""Latency from publish to callback, when idle and at half of the peer's highest rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import pacing
from benchmarks.model import Figure, Row
from benchmarks.peers import CLASSIC, KOMBU, QUORUM, RELIQ
from benchmarks.publish import QUEUE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.setting import Setting

IDLE, HALF, LOAD = "latency-idle", "latency-half", "latency-half-load"
IDLE_RATE = 100.0
IDLE_SECONDS = 10.0
HALF_SECONDS = 5.0
TRIED = 4_000
PEERS = (RELIQ, KOMBU, CLASSIC, QUORUM)


def measure_idle(setting: Setting) -> Mapping[str, float]:
    """Return quantiles in ms at a rate at which every message finds a waiting consumer."""
    count = setting.size(round(IDLE_RATE * IDLE_SECONDS), least=40)
    return pacing.quantiles(pacing.exchange(setting.broker, QUEUE, IDLE_RATE, count), IDLE)


def measure_half(setting: Setting) -> Mapping[str, float]:
    """Return quantiles in ms at half of the rate that the peer has just reached."""
    tried = setting.paced(TRIED, least=100)
    rate = pacing.throughput(pacing.exchange(setting.broker, QUEUE, 0, tried)) / 2
    count = setting.size(round(rate * HALF_SECONDS), least=40)
    taken = pacing.exchange(setting.broker, QUEUE, rate, count)
    return {**pacing.quantiles(taken, HALF), LOAD: rate}


def _rows(key: str, title: str) -> tuple[Row, ...]:
    return tuple(
        Row(f"{key}-{name}", f"latency, {title}, {text}", "ms", digits=2)
        for name, text in (("p50", "p50"), ("p99", "p99"), ("p999", "p99.9"))
    )


FIGURES = (
    Figure(IDLE, _rows(IDLE, "idle"), measure_idle, PEERS, 3, warm_up=False, core=True),
    Figure(
        HALF,
        (*_rows(HALF, "at half load"), Row(LOAD, "rate at half load", "messages/s")),
        measure_half,
        PEERS,
        2,
        warm_up=False,
    ),
)
