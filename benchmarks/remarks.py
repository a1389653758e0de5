"""Why a figure falls short of its target, by row key: printed only when it does."""

from __future__ import annotations

WHY_SHORT: dict[str, str] = {}
