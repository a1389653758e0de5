"""The spool: a publisher's journal for the time in which no broker answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import names_of

if TYPE_CHECKING:
    from .journal import JOURNALS

__all__ = ["JOURNALS", "SCHEME", "is_spool"]

SCHEME = "reliq-spool"


def is_spool(url: str) -> bool:
    """Whether *url* is that of a spool, which is no broker."""
    return url.startswith(f"{SCHEME}:")


# Without a spool no database is needed.
__getattr__ = names_of(__name__, {".journal": "JOURNALS"})
