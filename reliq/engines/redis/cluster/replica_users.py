"""Users at replicas: ACL SETUSER is not replicated, so a failover may shut everybody out.

A user of ours can look at no rule, not even its own (ACL GETUSER shows hashes of passwords, and no
role has it). So it logs in at each replica, and tries there what it may do at the masters.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ....errors import ReliqError
from ....store.inspection import Finding
from ..connect import LOGIN_REFUSED
from ..server import Server
from ..wire import Wire
from .nodes import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ..stream import Command
    from .slots import Place
    from .wire import ClusterWire

_REMEDY = (
    "send it the ACL SETUSER, or the requirepass, that its master has (ACL LIST there prints the "
    "users): nodes do not tell each other of them, and after a failover clients would be refused"
)


def look_at_replicas(
    cluster: ClusterWire, prefix: str, lacking: Collection[Command]
) -> Iterator[Finding]:
    """Log in at each replica as at its master; *lacking*: what the masters refuse this user."""
    user = cluster.address.seeds[0].username or "default"
    good = 0
    for place in sorted(cluster.slots.replicas):
        finding = _look(cluster, place, user, prefix, lacking)
        good += finding is None
        if finding is not None:
            yield finding
    if good:
        yield Finding(
            "replica acl",
            "ok",
            f"{good} replica{'s know' if good > 1 else ' knows'} user {user!r} as the masters do",
        )


def _look(
    cluster: ClusterWire, place: Place, user: str, prefix: str, lacking: Collection[Command]
) -> Finding | None:
    timeout_s = min(cluster.options.socket_connect_timeout, PATIENCE_S)
    options = replace(cluster.options, socket_connect_timeout=timeout_s)
    wire = Wire(cluster.slots.address(place), options, cluster.name)
    try:
        wire.connect()
        refused = Server(wire, prefix).refuses(lacking)
    except ReliqError as exc:
        if LOGIN_REFUSED in str(exc):
            text = f"replica {place} does not let user {user!r} in as its master does: {exc}"
            return Finding("replica acl", "warning", text, _REMEDY)
        text = f"replica {place} cannot be asked whether it knows user {user!r}: {exc}"
        remedy = "start it, or take it out of the cluster (CLUSTER FORGET at each other node)"
        return Finding("replica acl", "warning", text, remedy)
    finally:
        wire.close()
    if not refused:
        return None
    names = ", ".join(refused)
    text = f"replica {place} refuses user {user!r} what its master lets it do: {names}"
    return Finding("replica acl", "warning", text, _REMEDY)
