"""Middleware: application code around every task of a Celery app.

Public names: `Middleware`, `add_middleware`, and the context objects of the four methods. Code that
publishes tasks without Celery's own functions calls `apply_publish`.
"""

from __future__ import annotations

from .chain import (
    BeginContext,
    DeliverContext,
    EndContext,
    Middleware,
    PublishContext,
    chain_of,
)
from .install import add_middleware, apply_publish

__all__ = [
    "BeginContext",
    "DeliverContext",
    "EndContext",
    "Middleware",
    "PublishContext",
    "add_middleware",
    "apply_publish",
    "chain_of",
]
