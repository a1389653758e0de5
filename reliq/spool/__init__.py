"""The spool: a publisher's journal, used while no broker answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import names_of

if TYPE_CHECKING:
    from .journal import JOURNALS

__all__ = ["JOURNALS", "SCHEME", "is_spool"]

SCHEME = "reliq-spool"


def is_spool(url: str) -> bool:
    """Whether *url* names a spool, which is not a broker."""
    return url.startswith(f"{SCHEME}:")


# Imported at first use: a process without a spool does not load SQLite.
__getattr__ = names_of(__name__, {".journal": "JOURNALS"})
