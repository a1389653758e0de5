"""What the pages are about, who may see them and what may be done: parsed once, then frozen."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError
from .networks import networks

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .users import Account

# Somebody waits for each page: a broker that is away is said soon.
_PATIENCE = {"socket_timeout": 5.0, "socket_connect_timeout": 2.0}
_LONGEST_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What :func:`reliq.web.app` was given; raises ConfigurationError for what makes no sense."""

    urls: tuple[str, ...]
    """One for each broker."""
    transport_options: Mapping[str, Any] = field(default_factory=dict)
    """Those of the application."""
    allow_actions: bool = False
    """Whether operators may change anything. Defaults to False: nobody may."""
    users: Mapping[str, Account] = field(default_factory=dict)
    """Who logs in with a password, by name."""
    user_header: str = ""
    """The header in which a proxy names the user; "" for none."""
    proxies: frozenset[str] = frozenset({"127.0.0.1", "::1"})
    """From which addresses, or networks, that header is believed. Defaults to this machine's."""
    operators: frozenset[str] = frozenset()
    """Whom of those that a proxy names is an operator; the others are viewers."""
    hosts: frozenset[str] = frozenset()
    """Without users: names by which this machine may be asked, beside localhost."""
    redact: tuple[str, ...] = ()
    """Keys whose values are hidden in headers and arguments; ``*`` stands for any characters."""
    root_path: str = ""
    """Under which path of a proxy the pages are; "" for none."""
    interval_s: float = 2.0
    """So often a page that somebody looks at is read anew. Defaults to 2."""
    action_log: Path | None = None
    """The file to which each action is appended as a line of JSON."""

    def __post_init__(self) -> None:
        """Check what belongs together, and normalise."""
        if not self.urls:
            raise ConfigurationError("expected the URL of at least one broker, got none")
        if self.users and self.user_header:
            raise ConfigurationError(
                "expected users with passwords or a header of a proxy that names them, got both"
            )
        if (self.operators or self.proxies != _default_proxies()) and not self.user_header:
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

    @property
    def has_credentials(self) -> bool:
        """Whether it is known who asks; else only who is on this machine may."""
        return bool(self.users or self.user_header)


def _default_proxies() -> frozenset[str]:
    return frozenset({"127.0.0.1", "::1"})
