"""Failover: the known state of each broker, and the order in which a process tries them.

Kombu calls a strategy with the list of URLs, and takes its next URL each time a broker fails.
``primary`` and ``healthiest`` are reliq's strategies. They skip brokers in back-off, and query a
broker before they choose it. This module is independent of engines and of Kombu.

Kombu and Celery retry after fixed pauses, so all clients reconnect at the same moments after a
common loss. Here, each client waits for a random time before a retry.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import BrokerUnavailable, ReliqError, logger
from ..forks import OwnLock

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

    # Queries the broker at a URL with these transport options, or all its nodes if True. Returns
    # the seconds until its answer.
    Probe: TypeAlias = "Callable[[str, Mapping[str, Any], bool], float]"


# The maximum wait after a loss, in seconds. It doubles with each failed try, up to _LONGEST_S.
_FIRST_S = 0.1
_LONGEST_S = 1.0
# A client whose last try is older does not reconnect together with the others.
_FORGOTTEN_AFTER_S = 60.0

JITTER = random.SystemRandom()
"""A random generator for pauses, separate from the program's possibly seeded `random`."""


class Pace:
    """The waits of one consumer or publisher before it reconnects."""

    def __init__(self) -> None:
        self._troubles = 0
        self._since = 0.0

    @property
    def calm(self) -> bool:
        """Whether the connection works, or the last failure is old."""
        return not self._troubles or monotonic() - self._since > _FORGOTTEN_AFTER_S

    def trouble(self) -> None:
        """Record that a connection was lost or could not be opened."""
        self._troubles = min(self._troubles + 1, 16)
        self._since = monotonic()

    def well(self) -> None:
        """Record that a connection was opened."""
        self._troubles = 0

    def wait(self, *, once: bool = False) -> None:
        """Wait for a random part of the maximum; return at once if the connection works.

        *once*: wait only before the first retry, because the retry policy of a publisher sets the
        later pauses.
        """
        if self._troubles and not (once and self._troubles > 1):
            longest_s = min(_FIRST_S * 2.0 ** (self._troubles - 1), _LONGEST_S)
            sleep(JITTER.uniform(0.0, longest_s))


class Paces:
    """The paces of one process, because Kombu creates a transport per URL. Not thread-safe."""

    def __init__(self) -> None:
        self._paces: dict[Hashable, Pace] = {}

    def of(self, key: Hashable) -> Pace:
        """Return the pace of *key*, and remove the other calm ones."""
        self._paces = {of: pace for of, pace in self._paces.items() if of == key or not pace.calm}
        return self._paces.setdefault(key, Pace())


_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0


def one_by_one(urls: str) -> list[str]:
    """Split a list of URLs at its semicolons."""
    # A semicolon without a reliq URL after it belongs to a password that is not encoded.
    return re.split(r";(?=reliq[a-z-]*://)", urls)


def without_password(url: str) -> str:
    """Return the scheme, host and path of *url*, or of each of several URLs with semicolons."""
    return ";".join(map(_without_password, one_by_one(url)))


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    shown, *tail = re.split(r"[?#]", rest, maxsplit=1)
    if not shown.startswith("/"):
        # Remove all up to the last @, since a password may contain an unencoded slash. After an
        # unencoded question mark, the part before it is a part of the password.
        shown = "..." if "@" in "".join(tail) else shown.rpartition("@")[2]
    return f"{scheme}://{shown}"


@dataclass(slots=True)
class _Record:
    """The known state of one broker."""

    options: Mapping[str, Any] = field(default_factory=dict)
    failures: int = 0
    back_off_until: float = 0.0
    answered_at: float = float("-inf")
    whole: bool = True


