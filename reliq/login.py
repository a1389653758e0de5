"""Logins whose credentials change: tokens of a ``CredentialProvider`` of redis-py.

Owns the provider of a login in this process, and its newest token. Shows no token anywhere.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any
from weakref import WeakValueDictionary

from .errors import BrokerUnavailable, logger
from .forks import here
from .interrupts import came_from_handler


class Login:
    """A provider of credentials, which is asked at each connection; used instead of a password.

    Each process makes its own from a class or function: threads do not survive a fork.
    """

    def __init__(self, make: Any) -> None:
        self._make = make
        self._process: object = None
        self._provider: Any = None
        self._reported = False
        # The newest token of a streaming provider: a user, if it names one, and a password.
        self.token: tuple[str, ...] = ()

    def get_credentials(self) -> Any:
        """Return user and password, or the password alone. Raises BrokerUnavailable.

        An exception of a signal handler, such as a time limit, is raised unchanged.
        """
        try:
            if self._process != here():  # two threads may each make one: both renew
                self._provider = self._make()
                if hasattr(self._provider, "on_next"):  # it streams
                    self._provider.on_next(self._renew)
                    self._provider.on_error(self.report)
                self._process = here()
            return self._provider.get_credentials()
        except Exception as exc:
            if came_from_handler(exc):
                raise
            # Without the error's text, which may contain a token.
            raise BrokerUnavailable(f"credential_provider failed ({type(exc).__name__})") from None

    def _renew(self, token: Any) -> None:
        """Keep a new token, for the open connections; called in a thread of the provider."""
        self._reported = False
        self.token = (*filter(None, [token.try_get("oid")]), token.get_value())

    def report(self, outcome: Any) -> None:
        """Log, once for each token, the error of the provider or the server's refusal."""
        if isinstance(outcome, Exception) and not self._reported:
            self._reported = True
            cause = getattr(outcome, "reply", "").partition(" ")[0] or type(outcome).__name__
            logger.warning("credential_provider: no new token (%s)", cause)


# The dotted path, or the id of the provider -> its login, shared by the whole process.
_logins: WeakValueDictionary[object, Login] = WeakValueDictionary()


def login_of(given: Any) -> Login:
    """Return the only login of a provider, or of the path of its class or factory; may raise."""
    named = isinstance(given, str)
    provider = resolve_name(given) if named else given
    if not (callable(provider) if named else hasattr(provider, "get_credentials")):
        raise TypeError
    made = Login(provider if named else lambda: given)
    return _logins.setdefault(given if named else id(given), made)
