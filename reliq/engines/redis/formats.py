"""Formats: in which version everything under one prefix is stored, and whether we know it.

Asked whenever a connection is opened, beside what is asked then anyway. Written by whoever
declares something, or says that it lives, where it is missing: list_queue.lua, heartbeat.lua and
``declare_exchange``. The oldest layout had no such key, and other ones for all queues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._version import __version__
from ...errors import ConfigurationError
from ...store.limits import FORMAT
from . import keys

if TYPE_CHECKING:
    from .connect import Broker
    from .stream import Command, Reply


def questions(prefix: str) -> tuple[Command, Command]:
    """Return what is asked, at any server: of a cluster the node that has the key answers."""
    return ("HMGET", keys.stored_format(prefix), "version"), ("EXISTS", *keys.older_layout(prefix))


def require_known(version: Reply, older: Reply, prefix: str, broker: Broker) -> None:
    """Raise ConfigurationError where the replies say that something is stored in another format.

    Replies that do not say it pass: of another node, or to a user who may not look at the key.
    """
    where = f"{broker}, global_keyprefix {prefix!r},"
    if isinstance(version, Exception):
        stored: object = "of another type" if "WRONGTYPE" in str(version) else str(FORMAT)
    else:
        (found,) = version
        stored = None if found is None else found.decode("utf-8", "replace")
    if stored is None and not isinstance(older, Exception) and older:
        raise ConfigurationError(
            f"{where} holds queues in the layout of an older reliq, which this one "
            f"({__version__}) cannot read; nothing was changed. Use another database or "
            "global_keyprefix; or drain them with the version that wrote them, and then delete "
            f"its lists: DEL {' '.join(keys.older_layout(prefix))}"
        )
    if stored not in {None, str(FORMAT)}:
        raise ConfigurationError(
            f"{where} is stored in format {stored}, and this reliq ({__version__}) knows format "
            f"{FORMAT}; nothing was changed. Upgrade reliq, or use another database or "
            "global_keyprefix"
        )
