"""One process as a consumer: its sessions, leases and background duties."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import names_of

if TYPE_CHECKING:
    from .background import BackgroundLoop as BackgroundLoop
    from .duties import BackgroundDuties as BackgroundDuties

# Imported on first use: a process that only publishes has no background duties.
__getattr__ = names_of(__name__, {".background": "BackgroundLoop", ".duties": "BackgroundDuties"})
