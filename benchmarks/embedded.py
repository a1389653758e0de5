"""The embedded broker compared with Kombu's serverless transports and with Redis."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks import consume, latency, publish
from benchmarks.model import Figure, Row
from benchmarks.peers import EMBEDDED, FILESYSTEM, KOMBU, SQLA

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.setting import Setting

BODY_SIZE = 300
PEERS = (EMBEDDED, SQLA, FILESYSTEM, KOMBU)


def _figure(key: str, title: str, measured: Callable[[Setting], Mapping[str, float]]) -> Figure:
    return Figure(key, (Row(key, title, "messages/s"),), measured, PEERS, 2, warm_up=False)


def measure_idle(setting: Setting) -> Mapping[str, float]:
    """Return the median latency in ms while the consumer waits."""
    values = latency.measure_idle(setting)
    return {f"embedded-{key}": value for key, value in values.items()}


_PUBLISH, _CONSUME = "embedded-publish", "embedded-consume"
FIGURES = (
    _figure(
        _PUBLISH,
        "embedded broker, publish, anonymous exchange",
        partial(publish.measure, key=_PUBLISH, exchange="", size=BODY_SIZE),
    ),
    *(
        _figure(
            f"{_CONSUME}-{prefetch}",
            f"embedded broker, consume and ack, prefetch {prefetch}",
            partial(
                consume.measure,
                key=f"{_CONSUME}-{prefetch}",
                prefetch=prefetch,
                share=0.5,
                size=BODY_SIZE,
            ),
        )
        for prefetch in (64, 4)
    ),
    Figure(
        "embedded-latency-idle",
        tuple(
            Row(
                f"embedded-latency-idle-{name}",
                f"embedded broker, idle latency, {name}",
                "ms",
                digits=2,
            )
            for name in ("p50", "p99")
        ),
        measure_idle,
        PEERS,
        1,
        warm_up=False,
    ),
)
