"""The address of a cluster: nodes of it to ask first, and how to log in at all of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ....errors import ConfigurationError
from ..urls import PORT, address_of, read, together
from .slots import Place, SlotMap, shared_map

if TYPE_CHECKING:
    from collections.abc import Sequence

    import redis

    from ....options import Options
    from ..connect import Address

SCHEME = "reliq-cluster"


@dataclass(frozen=True)
class ClusterAddress:
    """A cluster that some nodes are named of. Its repr shows no password."""

    seeds: tuple[Address, ...]
    reachable: tuple[tuple[Place, Place], ...] = ()
    """Where a node is reached that announces itself as another."""
    slots: SlotMap = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Share the map with others of this process."""
        slots = shared_map(self.identity, self.seeds, dict(self.reachable))
        object.__setattr__(self, "slots", slots)

    def __str__(self) -> str:
        """Name the broker in messages, as a URL that can be used: nothing secret."""
        first, *others = (f"{SCHEME}://{Place(seed.host, seed.port)}" for seed in self.seeds)
        tls = "" if self.seeds[0].tls is None else "?ssl=true"
        return ";".join([f"{first}{tls}", *others])

    @property
    def identity(self) -> tuple[object, ...]:
        """Return what stays the same, in whatever order the nodes are named."""
        return (SCHEME, tuple(sorted(str(seed.identity) for seed in self.seeds)), self.reachable)

    @property
    def password(self) -> str | None:
        """The password, at every node the same."""
        return self.seeds[0].password

    def connect(self, options: Options, name: str) -> redis.connection.AbstractConnection:
        """Refuse: a connection is one to a node, whose address :class:`SlotMap` knows."""
        raise NotImplementedError(f"{self}: {name} asks for one connection, {options!r}")


def _place(text: str) -> Place:
    host, _, port = text.rpartition(":")
    return Place(host.strip("[]"), int(port))


def cluster_address(
    urls: Sequence[str],
    options: Options,
    username: str | None = None,
    password: str | None = None,
    tls: Any = None,
) -> ClusterAddress:
    """Return the address that *urls*, a node each, and *options* describe.

    User, password and TLS are the same at all nodes; one of the URLs naming them is enough.
    *username*, *password* and *tls* (Kombu's ``ssl``) hold where the URLs say nothing. Raises
    ConfigurationError, without showing a password.
    """
    said = [read(url, (SCHEME,)) for url in urls]
    whole = together(said, username=username, password=password, tls=tls)
    if whole.path not in {"", "0"}:
        raise ConfigurationError(
            f"expected no database, or 0, in a {SCHEME}:// URL: Redis Cluster has no other. Use "
            "the transport option global_keyprefix to keep applications apart"
        )
    first = address_of(replace(whole, path=""))
    places = dict.fromkeys((item.host or "localhost", item.port or PORT) for item in said)
    reachable = tuple((_place(one), _place(other)) for one, other in options.address_map)
    seeds = tuple(replace(first, host=host, port=port) for host, port in places)
    return ClusterAddress(seeds, reachable)
