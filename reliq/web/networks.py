"""Addresses of proxies: each one alone, or a network of them."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TYPE_CHECKING, TypeAlias

from ..errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

Network: TypeAlias = "IPv4Network | IPv6Network"


def networks(addresses: Iterable[str]) -> tuple[Network, ...]:
    """Return what *addresses* mean, as ``10.0.0.7``, ``10.0.0.0/24`` or ``fd00::1``.

    Raises ConfigurationError for a name: it would never be the address of a peer.
    """
    return tuple(map(_network, addresses))


def _network(text: str) -> Network:
    try:
        return ip_network(text.strip("[]"))
    except ValueError as exc:
        raise ConfigurationError(
            f"expected the address of a proxy, or a network as 10.0.0.0/24, got: {text!r} ({exc})"
        ) from None
