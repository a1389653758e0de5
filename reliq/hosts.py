"""The host names of HTTP requests: a foreign page can point its own name at this machine."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


def is_loopback(host: str) -> bool:
    """Whether *host*, an address or a name, is a loopback address."""
    name = host.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def is_of_this_machine(netloc: str, names: Collection[str]) -> bool:
    """Whether a Host header names this machine: by a loopback name, or one of *names*."""
    host = host_of(netloc).lower()
    return is_loopback(host) or host in names


def host_of(netloc: str) -> str:
    """Return the host of a Host header, without its port."""
    return netloc[: netloc.rfind("]") + 1] if "]" in netloc else netloc.partition(":")[0]
