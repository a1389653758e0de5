"""What the pages are about, who may see them and what may be done: parsed once, then frozen."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from .users import Account

# Somebody waits for each page: a broker that is away is said soon.
_PATIENCE = {"socket_timeout": 5.0, "socket_connect_timeout": 2.0}
_LONGEST_S = 60.0
_LOOPBACK = frozenset({"127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What :func:`reliq.web.app` was given, which describes each.

    Raises ConfigurationError for what makes no sense.
    """

    urls: tuple[str, ...]
    transport_options: Mapping[str, Any] = field(default_factory=dict)
    allow_actions: bool = False
    users: Mapping[str, Account] = field(default_factory=dict)
    user_header: str = ""
    proxies: frozenset[str] = _LOOPBACK
    operators: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    redact: tuple[str, ...] = ()
    root_path: str = ""
    interval_s: float = 2.0
    action_log: Path | None = None

    def __post_init__(self) -> None:
        """Check what belongs together, and normalise."""
        if not self.urls:
            raise ConfigurationError("expected the URL of at least one broker, got none")
        if self.users and self.user_header:
            raise ConfigurationError(
                "expected users with passwords or a header of a proxy that names them, got both"
            )
        if (self.operators or self.proxies != _LOOPBACK) and not self.user_header:
            raise ConfigurationError(
                "operators and proxies mean nothing without the header that names the user"
            )
        networks(self.proxies)
        if self.user_header and not self.proxies:
            raise ConfigurationError(
                "expected the address of a proxy whose header is believed, got none"
            )
        for key in self.redact:
            if not key.strip() or "," in key:
                raise ConfigurationError(
                    f"expected each key of redact alone, as 'password' and '*token*', got: {key!r}"
                )
        if not (isfinite(self.interval_s) and 0 < self.interval_s <= _LONGEST_S):
            raise ConfigurationError(
                f"expected interval_s to be above 0 and up to {_LONGEST_S:g} seconds, "
                f"got: {self.interval_s!r}"
            )
        path = "/" + self.root_path.strip("/") if self.root_path.strip("/") else ""
        if any(ord(char) <= ord(" ") or char in "?#\\" for char in path):
            raise ConfigurationError(f"expected root_path to be a path, got: {self.root_path!r}")
        object.__setattr__(self, "root_path", path)
        object.__setattr__(self, "transport_options", {**_PATIENCE, **self.transport_options})


Network: TypeAlias = "IPv4Network | IPv6Network"


def networks(addresses: Iterable[str]) -> tuple[Network, ...]:
    """Return what *addresses* mean, as ``10.0.0.7``, ``10.0.0.0/24`` or ``fd00::1``.

    Raises ConfigurationError for a name: it would never be the address of a peer.
    """
    found: list[Network] = []
    for text in addresses:
        try:
            found.append(ip_network(text.strip("[]")))
        except ValueError as exc:  # noqa: PERF203 - few
            raise ConfigurationError(
                f"expected the address of a proxy, or a network as 10.0.0.0/24, got: {text!r} "
                f"({exc})"
            ) from None
    return tuple(found)
