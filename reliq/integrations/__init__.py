"""Code for Celery, its pools and Flower; none of them is required."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import names_of

if TYPE_CHECKING:
    from .flower import show_queues as show_queues
    from .pools import forget_nothing as forget_nothing
    from .pools import let_others_run as let_others_run
    from .requests import came_from_outside as came_from_outside
    from .requests import forget as forget
    from .requests import is_to_blame as is_to_blame
    from .requests import requests_of as requests_of
    from .requests import tell_the_eta as tell_the_eta
    from .requests import watch_over as watch_over
    from .scheduled import show_what_waits as show_what_waits

# Needed only by workers, Flower and programs under gevent.
__getattr__ = names_of(
    __name__,
    {
        ".flower": "show_queues",
        ".pools": "forget_nothing let_others_run",
        ".requests": "came_from_outside forget is_to_blame requests_of tell_the_eta watch_over",
        ".scheduled": "show_what_waits",
    },
)
