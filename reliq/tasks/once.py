"""Once: claims, which keep a handler's side effect from being repeated.

Reads ids from messages and from Celery's requests. Independent of the engine.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from math import inf
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from ..errors import BrokerUnavailable, ConfigurationError, ReliqError, logger
from ..forks import here
from ..integrations.connections import client_name, current_connection, open_store, require_reliq
from ..store.urls import connect
from ..values.values import CLAIMED, FINISHED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..values.protocol import Store

_LONGEST_S = 10 * 366 * 86_400.0
# Per lease: extensions of a claim by its owner, and checks of it by a waiting process.
_EXTENDED = 3
_POLLS = 20
_FIRST_PAUSE_S = 0.005


def once(
    what: Any,
    ttl: float,
    *,
    lease: float = 10.0,
    url: str | None = None,
    transport_options: Mapping[str, Any] | None = None,
) -> AbstractContextManager[bool]:
    """Return a context manager whose value is True if the block may run its side effect.

    *what* is an id of your own, a Kombu message (its ``message_id`` property, else its header
    ``id``, else its delivery tag), or a Celery request (its task id). Of all processes that share
    the broker, only one at a time gets True. After a block ends without an exception, no process
    gets True for *ttl* seconds. An exception releases the claim at once for other processes.

    While the block runs, the claim is a lease of *lease* seconds, which a thread extends. Another
    process waits until the claim is finished (False), extended (False: the owner is alive) or free
    (True). It waits for at most about the owner's *lease*.

    This does not make an effect exactly-once. The effect may run again if its process is killed
    before the end of the block, or frozen for longer than *lease*. One broker keeps the claims, as
    durably as its messages.

    The broker is that of *url* with *transport_options*, else the one that delivered the message,
    else that of the current Celery application. Raises ConfigurationError and BrokerUnavailable:
    at the start, nothing was done; at the end of the block, its end was not recorded.
    """
    for name, value in (("ttl", ttl), ("lease", lease)):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0.001 <= value <= _LONGEST_S:  # noqa: PLR2004 - limits of Redis
            raise ConfigurationError(
                f"expected {name} to be a number of seconds from 0.001 to {_LONGEST_S:g}, "
                f"got: {value!r}"
            )
    return _Once(_name(what), ttl, lease, _opener(what, url, transport_options))


def _name(what: Any) -> str:
    name = what
    if hasattr(what, "delivery_tag"):  # a message
        properties, headers = what.properties or {}, what.headers or {}
        name = properties.get("message_id") or headers.get("id") or what.delivery_tag
    elif not isinstance(what, str):
        name = getattr(what, "id", None)
    if not isinstance(name, str) or not name:
        raise ConfigurationError(
            f"expected an id (a non-empty string), a message or a request, got: {what!r}"
        )
    return name


def _opener(
    what: Any, url: str | None, transport_options: Mapping[str, Any] | None
) -> Callable[[], Store]:
    transport = getattr(getattr(what, "channel", None), "transport", None)
    if url is None and transport_options is not None:
        raise ConfigurationError("expected a url with transport_options, got none")
    if url is not None or transport is None:
        return opener("once", url, transport_options, current_connection)

    def of_its_broker() -> Store:
        require_reliq(transport)
        store: Store = transport.endpoint.open_store(client_name("once"))
        store.connect()
        return store

    return of_its_broker


def opener(
    kind: str,
    url: str | None,
    transport_options: Mapping[str, Any] | None,
    connection: Callable[[], Any],
) -> Callable[[], Store]:
    """Return a function that opens a new connection to the broker at *url*.

    Without *url*, it connects to the first reachable broker of the Kombu connection from
    *connection*. If that is None, it raises ConfigurationError.
    """
    name = client_name(kind)
    if url is not None:
        return lambda: connect(url, transport_options, name)

    def of_celery() -> Store:
        broker = connection()
        if broker is None:
            raise ConfigurationError("expected a url, because Celery is not in use here, got none")
        return open_store(broker, name)

    return of_celery


class _Once(AbstractContextManager[bool]):
    """One use of a claim, over its own connection."""

    def __init__(self, name: str, ttl: float, lease: float, opener: Callable[[], Store]) -> None:
        self._name = name
        self._ttl_ms, self._lease_ms = max(int(ttl * 1000), 1), max(int(lease * 1000), 1)
        self._lease = lease
        self._open = opener

    def __enter__(self) -> bool:
        """Claim; return whether the block may run its effect. Raises BrokerUnavailable."""
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
        """Record the claim as finished, or release it after an exception.

        In a child forked inside the block, do nothing: the claim belongs to the parent.
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
            logger.warning(  # the exception of the block matters more
                "cannot release the claim on %r, which expires in %g s: %s",
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
            # Extended since the last check: the owner is alive.
            if left == FINISHED or left > known:
                return False
            known = left
            sleep(min(left / 1000, pause))
            pause = min(2 * pause, max(self._lease / _POLLS, _FIRST_PAUSE_S))

    def _extend(self, stop: threading.Event) -> None:
        down = False
        while not stop.wait(self._lease / _EXTENDED):
            try:
                self._lost = self._store.claim(self._name, self._token, self._lease_ms) != CLAIMED
                down = False
            except ReliqError as exc:
                if not down:
                    logger.warning("cannot extend the claim on %r: %s", self._name, exc)
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
                sleep(self._lease / _POLLS)
        if self._lost or left != CLAIMED:
            logger.warning(
                "the claim on %r was lost to another process, because it was not extended within "
                "its lease of %g s: the block may have been done twice",
                self._name,
                self._lease,
            )
