"""Waits until one of a few descriptors is readable, also where the process has no poll."""

from __future__ import annotations

import math
import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def readable(descriptors: Sequence[int], timeout_s: float) -> list[int]:
    """Return those of *descriptors* that can be read, closed ones too; wait *timeout_s* for one.

    Rounded up to whole ms: a wait that ended just before its time would only begin again.
    """
    # Looked up late: eventlet takes it away, because it would stop all green threads, and
    # its own select takes any descriptor.
    poll = getattr(select, "poll", None)
    if poll is None:
        return select.select(descriptors, (), (), max(timeout_s, 0.0))[0]
    poller = poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poller.poll(max(math.ceil(timeout_s * 1000), 0))]
