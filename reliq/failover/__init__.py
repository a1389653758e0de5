"""Several brokers: which one is used, and the way back to the primary one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import names_of

if TYPE_CHECKING:
    from .failback import FAILBACK as FAILBACK

# With one broker there is no way back.
__getattr__ = names_of(__name__, {".failback": "FAILBACK"})
