"""Once: a handler's side effect that must not be repeated.

Knows messages and Celery's requests only by what they carry, and no engine.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import AbstractContextManager
from math import inf
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from .engines.urls import connect
from .errors import BrokerUnavailable, ConfigurationError, ReliqError, logger
from .forks import here
from .integrations.connections import current_connection, open_store, store_factory
from .store.values import CLAIMED, FINISHED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .store.protocol import Store

_LONGEST_S = 10 * 366 * 86_400.0
# A claim is extended so many times in a lease, and looked at so many times by who waits.
_EXTENDED = 3
_LOOKED_AT = 20
_FIRST_PAUSE_S = 0.005


def once(
    what: Any,
    ttl: float,
    *,
    lease: float = 10.0,
    url: str | None = None,
    transport_options: Mapping[str, Any] | None = None,
) -> AbstractContextManager[bool]:
    """Return a context manager that is True where the block may do what must be done once.

    *what* is an id of your own, a Kombu message (its ``message_id`` property, else its
    header ``id``, else its delivery tag), or a Celery request (its task id). Among all
    processes that share the broker the block is entered with True by one at a time, and
    by none for *ttl* seconds after one has left it without an exception. Whatever
    exception leaves the block gives the claim up at once, so that another may try.

    While the block runs, the claim is a lease of *lease* seconds that a thread extends. Who
    finds another's claim waits until it is finished (False), extended (False: the other lives)
    or free (True), at most about the other's *lease*.

    It does not make an effect exactly-once: a process that is killed after the effect
    and before the end of the block, or that is frozen for longer than *lease*, lets
    it run again. Claims live in one broker, and as safely as the messages in it.

    The broker is that of *url* with *transport_options*; else the one the message came
    from; else that of the current Celery application. Raises ConfigurationError, and
    BrokerUnavailable: on entering nothing was done, on leaving the end could not be noted.
    """
    for name, value in (("ttl", ttl), ("lease", lease)):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0.001 <= value <= _LONGEST_S:  # noqa: PLR2004 - what Redis can keep
            raise ConfigurationError(
                f"expected {name} to be a number of seconds from 0.001 to {_LONGEST_S:g}, "
                f"got: {value!r}"
            )
    return _Once(_name(what), ttl, lease, _opener(what, url, transport_options))


def _name(what: Any) -> str:
    found = what
    if hasattr(what, "delivery_tag"):  # a message
        properties, headers = what.properties or {}, what.headers or {}
        found = properties.get("message_id") or headers.get("id") or what.delivery_tag
    elif not isinstance(what, str):
        found = getattr(what, "id", None)
    if not isinstance(found, str) or not found:
        raise ConfigurationError(
            f"expected an id (a string that is not empty), a message or a request, got: {what!r}"
        )
    return found


def _opener(
    what: Any, url: str | None, transport_options: Mapping[str, Any] | None
) -> Callable[[], Store]:
    transport = getattr(getattr(what, "channel", None), "transport", None)
    if url is None and transport_options is not None:
        raise ConfigurationError("expected a url beside transport_options, got none")
    if url is not None or transport is None:
        return opener("once", url, transport_options, current_connection)

    def of_its_broker() -> Store:
        store = store_factory(transport)(_client_name("once"))
        store.connect()
        return store

    return of_its_broker


def _client_name(kind: str) -> str:
    return f"{kind}:{socket.gethostname().split('.')[0]}:{os.getpid()}"


def opener(
    kind: str,
    url: str | None,
    transport_options: Mapping[str, Any] | None,
    connection: Callable[[], Any],
) -> Callable[[], Store]:
    """Return a function that opens a connection of its own to the broker at *url*.

    Without one, to the first broker that answers of the Kombu connection that *connection*
    returns; where that is None it raises ConfigurationError.
    """
    name = _client_name(kind)
    if url is not None:
        return lambda: connect(url, transport_options, name)

    def of_celery() -> Store:
        found = connection()
        if found is None:
            raise ConfigurationError("expected a url, because Celery is not in use here, got none")
        return open_store(found, name)

    return of_celery


class _Once(AbstractContextManager[bool]):
    """One use of a claim, over a connection of its own."""

    def __init__(self, name: str, ttl: float, lease: float, opener: Callable[[], Store]) -> None:
        self._name = name
        self._ttl_ms, self._lease_ms = max(int(ttl * 1000), 1), max(int(lease * 1000), 1)
        self._lease = lease
        self._open = opener

    def __enter__(self) -> bool:
        """Claim; True if the block may do it. Raises BrokerUnavailable."""
        self._process = here()
        self._token = os.urandom(12).hex()
        self._lost = False
        self._stop: threading.Event | None = None
        self._store = self._open()
        try:
            first = self._take()
        except BaseException:
            self._store.close()
            raise
        if not first:
            self._store.close()
            return False
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._extend, args=(self._stop,), name="reliq-once", daemon=True
        )
        self._thread.start()
        return True

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        """Keep the claim as finished, or give it up if the block has raised.

        In a child that was forked inside the block the claim is its parent's.
        """
        if self._stop is None or self._process != here():
            return
        self._stop.set()
        self._thread.join()
        try:
            if exc_type is None:
                self._finish()
            else:
                self._store.claim(self._name, self._token, 0)
        except ReliqError as error:
            if exc_type is None:
                raise
            logger.warning(  # the block's own exception says more
                "the claim on %r could not be given up and ends by itself in %g s: %s",
                self._name,
                self._lease,
                error,
            )
        finally:
            self._store.close()

    def _take(self) -> bool:
        known, pause = inf, _FIRST_PAUSE_S
        while True:
            left = self._store.claim(self._name, self._token, self._lease_ms)
            if left == CLAIMED:
                return True
            # Extended since the last look: whoever holds it lives, and is at it.
            if left == FINISHED or left > known:
                return False
            known = left
            sleep(min(left / 1000, pause))
            pause = min(2 * pause, max(self._lease / _LOOKED_AT, _FIRST_PAUSE_S))

    def _extend(self, stop: threading.Event) -> None:
        down = False
        while not stop.wait(self._lease / _EXTENDED):
            try:
                self._lost = self._store.claim(self._name, self._token, self._lease_ms) != CLAIMED
                down = False
            except ReliqError as exc:
                if not down:
                    logger.warning("the claim on %r could not be extended: %s", self._name, exc)
                down = True
            if self._lost:
                return

    def _finish(self) -> None:
        deadline = monotonic() + self._lease
        while True:
            try:
                left = self._store.claim(self._name, self._token, self._ttl_ms, finished=True)
                break
            except BrokerUnavailable:
                if monotonic() > deadline:
                    raise
                sleep(self._lease / _LOOKED_AT)
        if self._lost or left != CLAIMED:
            logger.warning(
                "the claim on %r was lost to another process while its block ran longer than "
                "the lease of %g s without being extended: it may have been done twice",
                self._name,
                self._lease,
            )
