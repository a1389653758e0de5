"""What is known of Celery, its pools and Flower; none of them is required."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import names_of

if TYPE_CHECKING:
    from .flower import show_queues
    from .pools import forget_nothing, let_others_run
    from .requests import forget, is_to_blame, requests_of, tell_the_eta, watch_over
    from .scheduled import show_what_waits

__all__ = [
    "forget",
    "forget_nothing",
    "is_to_blame",
    "let_others_run",
    "requests_of",
    "show_queues",
    "show_what_waits",
    "tell_the_eta",
    "watch_over",
]

# What only a worker, Flower, or a program under gevent needs.
__getattr__ = names_of(
    __name__,
    {
        ".flower": "show_queues",
        ".pools": "forget_nothing let_others_run",
        ".requests": "forget is_to_blame requests_of tell_the_eta watch_over",
        ".scheduled": "show_what_waits",
    },
)
