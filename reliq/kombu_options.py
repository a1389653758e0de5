"""The options of Kombu's Redis transport and their effect here: the only list of them.

docs/migrating.md has a table made from it, and a test compares it with the installed Kombu.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import logger

KEPT = {
    "visibility_timeout": "limits the time without a lease renewal; leave it out, or set it to 60",
    "global_keyprefix": "precedes each key",
    "queue_order_strategy": "sets the order in which a consumer reads its queues",
    "socket_timeout": "limits the wait for a reply; None: 10 seconds",
    "socket_connect_timeout": "limits the wait for a connection; None: 5 seconds",
    "socket_keepalive": "uses TCP keepalive; None: True",
    "socket_keepalive_options": "sets these TCP options; the others keep reliq's values",
    "health_check_interval": "checks a connection before use after this silence; 0: never",
    "client_name": "begins the connection names in CLIENT LIST; None: reliq",
    "master_name": "names the master at the Sentinels",
    "sentinel_kwargs": "its user and password, or provider, log in at the Sentinels; no more",
    "credential_provider": "logs in with its credentials, asked for at each connection",
}
"""Options with an effect, and what it is."""

SUBSTITUTES = {
    ("sep", "priority_steps"): "priorities 0 to 9 are all distinct",
    ("fanout_prefix", "fanout_patterns", "sentinel_fanout_compat"): "broadcasts use queues",
    ("ack_emulation",): "each message is acknowledged",
    ("unacked_key", "unacked_index_key"): "each queue has its own leases",
    ("unacked_mutex_key", "unacked_mutex_expire"): "each queue has its own mutex",
    ("unacked_restore_interval", "unacked_restore_throttle"): "restore_interval does their work",
    ("unacked_restore_limit",): "all messages with an expired lease return, in small steps",
    ("polling_interval",): "poll_interval does its work",
    ("max_connections",): "a process opens few connections",
    ("socket_read_size",): "replies are read in blocks of 64 KiB",
    ("retry", "retry_on_error", "retry_on_timeout"): "a retried publish is stored once",
    ("reauth_check_interval",): "a new token is used at once",
    ("min_other_sentinels",): "a server that a Sentinel names must report itself as a master",
    ("body_encoding",): "bodies are stored as bytes",
    ("deadletter_queue",): "each queue keeps its dead letters; see also unroutable",
}
"""Options without an effect, which are accepted, and what does their work."""
UNUSED = frozenset(name for names in SUBSTITUTES for name in names)
_OF_SENTINELS = ("username", "password", "credential_provider")
SENTINEL_LOGIN = frozenset(f"sentinel_{name}" for name in _OF_SENTINELS)
KNOWN = frozenset({*KEPT, *UNUSED, *SENTINEL_LOGIN})
"""The options that a connection to Kombu's data accepts."""

_reported: list[str] = []
"""The text of the only warning of this process."""


def sentinel_login(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return reliq's options for ``sentinel_kwargs``. Raises TypeError."""
    kwargs = given.get("sentinel_kwargs") or {}
    if not isinstance(kwargs, Mapping):
        raise TypeError
    return {f"sentinel_{name}": kwargs[name] for name in _OF_SENTINELS if name in kwargs}


def warn_of_unused(given: Mapping[str, Any]) -> None:
    """Log a warning, the first time in this process, with the options that have no effect."""
    if _reported or UNUSED.isdisjoint(given):
        return
    _reported.extend(
        f"{', '.join(named)} ({reason})"
        for names, reason in SUBSTITUTES.items()
        if (named := [name for name in names if name in given])
    )
    logger.warning(
        "these options of Kombu's Redis transport have no effect in reliq, and can be removed: %s",
        "; ".join(_reported),
    )
