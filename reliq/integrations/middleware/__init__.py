"""Middleware: code of the application's around every task of a Celery app.

What is public: `Middleware`, `add_middleware`, and what the four methods are given. Code that
publishes tasks past Celery's own way calls `apply_publish`.
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
