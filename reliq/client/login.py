"""Logins whose credentials change: tokens of a redis-py ``CredentialProvider``.

Owns the provider of one login, and the connections to which its new tokens go. A streaming
provider hands out each new token before the old one expires. Shows no token anywhere.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet, WeakValueDictionary

from ..errors import BrokerUnavailable, ReliqError, logger
from ..forks import OwnLock, here

if TYPE_CHECKING:
    from collections.abc import Callable


class Connected(Protocol):
    """The connections that a new token logs in."""

    def log_in(self, credentials: tuple[str, str], refused: Callable[[ReliqError], None]) -> None:
        """See :meth:`.wire.Wire.log_in`."""


class Login:
    """The credentials of a provider, asked for at each connection.

    *given* is the provider, or the dotted path of its class or of a function that returns it: then
    each process has its own, because the threads of a provider do not survive a fork.
    """

    _lock = OwnLock()
    """Held by the thread that makes the provider. Of nested ones, the last stays."""

    def __init__(self, given: Any) -> None:
        self._given = given
        self._process: object = None
        self._provider: Any = None
        self._wires: WeakSet[Connected] = WeakSet()

    def get_credentials(self) -> tuple[str, ...]:
        """Return user and password, or the password alone. Raises BrokerUnavailable.

        The error names only the class of the provider's error, whose text may contain a token.
        """
        try:
            found: tuple[str, ...] = self._found().get_credentials()
        except Exception as exc:  # noqa: BLE001 - of code that reliq does not know
            raise BrokerUnavailable(
                f"credential_provider: no credentials ({type(exc).__name__})"
            ) from None
        return found

    def _found(self) -> Any:
        """Return the provider of this process."""
        process = here()
        if self._process != process:
            with self._lock:
                if self._process != process:
                    self._provider, self._wires = made(self._given), WeakSet()
                    if hasattr(self._provider, "on_next"):  # a streaming provider of redis-py
                        self._provider.on_next(self._renew)
                        self._provider.on_error(self._failed)
                    self._process = process
        return self._provider

    def follow(self, wire: Connected) -> None:
        """Pass each new token to *wire* from now on, as long as it exists."""
        self._wires.add(wire)

    def _renew(self, token: Any) -> None:
        """Log the connections in with *token*, from a thread of the provider."""
        credentials = (token.try_get("oid"), token.get_value())
        told: list[ReliqError] = []

        def refused(error: ReliqError) -> None:
            if not told:
                logger.warning("a new token was refused (%s); connecting anew", error)
            told.append(error)

        for wire in list(self._wires):
            try:
                wire.log_in(credentials, refused)
            except ReliqError as exc:  # noqa: PERF203 - it reconnects, with new credentials
                logger.debug("%s", exc)

    def _failed(self, error: BaseException) -> None:
        logger.warning(
            "credential_provider: no new token (%s); a connection that the server closes is "
            "opened again",
            type(error).__name__,
        )


def made(given: Any) -> Any:
    """Return the provider that *given* is or names. Raises an exception of the named code."""
    found = resolve_name(given) if isinstance(given, str) else given
    is_provider = hasattr(found, "get_credentials") and not isinstance(found, type)
    return found if is_provider else found()


# The dotted path, or the id of the provider -> its login, shared by the whole process.
_logins: WeakValueDictionary[object, Login] = WeakValueDictionary()


def login_of(given: Any) -> Login | None:
    """Return the login of a provider or its dotted path: one for equal ones; None for neither."""
    if not given:
        return None
    key = given if isinstance(given, str) else id(given)
    return _logins.setdefault(key, Login(given))
