"""eventlet: whether this process runs green threads of its, which not every engine can do with."""

from __future__ import annotations

import sys


def has_patched() -> bool:
    """Whether eventlet has put its green threads in the place of this process's own."""
    patcher = sys.modules.get("eventlet.patcher")
    return patcher is not None and bool(patcher.is_monkey_patched("thread"))
