"""The error replies of a server: each is classed once, here.

The class decides the error that the caller gets, and whether a report to the broker (an ack, a
return, the end of a job) is kept and sent again. A report that the server has not run is never
dropped for a reason that passes.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ...errors import BrokerRefused, BrokerUnavailable, ReliqError

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


def _not_now(advice: str = "", *, dismisses: bool = False) -> Class:
    """Class a reply of a server that runs the command later: wait."""
    return Class(reconnects=True, passes=True, dismisses=dismisses, advice=advice)


# A reply of a server that never runs the command, while another one may: connect again.
_not_here = _not_now


def _never(advice: str = "") -> Class:
    """Class a reply that only a change of the program, the data or the rights avoids."""
    return Class(reconnects=False, passes=False, advice=advice)


CODES = {
    "LOADING": _not_now(dismisses=True),
    "BUSY": _not_now(),
    "MISCONF": _not_now("it cannot persist: check its log and disk"),
    "NOREPLICAS": _not_now(),
    # Full memory ends when workers drain the queues, but Kombu must not retry a publish into it.
    "OOM": Class(
        reconnects=False,
        passes=True,
        advice="its memory is full: raise maxmemory, or let workers drain the queues",
    ),
    "READONLY": _not_here(dismisses=True),
    "MASTERDOWN": _not_here(dismisses=True),
    "UNBLOCKED": _not_here(dismisses=True),
    "CLUSTERDOWN": _not_here(),
    "TRYAGAIN": _not_here(),
    "NOAUTH": _not_here(),
    "WRONGPASS": _not_here(),
    # Over a cluster, requests follow these. Elsewhere, the URL is wrong.
    "MOVED": Class(reconnects=False, passes=True, advice=_CLUSTER),
    "ASK": Class(reconnects=False, passes=True, advice=_CLUSTER),
    "CROSSSLOT": _never(_CLUSTER),
    "NOPERM": _never(_ACL),
    "NOSCRIPT": _never(),  # a command that sent the digest of a script sends its text first
    "WRONGTYPE": _never("a key of reliq has another type: use another database or prefix"),
}
"""The class of each reply, by its code: the first word."""
_PHRASES = {
    "max number of clients": _not_now(),
    "shutting down": _not_now(),
    # Refusals inside a script, as worded by Redis 6.2, by 7.0, and by later versions.
    "can't run this command": _never(_ACL),
    "can't access at least one of the keys": _never(_ACL),
    "ACL failure in script": _never(_ACL),
    "unknown command": _never("reliq needs Redis 6.2 or newer"),
}
_OTHER = _never()
# Redis 6.2 places the code of a command in a script after the script's name and line.
_CODE = re.compile(r"(?:^|: )-?([A-Z]+)\b")


def code_of(text: str) -> str:
    """Return the known code in an error reply; "" if there is none."""
    return next((found[1] for found in _CODE.finditer(text) if found[1] in CODES), "")


def class_of(text: str) -> Class:
    """Return the class of an error reply; other replies never pass."""
    if code := code_of(text):
        return CODES[code]
    return next((known for phrase, known in _PHRASES.items() if phrase in text), _OTHER)


def translate_reply(text: str, address: object) -> ReliqError:
    """Return reliq's error for an error reply of the server."""
    found = class_of(text)
    advice = getattr(address, "advice", {}).get(code_of(text), found.advice)
    hint = f" ({advice})" if advice else ""
    error: ReliqError
    if found.reconnects:
        error = BrokerUnavailable(f"{address} cannot serve now: {text}{hint}")
    else:
        error = BrokerRefused(f"{address} refused: {text}{hint}")
        error.passes = found.passes
    error.reply = text
    return error
