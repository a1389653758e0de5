"""Failback: the half of a transport that knows of other brokers, and goes home.

The first URL of a connection's list is home. A transport on another one learns from
the fail-back's thread when home answers again: without consumers it moves there in
place, before the next message is published; with consumers it goes on until nothing
is left where it is, and then ends the connection, so that the application connects
anew and finds home.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from kombu import Connection
from kombu.utils.url import parse_url

from ..errors import BrokerUnavailable, ReliqError
from ..failover.brokers import BROKERS, admit, without_password
from ..failover.failback import FAILBACK
from ..signals import broker_switched, emit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..options import Options
    from ..store.protocol import Store
    from .channel import Channel
    from .link import Link
    from .subscription import Subscription

logger = logging.getLogger("reliq")

_PROBE_S = 1.0
_PARTS = {
    "transport_cls": "transport",
    "hostname": "hostname",
    "port": "port",
    "userid": "userid",
    "password": "password",
    "virtual_host": "virtual_host",
}
_EMBEDDED = "reliq-sqlite:"
_SENTINEL = "reliq-sentinel:"
# What Kombu keeps when it switches to a URL that does not name it, and what it is at first.
_STICKY = {"port": None, "virtual_host": "/", "ssl": False}


def probe(url: str, arguments: Mapping[str, Any]) -> float:
    """Return the seconds that the broker at *url* takes to answer and to accept a write.

    Waits a second at most for a connection, and for an answer; raises ReliqError.
    """
    options = dict(arguments.get("transport_options") or {})
    for name in ("socket_timeout", "socket_connect_timeout"):
        options[name] = min(float(options.get(name) or _PROBE_S), _PROBE_S)
    with Connection(url, **{**arguments, "transport_options": options}) as connection:
        store = connection.transport.link.store
        try:
            store.connect()
            began = perf_counter()
            store.probe()
            return perf_counter() - began
        finally:
            connection.transport.close_connection(None)


BROKERS.ask_with(probe)


def urls_of(client: Any) -> tuple[tuple[str, ...], str]:
    """Return (all brokers of a Kombu connection, the one it is set to now); () for one.

    All Sentinels of a list are one broker: their URLs, separated by semicolons.
    """
    urls, current = _listed(client)
    sentinels = ";".join(url for url in urls if url.startswith(_SENTINEL))
    brokers = {url: sentinels if url.startswith(_SENTINEL) else url for url in urls}
    found = tuple(dict.fromkeys(brokers.values()))
    return (found, brokers[current]) if len(found) > 1 else ((), "")


def _listed(client: Any) -> tuple[tuple[str, ...], str]:
    """Return (all URLs of a Kombu connection, the one it is set to now); () for one."""
    urls = tuple(url for url in client.alt or () if "://" in url)
    if len(set(urls)) < 2:  # noqa: PLR2004 - one broker is no choice
        return (), ""
    fitting = {url: named for url in urls if (named := _named(url, client)) is not None}
    return urls, max(fitting, key=fitting.__getitem__, default=urls[0])


def reset_inherited_url(client: Any) -> None:
    """Take from a Kombu connection what it has kept of another URL of its list.

    Switched to a URL without a port or a path, Kombu keeps those of the URL before.
    """
    urls, url = _listed(client)
    if not url:
        return
    own, others = parse_url(url), [parse_url(other) for other in urls if other != url]
    for name, empty in _STICKY.items():
        value = _plain(getattr(client, name))
        if _plain(own.get(name)) is None and value in [_plain(item.get(name)) for item in others]:
            setattr(client, name, empty)


def _named(url: str, client: Any) -> int | None:
    """Return how much *url* names of where *client* is; None where that is elsewhere.

    What sticks (see reset_inherited_url) is not compared where the URL does not name it.
    """
    parts = parse_url(url)
    named = 0
    for name, part in _PARTS.items():
        expected = _plain(parts.get(part))
        if expected is not None:
            if expected != _plain(getattr(client, name)):
                return None
            named += 1
        elif name not in _STICKY and _plain(getattr(client, name)) is not None:
            return None
    return named


def _is_spool(url: str) -> bool:
    """Whether *url* is a broker in a file that there is; looking at it must not create it."""
    if not url.startswith(_EMBEDDED):
        return False
    path = parse_url(url)["virtual_host"]
    return bool(path) and Path(path).expanduser().exists()


def _plain(value: Any) -> Any:
    return None if not value or value == "/" else value


class Failback:
    """See the module's description. A mixin of Transport."""

    client: Any
    link: Link
    options: Options
    channels: list[Channel]
    subscriptions: list[Subscription]
    _loop: Any

    def __init__(self) -> None:
        self.urls, self.url = self.brokers_of(self.client)
        self.failing_back = False
        if self.urls:
            BROKERS.learn(self.urls, self._arguments)

    @property
    def _arguments(self) -> dict[str, Any]:
        """What a Connection to another broker of the list is made with."""
        arguments = {"transport_options": self.client.transport_options}
        given = self.client.ssl
        # What a URL of the list says of TLS is for that one; it says so by itself.
        if given and given not in [parse_url(url).get("ssl") for url in self.client.alt or ()]:
            arguments["ssl"] = given
        return arguments

    @staticmethod
    def brokers_of(client: Any) -> tuple[tuple[str, ...], str]:
        """Return (all brokers of a connection, the one it is set to now); () for one."""
        return urls_of(client)

    @property
    def probe_interval(self) -> float:
        """Seconds between two questions to the first broker."""
        return self.options.probe_interval

    @property
    def turns(self) -> bool:
        """Whether an event loop drives it."""
        return self._loop is not None

    @property
    def lease_ms(self) -> int:
        """How long the leases are that it takes."""
        return self.link.session.lease_ms

    @property
    def consumed(self) -> Sequence[str]:
        """The queues it consumes from, with acks."""
        return sorted({item.queue for item in list(self.subscriptions) if not item.no_ack})

    @property
    def may_spool(self) -> bool:
        """Whether one of the other brokers is a file, there or not."""
        return any(url.startswith(_EMBEDDED) for url in self.urls[1:])

    @property
    def spools(self) -> Sequence[str]:
        """Those of the other brokers that are files of this machine."""
        return [url for url in self.urls[1:] if _is_spool(url)]

    @property
    def _fresh_s(self) -> float:
        return self.options.probe_interval * 2 if self.options.failback else 0.0

    # -- connecting

    def connect_in_turn(self) -> None:
        """Open the connection, unless another broker is to be tried before this one.

        Raises BrokerUnavailable, and lets the broker rest that could not be reached.
        """
        if not self.urls:
            self._open()
            return
        admit(self.url, self.urls, self._fresh_s)
        try:
            self._open()
        except BrokerUnavailable:
            BROKERS.failed(self.url)
            raise
        BROKERS.answered(self.url)
        self._say_where("it was the first to answer")
        self.watch_primary()

    def _open(self) -> None:
        """Connect to a broker that takes writes; after a loss or a failure not at once.

        A replica takes the login too. What Kombu and Celery do after a connection that
        failed they do with pauses, and over the other URLs; after one that was lost, at
        once and over the same one. So a replica must fail here, not later.
        """
        pace = self.link.session.pace
        # A publish with a retry policy has pauses of its own, and comes when its caller does.
        publishes = "max_retries" in (self.client.transport_options or ())
        pace.wait(once=publishes and not self.link.session.registration.consumed)
        try:
            self.link.store.connect()
            self.link.store.require_writable()
        except BrokerUnavailable:
            pace.trouble()
            raise
        pace.well()

    def watch_primary(self) -> None:
        """Have the fail-back look after this transport: away, consuming, or beside a spool."""
        if not self.urls or not self.options.failback:
            return
        if self.url != self.urls[0] or self.consumed or self.spools:
            FAILBACK.watch(self)

    def leave_failback(self) -> None:
        """Be looked after no longer."""
        if self.urls:
            FAILBACK.leave(self)

    # -- going home

    def primary_answers(self) -> None:
        """Learn that home answers again; called by the fail-back's thread."""
        if not self.failing_back:
            FAILBACK.came_back(self.url)
        self.failing_back = True
        self.link.store.notifier.wake()

    def fail_back(self) -> None:
        """Go on at home, in place, where nothing ties this transport to where it is."""
        FAILBACK.go_on()
        if not self.failing_back or self.subscriptions:
            return
        if any(channel.qos_.delivered for channel in self.channels):
            return
        self.failing_back = False
        primary = Connection(self.urls[0], **self._arguments)
        other = primary.transport
        try:
            other.link.store.connect()
        except ReliqError as exc:
            BROKERS.failed(self.urls[0])
            logger.info("%s: staying where we are", exc)
            primary.release()
            return
        self._adopt(primary, other)

    def _adopt(self, primary: Connection, other: Any) -> None:
        left = self.link
        try:
            left.store.wait_for_replies()
        except ReliqError as exc:
            logger.info("%s; what is owed goes out over the next connection", exc)
        other.link.session.carriers.add(self)
        self.link = left.at(other.link)
        other.link.session.leave(other)
        left.session.leave(self)  # type: ignore[arg-type]
        left.store.close()
        # Kombu declares again what it is about to publish to, and says where it is.
        self.client.declared_entities.clear()
        for name in _PARTS:
            setattr(self.client, name, getattr(primary, name))
        FAILBACK.came_back(self.url)
        self.url = self.urls[0]
        self.leave_failback()
        self.watch_primary()
        BROKERS.answered(self.url)
        self._say_where("the first broker answers again")

    def disconnect_when_drained(self) -> None:
        """End the connection where home answers and nothing is left to consume here.

        Raises BrokerUnavailable: the application connects anew, to the first broker.
        """
        FAILBACK.go_on()
        if not self.failing_back or not self.consumed or self.link.session.leases.held:
            return
        if any(
            item.buffer or item.in_flight or item.wanted
            for item in self.subscriptions
            if not item.no_ack
        ):
            return
        self.failing_back = False
        if not BROKERS.answered_within(self.urls[0], self._fresh_s):
            return
        FAILBACK.came_back(self.url)
        raise BrokerUnavailable(
            f"{without_password(self.urls[0])} answers again: leaving "
            f"{without_password(self.url)}, where nothing is left to do"
        )

    def _say_where(self, reason: str) -> None:
        before = BROKERS.used(self.urls, self.url)
        if before is None:
            return
        old, new = without_password(before), without_password(self.url)
        logger.warning("switched from %s to %s: %s", old, new, reason)
        emit(broker_switched, new, old=old, new=new, reason=reason)

    @contextmanager
    def temporary_connection(self, url: str, *, end_dead: bool = False) -> Iterator[Store]:
        """Open a store at *url* for a while; what this process owed there is sent.

        With *bury* what dead consumers left there is ended, where nobody lives who does that.
        """
        with Connection(url, **self._arguments) as connection:
            transport = connection.transport
            transport.establish_connection()
            try:
                if end_dead:
                    transport.link.session.duties.end_dead(transport.link.store)
                yield transport.link.store
            finally:
                transport.close_connection(None)