class Brokers:
    """The brokers of this process, by URL. Thread-safe; a child inherits the records."""

    _lock = OwnLock()
    """Guards changes of several steps. Of a nested change of a record, one of both holds."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}
        self._names: dict[str, str] = {}
        self.probe: Probe | None = None
        """The function that queries a broker."""
        self._used: dict[tuple[str, ...], str] = {}
        self.data: dict[str, str] = {}
        """Broker -> the id of its data at the last connect of this process."""

    def learn(self, urls: Sequence[str], options: Mapping[str, Any]) -> None:
        """Record the transport options of *urls*.

        Several URLs with semicolons are one broker, which each of them identifies.
        """
        with self._lock:
            for url in urls:
                self._names.update(dict.fromkeys(url.split(";"), url))
                self._record(url).options = dict(options)

    def _record(self, url: str) -> _Record:
        return self._records.setdefault(self._names.get(url, url), _Record())

    def used(self, urls: tuple[str, ...], url: str, first: str = "") -> str | None:
        """Record that *url* of *urls* is in use; return the previous one if it differs.

        *first*: the previous one at the first use.
        """
        with self._lock:
            before, self._used[urls] = self._used.get(urls, first or url), url
        return None if before == url else before

    def failed(self, url: str) -> None:
        """Put *url* into back-off: one second at first, doubled each time, at most 30 seconds.

        Perhaps only one of several nodes failed, so all nodes need a check.
        """
        with self._lock:
            record = self._record(url)
            record.whole = False
            pause = min(_FIRST_PAUSE_S * 2**record.failures, _LONGEST_PAUSE_S)
            record.failures += 1
            record.answered_at = float("-inf")
            # with jitter, so that processes do not return at the same moment
            record.back_off_until = monotonic() + pause * JITTER.uniform(0.8, 1.2)

    def lost_a_node(self, url: str) -> None:
        """Record that a node of *url* was needed and is unreachable."""
        self._record(url).whole = False

    def answered(self, url: str) -> None:
        """Record that *url* works."""
        with self._lock:
            record = self._record(url)
            record.failures, record.back_off_until = 0, 0.0
            record.answered_at = monotonic()

    def in_back_off(self, url: str) -> bool:
        """Whether *url* failed recently."""
        return monotonic() < self._record(url).back_off_until

    def answered_within(self, url: str, seconds: float) -> bool:
        """Whether *url* answered in the last *seconds*, and has not failed since."""
        return monotonic() - self._record(url).answered_at <= seconds

    def soonest(self, urls: Sequence[str]) -> str:
        """Return the URL whose back-off ends first."""
        return min(urls, key=lambda url: self._record(url).back_off_until)

    def ask(self, url: str) -> float:
        """Return the seconds that *url* needs to answer and to accept a write.

        Raises ReliqError after a failure, and puts *url* into back-off.
        """
        try:
            latency = self._ask(url, whole=False)
        except ReliqError:
            self.failed(url)
            raise
        self.answered(url)
        return latency

    def ask_whole(self, url: str) -> None:
        """Check whether all nodes of *url* accept a write, if one of them has failed before."""
        if self.is_whole(url):
            return
        try:
            self._ask(url, whole=True)
        except ReliqError as exc:
            logger.debug("%s: not all nodes work: %s", without_password(url), exc)
            return
        self._record(url).whole = True

    def is_whole(self, url: str) -> bool:
        """Whether no node of *url* has failed since the last successful check of all nodes."""
        return self._record(url).whole

    def _ask(self, url: str, *, whole: bool) -> float:
        options = self._record(url).options
        url = self._names.get(url, url)
        if self.probe is None:
            raise BrokerUnavailable(f"{without_password(url)}: its scheme is unknown")
        return self.probe(url, options, whole)


BROKERS = Brokers()


def _latencies(urls: Sequence[str]) -> Iterator[tuple[float, str]]:
    for url in urls:
        if BROKERS.in_back_off(url):
            continue
        try:
            yield BROKERS.ask(url), url
        except ReliqError as exc:
            logger.info("%s is skipped: %s", without_password(url), exc)


def primary(urls: Sequence[str]) -> Iterator[str]:
    """Yield the first URL of *urls* that answers, forever. The first one yielded is not queried.

    If none answers, yield the one whose back-off ends first.
    """
    yield urls[0]
    while True:
        healthy = next((url for _, url in _latencies(urls)), None)
        yield healthy or BROKERS.soonest(urls)


def healthiest(urls: Sequence[str]) -> Iterator[str]:
    """Yield the URL of *urls* that answers fastest, forever; at first ``urls[0]``, not queried."""
    yield urls[0]
    while True:
        fastest = min(_latencies(urls), default=None)
        yield BROKERS.soonest(urls) if fastest is None else fastest[1]


STRATEGIES = {"primary": primary, "healthiest": healthiest}


def admit(url: str, urls: Sequence[str], fresh_s: float) -> None:
    """Raise BrokerUnavailable if another broker of *urls* takes precedence over *url*.

    This applies while *url* is in back-off and another broker is not. It also applies if *url* is
    not the first, and the first one answered within the last *fresh_s* seconds.
    """
    if len(urls) < 2:  # noqa: PLR2004 - no alternatives
        return
    if url != urls[0] and BROKERS.answered_within(urls[0], fresh_s):
        raise BrokerUnavailable(
            f"{without_password(url)} is not needed: {without_password(urls[0])} answers again"
        )
    if BROKERS.in_back_off(url) and not all(BROKERS.in_back_off(other) for other in urls):
        raise BrokerUnavailable(
            f"{without_password(url)} failed a moment ago and is in back-off; "
            "another broker is tried first"
        )
