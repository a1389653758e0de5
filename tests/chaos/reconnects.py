"""Workers that lost their connection to a cluster, which the loss of a node does not justify."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from tests.chaos.model import Fault, Limits

_LOST = re.compile(r"^\[(\d+-\d+-\d+ \d+:\d+:\d+),\d+: .*onnection to broker lost", re.MULTILINE)


def reconnects(directory: Path) -> Iterator[tuple[str, float]]:
    """Yield each worker and time (CLOCK_MONOTONIC) of a lost connection, according to the logs.

    Only for ready workers: a starting one waits for the node of its declarations, and retries.
    """
    since = time.time() - time.monotonic()
    for path in sorted(directory.glob("*.log")):
        _, _, log = path.read_text(encoding="utf-8", errors="replace").partition(" ready.\n")
        for said in _LOST.findall(log):
            yield path.stem, time.mktime(time.strptime(said, "%Y-%m-%d %H:%M:%S")) - since


def without_a_cause(
    lost: Iterable[tuple[str, float]], faults: Sequence[Fault], limits: Limits
) -> list[str]:
    """Return descriptions of losses that no fault explains that closed all connections.

    A worker that is stopped, or busy with its only task, notices later.
    """
    cuts = [fault for fault in faults if fault.applied and fault.cuts]
    found = []
    for worker, at in lost:
        stood = sum(f.until - f.at for f in faults if f.applied and f.worker == worker)
        longest = limits.hold + limits.reconnect + stood
        if not any(cut.at - 1.0 <= at <= cut.at + longest for cut in cuts):
            found.append(f"{worker}: lost its connection to the cluster, {at:.2f}")
    return found
