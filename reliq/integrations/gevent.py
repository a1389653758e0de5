"""A lost broker and Celery's gevent pool.

gevent looks at every object there is before it patches `time.sleep`; to look at one of
Celery's imports Kombu, which so keeps the `sleep` that blocks, for the pauses between its
tries to connect. A worker that has lost its broker would then be blocked, all greenlets of
it, for 2, 4, ... 32 seconds at a time: no task would go on, and no lease be renewed.
"""

from __future__ import annotations

import sys
import time

from kombu.utils import functional


def let_others_run() -> None:
    """Have Kombu pause with gevent's `sleep`, where gevent has patched it."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched("time"):
        functional.sleep = time.sleep
