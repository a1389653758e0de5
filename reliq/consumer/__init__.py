"""One process as a consumer: what it holds, and what it does in the background."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import names_of

if TYPE_CHECKING:
    from .background import BackgroundLoop as BackgroundLoop
    from .duties import BackgroundDuties as BackgroundDuties

# A process that only publishes has nothing to do in the background.
__getattr__ = names_of(__name__, {".background": "BackgroundLoop", ".duties": "BackgroundDuties"})
