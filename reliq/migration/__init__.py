"""Migration of messages from Kombu's Redis transport to reliq, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import names_of

if TYPE_CHECKING:
    from .migrate import Migration, Plan, Step

__all__ = ["Migration", "Plan", "Step"]

__getattr__ = names_of(__name__, {".migrate": "Migration Plan Step"})
