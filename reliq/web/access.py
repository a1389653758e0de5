"""Authentication: identifies the user of every request before any other step.

A process uses one of three methods: a password (HTTP Basic), the name in a header of a proxy, or
the origin of the request on this machine. A refused request reaches no page and no broker.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections import Counter
from functools import partial
from ipaddress import ip_address
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import anyio
import anyio.to_thread

from ..errors import logger
from ..hosts import is_loopback, is_of_this_machine
from .settings import User, fits, hashed, networks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.requests import HTTPConnection

    from .settings import Account, Network, Settings

# Verified logins in memory, so that a password is not hashed again for each request.
_REMEMBERED = 1000
_LONGEST_NAME = 200
# Logins that may wait for the one core: in total, and from one address.
_MOST_WAITING = 100
_MOST_EACH = 10
# Headers that proxies add. A client behind a proxy is not on this machine, wherever the proxy is.
_FORWARDED = frozenset(
    ("forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip")
)

LOOPBACK_ONLY = (
    "Without users, reliq web answers this machine only. Set users with passwords (--users FILE or "
    "RELIQ_WEB_USERS), or use a proxy that authenticates and names the user (--user-header). "
    "Then restart reliq web."
)


class Refused(NamedTuple):
    """The response to a request that is refused."""

    status: int
    text: str
    headers: dict[str, str]


def access_of(settings: Settings) -> Access:
    """Return the authentication method of *settings*."""
    if settings.users:
        return Passwords(settings.users).who
    if settings.user_header:
        return partial(_of_proxy, settings, networks(settings.proxies))
    return partial(_of_this_machine, frozenset(host.lower() for host in settings.hosts))


async def _of_this_machine(hosts: frozenset[str], connection: HTTPConnection) -> User | Refused:
    """Accept requests from this machine, for a name of this machine, as an operator.

    The name is checked against DNS rebinding: a foreign page can point its own name at this
    machine, and the browser then lets that page read and use ours.
    """
    peer, headers = connection.client.host if connection.client else "", connection.headers
    forwarded = any(name in _FORWARDED or name.startswith("x-forwarded-") for name in headers)
    if not is_loopback(peer) or forwarded:
        return Refused(403, LOOPBACK_ONLY, {})
    if not is_of_this_machine(headers.get("host", ""), hosts):
        text = "This host name is not one of this machine. Use localhost, or allow the name "
        return Refused(421, text + "with --allow-host.", {})
    return User("local", "operator")


class Passwords:
    """HTTP Basic. Passwords are hashed one at a time, so guesses share one core and wait.

    At most ten logins from one address wait, and a hundred in total. Further ones get status 503.
    Refused logins are logged, at most one line a second.
    """

    def __init__(self, users: Mapping[str, Account]) -> None:
        self._users = dict(users)
        self._waiting: Counter[str] = Counter()
        self._refused = Seldom(1.0)
        self._secret = os.urandom(32)
        self._proved: dict[bytes, User] = {}
        # An unknown name is checked against this hash, so that it takes as long as a known one.
        self._nobody = hashed(os.urandom(16).hex())
        self._limiter = anyio.CapacityLimiter(1)

    async def who(self, connection: HTTPConnection) -> User | Refused:
        """Return the user, or the refusal."""
        given = _basic(connection.headers.get("authorization", ""))
        if given is None:
            return _LOG_IN
        name, password = given
        account = self._users.get(name)
        stored = self._nobody if account is None else account.password_hash
        text = f"{name}\x00{password}\x00{stored}".encode("utf-8", "surrogateescape")
        proof = hmac.digest(self._secret, text, hashlib.sha256)
        if proof in self._proved:
            return self._proved[proof]
        peer = connection.client.host if connection.client else ""
        # An unknown name may be a password in the wrong field, so it is not logged.
        shown = repr(name) if account is not None else "an unknown name"
        if self._waiting[peer] >= _MOST_EACH or self._waiting.total() >= _MOST_WAITING:
            self._refused.warn("login of %s from %s refused: too many waiting logins", shown, peer)
            return _BUSY
        self._waiting[peer] += 1
        try:
            async with self._limiter:
                # A browser that opens many tabs sends the same password with each.
                right = proof in self._proved or await anyio.to_thread.run_sync(
                    fits, password, stored
                )
        finally:
            self._waiting -= Counter((peer,))  # drops zero counts
        if not right or account is None:
            self._refused.warn("login of %s from %s refused: wrong password", shown, peer)
            return _LOG_IN
        if len(self._proved) >= _REMEMBERED:
            self._proved.clear()
        self._proved[proof] = account.user
        return account.user


_LOG_IN = Refused(
    401,
    "User name and password required.",
    {"www-authenticate": 'Basic realm="reliq", charset="UTF-8"'},
)
_BUSY = Refused(503, "Too many logins are in progress. Try again later.", {"retry-after": "5"})


def _basic(header: str) -> tuple[str, str] | None:
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except ValueError:  # not base64, or not UTF-8
        return None
    name, colon, password = text.partition(":")
    return (name, password) if colon else None


async def _of_proxy(
    settings: Settings, proxies: Sequence[Network], connection: HTTPConnection
) -> User | Refused:
    """Trust the user name in the proxy's header; from its address only."""
    peer = connection.client.host if connection.client else ""
    try:
        address = ip_address(peer)
    except ValueError:
        address = None
    # A dual-stack socket reports IPv4 peers as mapped IPv6 addresses.
    address = getattr(address, "ipv4_mapped", None) or address
    if not any(address in network for network in proxies if address is not None):
        return Refused(403, "Connect through the proxy that authenticates users.", {})
    header = settings.user_header.lower()
    names = connection.headers.getlist(header)
    if len(names) != 1 or not 0 < len(names[0].strip()) <= _LONGEST_NAME:
        return Refused(401, f"The proxy did not name the user in {header}.", {})
    name = names[0].strip()
    return User(name, "operator" if name in settings.operators else "viewer")


class Seldom:
    """Logs at most one line every *every_s* seconds, with the number of suppressed lines."""

    def __init__(self, every_s: float) -> None:
        self._every_s, self._at, self._left_out = every_s, float("-inf"), 0

    def warn(self, text: str, *values: object) -> None:
        """Log a warning, or suppress it."""
        if monotonic() - self._at < self._every_s:
            self._left_out += 1
            return
        logger.warning(
            "web: %s; %d similar messages suppressed before", text % values, self._left_out
        )
        self._at, self._left_out = monotonic(), 0


Access: TypeAlias = "Callable[[HTTPConnection], Awaitable[User | Refused]]"
"""Returns the user of a request, or the refusal."""
