"""The error replies of a server: each is classed once, here.

The class decides the error that the caller gets, and whether a report to the broker (an ack, a
return, the end of a job) is kept and sent again. A report that the server has not run is never
dropped for a reason that passes.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ..errors import BrokerRefused, BrokerUnavailable, ReliqError

_ACL = "the user lacks a permission: see the ACL rule in docs/operations.md"
_CLUSTER = "it is a node of a Redis Cluster: use reliq-cluster:// with some of its nodes"


class Class(NamedTuple):
    """The effect of an error reply on the sender of the command."""

    reconnects: bool
    """Whether it is a BrokerUnavailable: clients reconnect, perhaps to another broker."""
    passes: bool
    """Whether the same command may succeed later: reports are kept."""
    dismisses: bool = False
    """Whether the connection is closed: this server is not, or not yet, the master."""
    advice: str = ""


# Not now: this server runs the command later. Not here: another one may, so connect again.
_NOT_NOW = _NOT_HERE = Class(reconnects=True, passes=True)
_NO_MASTER = _NOT_HERE._replace(dismisses=True)
_NEVER = Class(reconnects=False, passes=False)
_DENIED = _NEVER._replace(advice=_ACL)

CODES = {
    "BUSY": _NOT_NOW,
    "MISCONF": _NOT_NOW._replace(advice="it cannot persist: check its log and disk"),
    "NOREPLICAS": _NOT_NOW,
    # Full memory ends when workers drain the queues, but Kombu must not retry a publish into it.
    "OOM": Class(
        reconnects=False,
        passes=True,
        advice="its memory is full: raise maxmemory, or let workers drain the queues",
    ),
    "LOADING": _NO_MASTER,
    "READONLY": _NO_MASTER,
    "MASTERDOWN": _NO_MASTER,
    "UNBLOCKED": _NO_MASTER,
    "CLUSTERDOWN": _NOT_HERE,
    "TRYAGAIN": _NOT_HERE,
    "NOAUTH": _NOT_HERE,
    "WRONGPASS": _NOT_HERE,
    # Over a cluster, requests follow these. Elsewhere, the URL is wrong.
    "MOVED": Class(reconnects=False, passes=True, advice=_CLUSTER),
    "ASK": Class(reconnects=False, passes=True, advice=_CLUSTER),
    "CROSSSLOT": _NEVER._replace(advice=_CLUSTER),
    "NOPERM": _DENIED,
    "NOSCRIPT": _NEVER,  # a command that sent the digest of a script sends its text first
    "WRONGTYPE": _NEVER._replace(
        advice="a key of reliq has another type: use another database or prefix"
    ),
}
"""The class of each reply, by its code: the first word."""
_PHRASES = {
    "max number of clients": _NOT_NOW,
    "shutting down": _NOT_NOW,
    # Refusals inside a script, as worded by Redis 6.2, by 7.0, and by later versions.
    "can't run this command": _DENIED,
    "can't access at least one of the keys": _DENIED,
    "ACL failure in script": _DENIED,
    "unknown command": _NEVER._replace(advice="reliq needs Redis 6.2 or newer"),
}
# Redis 6.2 places the code of a command in a script after the script's name and line.
_CODE = re.compile(r"(?:^|: )-?([A-Z]+)\b")


def code_of(text: str) -> str:
    """Return the known code in an error reply; "" if there is none."""
    return next((matched[1] for matched in _CODE.finditer(text) if matched[1] in CODES), "")


def class_of(text: str) -> Class:
    """Return the class of an error reply; other replies never pass."""
    if code := code_of(text):
        return CODES[code]
    return next((known for phrase, known in _PHRASES.items() if phrase in text), _NEVER)


def translate_reply(text: str, address: object) -> ReliqError:
    """Return reliq's error for an error reply of the server."""
    kind = class_of(text)
    advice = getattr(address, "advice", {}).get(code_of(text), kind.advice)
    hint = f" ({advice})" if advice else ""
    error: ReliqError
    if kind.reconnects:
        error = BrokerUnavailable(f"{address} cannot serve now: {text}{hint}")
    else:
        error = BrokerRefused(f"{address} refused: {text}{hint}")
        error.passes = kind.passes
    error.reply = text
    return error
