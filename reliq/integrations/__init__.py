"""Code for Celery, its pools and Flower; none of them is required."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ..lazy import names_of

if TYPE_CHECKING:
    from .celery import WATCH as WATCH
    from .flower import show_queues as show_queues
    from .pools import forget_nothing as forget_nothing
    from .pools import let_others_run as let_others_run
    from .requests import forget as forget
    from .requests import is_to_blame as is_to_blame
    from .requests import report_eta as report_eta
    from .requests import requests_of as requests_of
    from .requests import watch_over as watch_over
    from .scheduled import show_what_waits as show_what_waits


def prepare() -> None:
    """Adapt this process to the libraries that the application has loaded."""
    if not sys.modules.keys().isdisjoint(("celery", "gevent.monkey", "flower.utils.broker")):
        _load("WATCH").connect()


# Needed only by workers, Flower and programs under gevent.
__getattr__ = _load = names_of(
    __name__,
    {
        ".celery": "WATCH",
        ".flower": "show_queues",
        ".pools": "forget_nothing let_others_run",
        ".requests": "forget is_to_blame requests_of report_eta watch_over",
        ".scheduled": "show_what_waits",
    },
)
