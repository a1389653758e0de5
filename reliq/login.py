"""Logins whose credentials change: tokens of a ``CredentialProvider`` of redis-py.

Owns the provider of a login in this process, and its newest token. Shows no token anywhere.
"""

from __future__ import annotations

from contextlib import suppress
from math import inf
from pkgutil import resolve_name
from threading import Thread
from time import monotonic
from typing import Any
from weakref import WeakValueDictionary

from .errors import BrokerUnavailable, logger
from .forks import here
from .interrupts import came_from_handler


class Login:
    """A provider of credentials, which is asked at each connection; used instead of a password.

    It is asked again after `interval_s`, also if it streams; one that failed, or whose token was
    refused, after a tenth of it. Each process makes its own from a class or function: threads do
    not survive a fork.
    """

    interval_s = inf

    def __init__(self, make: Any) -> None:
        self._make = make
        self._process: object = None
        self._provider: Any = None
        self._reported = self._failed = False
        self._due = inf
        # The newest token that came without a connection: a user, if named, and a password.
        self.token: tuple[str, ...] = ()

    def get_credentials(self) -> Any:
        """Return user and password, or the password alone. Raises BrokerUnavailable.

        An exception of a signal handler, such as a time limit, is raised unchanged.
        """
        try:
            if self._process != here():  # two threads may each make one: both renew
                self._provider = self._make()
                self._due = monotonic() + self.interval_s
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

    def newest(self) -> tuple[str, ...]:
        """Return the newest token. A thread asks the provider for another one if that is due."""
        if monotonic() >= self._due:
            self._due = inf
            with suppress(RuntimeError):  # the process ends
                Thread(target=self._ask, daemon=True).start()
        return self.token

    def _ask(self) -> None:
        try:
            token = (*self._provider.get_credentials(),)  # another object: see Stream.renewal
            if token != self.token or self._failed:  # perhaps at one of several connections
                self._failed, self.token = False, token
            self._due = monotonic() + self.interval_s
        except Exception as exc:  # noqa: BLE001 - of any kind; it is retried
            self.report(exc)

    def _renew(self, token: Any) -> None:
        """Keep a new token, for the open connections; called in a thread of the provider."""
        self.token = (*filter(None, [token.try_get("oid")]), token.get_value())

    def report(self, outcome: Any) -> None:
        """Log, once until a login succeeds, the provider's error or the server's refusal."""
        if not isinstance(outcome, Exception):
            self._reported = False
            return
        self._failed, self._due = True, monotonic() + self.interval_s / 10
        if not self._reported:
            self._reported = True
            cause = getattr(outcome, "reply", "").partition(" ")[0] or type(outcome).__name__
            logger.warning("credential_provider: no new token (%s)", cause)


# The dotted path, or the id of the provider -> its login, shared by the whole process.
_logins: WeakValueDictionary[object, Login] = WeakValueDictionary()


def login_of(given: Any) -> Login:
    """Return the only login of a provider, or of the path of its class or factory; may raise."""
    named = isinstance(given, str)
    make = resolve_name(given) if named else hasattr(given, "get_credentials") and (lambda: given)
    if not callable(make):
        raise TypeError
    return _logins.setdefault(given if named else id(given), Login(make))
