"""One process as a consumer: what it holds, and what it does in the background."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import names_of

if TYPE_CHECKING:
    from .background import BackgroundLoop
    from .duties import BackgroundDuties

__all__ = ["BackgroundDuties", "BackgroundLoop"]

# A process that only publishes has nothing to do in the background.
__getattr__ = names_of(__name__, {".background": "BackgroundLoop", ".duties": "BackgroundDuties"})
