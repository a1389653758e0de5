"""Who is asking: found out for every request before anything else is looked at.

Three ways, of which one holds for a whole process: a password (HTTP Basic), the name in a header
of a proxy, or nothing but that the request comes from this machine. A refused request has seen
no page and no broker.
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

# So many proofs are remembered, so that a password is not hashed again for each request.
_REMEMBERED = 1000
_LONGEST_NAME = 200
# So many guesses may wait for the one core, and so many of them from one address.
_MOST_WAITING = 100
_MOST_EACH = 10
# What a proxy adds. Who comes through one is not on this machine, wherever the proxy is.
_FORWARDED = frozenset(
    ("forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip")
)

LOOPBACK_ONLY = (
    "Without users, reliq web answers this machine only. Set users with passwords (--users FILE or "
    "RELIQ_WEB_USERS), or put a proxy before it that logs in and names the user (--user-header), "
    "and start it again."
)


class Refused(NamedTuple):
    """Why a request is not let in."""

    status: int
    text: str
    headers: dict[str, str]


def access_of(settings: Settings) -> Access:
    """Return the way that *settings* choose."""
    if settings.users:
        return Passwords(settings.users).who
    if settings.user_header:
        return partial(_of_proxy, settings, networks(settings.proxies))
    return partial(_of_this_machine, frozenset(host.lower() for host in settings.hosts))


async def _of_this_machine(hosts: frozenset[str], asked: HTTPConnection) -> User | Refused:
    """Let in whoever asks from this machine, by a name of this machine, as an operator.

    The name is checked because a foreign page can give its own name this machine's address, and
    would be read and used by the browser as if it were ours.
    """
    peer, headers = asked.client.host if asked.client else "", asked.headers
    forwarded = any(name in _FORWARDED or name.startswith("x-forwarded-") for name in headers)
    if not is_loopback(peer) or forwarded:
        return Refused(403, LOOPBACK_ONLY, {})
    if not is_of_this_machine(headers.get("host", ""), hosts):
        text = "This name is none of this machine's: ask for localhost, or allow the name "
        return Refused(421, text + "with --allow-host.", {})
    return User("local", "operator")


class Passwords:
    """HTTP Basic. One password is hashed at a time: guesses share one core, and wait.

    Ten of one address and a hundred in all: further ones are to come again. What was refused is in
    the log, a line a second at most.
    """

    def __init__(self, users: Mapping[str, Account]) -> None:
        self._users = dict(users)
        self._waiting: Counter[str] = Counter()
        self._refused = Seldom(1.0)
        self._secret = os.urandom(32)
        self._proved: dict[bytes, User] = {}
        # What a name that there is not is compared with, so that it takes as long.
        self._nobody = hashed(os.urandom(16).hex())
        self._one = anyio.CapacityLimiter(1)

    async def who(self, asked: HTTPConnection) -> User | Refused:
        """Return the user, or why there is none."""
        given = _basic(asked.headers.get("authorization", ""))
        if given is None:
            return _LOG_IN
        name, password = given
        account = self._users.get(name)
        stored = self._nobody if account is None else account.password_hash
        text = f"{name}\x00{password}\x00{stored}".encode("utf-8", "surrogateescape")
        proof = hmac.digest(self._secret, text, hashlib.sha256)
        if proof in self._proved:
            return self._proved[proof]
        peer = asked.client.host if asked.client else ""
        # A name that is none may be a password in the wrong field.
        shown = repr(name) if account is not None else "a name that there is not"
        if self._waiting[peer] >= _MOST_EACH or self._waiting.total() >= _MOST_WAITING:
            self._refused.warn("log-in of %s from %s refused: too many wait", shown, peer)
            return _BUSY
        self._waiting[peer] += 1
        try:
            async with self._one:
                # A browser that opens many tabs sends one password with each.
                right = proof in self._proved or await anyio.to_thread.run_sync(
                    fits, password, stored
                )
        finally:
            self._waiting -= Counter((peer,))  # without those that have none
        if not right or account is None:
            self._refused.warn("log-in of %s from %s refused: wrong password", shown, peer)
            return _LOG_IN
        if len(self._proved) >= _REMEMBERED:
            self._proved.clear()
        self._proved[proof] = account.user
        return account.user


_LOG_IN = Refused(
    401,
    "A name and a password are needed.",
    {"www-authenticate": 'Basic realm="reliq", charset="UTF-8"'},
)
_BUSY = Refused(503, "Too many are logging in: try again.", {"retry-after": "5"})


def _basic(header: str) -> tuple[str, str] | None:
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except ValueError:  # not base64, not even ASCII, or no UTF-8 in it
        return None
    name, colon, password = text.partition(":")
    return (name, password) if colon else None


async def _of_proxy(
    settings: Settings, proxies: Sequence[Network], asked: HTTPConnection
) -> User | Refused:
    """Believe a proxy who it is; from its address only."""
    peer = asked.client.host if asked.client else ""
    try:
        address = ip_address(peer)
    except ValueError:
        address = None
    # A socket that listens to both kinds names those of the one in the other.
    address = getattr(address, "ipv4_mapped", None) or address
    if not any(address in network for network in proxies if address is not None):
        return Refused(403, "Ask by way of the proxy, which knows who you are.", {})
    header = settings.user_header.lower()
    names = asked.headers.getlist(header)
    if len(names) != 1 or not 0 < len(names[0].strip()) <= _LONGEST_NAME:
        return Refused(401, f"The proxy has not said in {header} who you are.", {})
    name = names[0].strip()
    return User(name, "operator" if name in settings.operators else "viewer")


class Seldom:
    """Writes at most one line in *every_s*, with how many were left out before it."""

    def __init__(self, every_s: float) -> None:
        self._every_s, self._at, self._left_out = every_s, float("-inf"), 0

    def warn(self, text: str, *values: object) -> None:
        """Write a line, or leave it out."""
        if monotonic() - self._at < self._every_s:
            self._left_out += 1
            return
        logger.warning("web: %s; %d like it were left out before", text % values, self._left_out)
        self._at, self._left_out = monotonic(), 0


Access: TypeAlias = "Callable[[HTTPConnection], Awaitable[User | Refused]]"
"""Returns who asks, or why nobody is let in."""
