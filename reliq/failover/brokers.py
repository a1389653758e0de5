"""Failover: what this process knows of its brokers, and in which order it tries them.

Kombu calls a strategy with the list of URLs and takes the next one each time a broker
fails. ``primary`` and ``healthiest`` are ours; they skip brokers in back-off, and ask
before they choose. Knows no engine and nothing of Kombu.

Kombu and Celery try again after the same pauses everywhere, counted from the loss that all clients
had together. Here each of them waits a random moment before it tries.
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

    # Asks the broker at a URL, given the transport options, or all of its nodes: seconds until
    # its answer.
    Probe: TypeAlias = "Callable[[str, Mapping[str, Any], bool], float]"


# Seconds: the longest wait after a loss; it doubles with each try that failed.
_FIRST_S = 0.1
_LONGEST_S = 1.0
# Who has not tried for so long comes by itself, not with all the others.
_FORGOTTEN_AFTER_S = 60.0

JITTER = random.SystemRandom()
"""Chance for pauses: its own, so that a program's seeded `random` stays as it is."""


class Pace:
    """How long one consumer, or publisher, waits before it connects again."""

    def __init__(self) -> None:
        self._troubles = 0
        self._since = 0.0

    @property
    def calm(self) -> bool:
        """Whether all is well, or nobody has tried for long."""
        return not self._troubles or monotonic() - self._since > _FORGOTTEN_AFTER_S

    @property
    def longest_s(self) -> float:
        """The most that the next wait can take; 0 when all is well."""
        if not self._troubles:
            return 0.0
        return min(_FIRST_S * 2.0 ** (self._troubles - 1), _LONGEST_S)

    def trouble(self) -> None:
        """Note that a connection was lost, or could not be made."""
        self._troubles = min(self._troubles + 1, 16)
        self._since = monotonic()

    def well(self) -> None:
        """Note that a connection was made."""
        self._troubles = 0

    def wait(self, *, once: bool = False) -> None:
        """Wait a random part of :attr:`longest_s`; not at all when all is well.

        *once*: only before the first try after it was well, as a publisher whose retry policy
        has the pauses.
        """
        longest_s = self.longest_s
        if longest_s and not (once and self._troubles > 1):
            sleep(JITTER.uniform(0.0, longest_s))


class Paces:
    """The paces of one process: Kombu makes a transport anew for each URL. Not thread-safe."""

    def __init__(self) -> None:
        self._paces: dict[Hashable, Pace] = {}

    def of(self, key: Hashable) -> Pace:
        """Return the pace of *key*, and forget those that are calm."""
        self._paces = {of: pace for of, pace in self._paces.items() if of == key or not pace.calm}
        return self._paces.setdefault(key, Pace())


_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0


def one_by_one(urls: str) -> list[str]:
    """Return the URLs that semicolons separate."""
    # A semicolon that no URL of ours follows is one of a password that nobody has encoded.
    return re.split(r";(?=reliq[a-z-]*://)", urls)


def without_password(url: str) -> str:
    """Return *url*, or several with semicolons, as it may be shown: scheme, host and path."""
    return ";".join(map(_without_password, one_by_one(url)))


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    shown, *tail = re.split(r"[?#]", rest, maxsplit=1)
    if not shown.startswith("/"):
        # Up to the last @: a password may have a slash that nobody has encoded, or a question
        # mark; then what comes before that is a part of it.
        shown = "..." if "@" in "".join(tail) else shown.rpartition("@")[2]
    return f"{scheme}://{shown}"


@dataclass(slots=True)
class _Record:
    """What is known of one broker."""

    options: Mapping[str, Any] = field(default_factory=dict)
    failures: int = 0
    back_off_until: float = 0.0
    answered_at: float = float("-inf")
    whole: bool = True


class Brokers:
    """The brokers of this process, by URL. Thread-safe; a fork keeps what is known."""

    _lock = OwnLock()
    """Guards what is changed in several steps."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}
        self._names: dict[str, str] = {}
        self.probe: Probe | None = None
        """How a broker is asked."""
        self._used: dict[tuple[str, ...], str] = {}
        self.data: dict[str, str] = {}
        """By broker, the id of the data that it had when this process connected last."""

    def learn(self, urls: Sequence[str], options: Mapping[str, Any]) -> None:
        """Note the transport options that *urls* are used with.

        Several with semicolons are one broker, by whichever of them it is spoken of.
        """
        with self._lock:
            for url in urls:
                self._names.update(dict.fromkeys(url.split(";"), url))
                self._record(url).options = dict(options)

    def _record(self, url: str) -> _Record:
        return self._records.setdefault(self._names.get(url, url), _Record())

    def used(self, urls: tuple[str, ...], url: str, first: str = "") -> str | None:
        """Note that *url* of *urls* is used now; return another one that was used before.

        *first*: what counts as used before where none was.
        """
        with self._lock:
            before, self._used[urls] = self._used.get(urls, first or url), url
        return None if before == url else before

    def failed(self, url: str) -> None:
        """Put *url* into back-off: a second at first, longer each time, half a minute at most.

        Of several nodes one may have failed: whether it is whole again has to be asked for.
        """
        with self._lock:
            record = self._record(url)
            record.whole = False
            pause = min(_FIRST_PAUSE_S * 2**record.failures, _LONGEST_PAUSE_S)
            record.failures += 1
            record.answered_at = float("-inf")
            # Jittered, so that not all processes come back in the same moment.
            record.back_off_until = monotonic() + pause * JITTER.uniform(0.8, 1.2)

    def lost_a_node(self, url: str) -> None:
        """Note that *url* is several nodes, and that one was needed and is away."""
        self._record(url).whole = False

    def answered(self, url: str) -> None:
        """Note that *url* works."""
        with self._lock:
            record = self._record(url)
            record.failures, record.back_off_until = 0, 0.0
            record.answered_at = monotonic()

    def in_back_off(self, url: str) -> bool:
        """Whether *url* failed a short while ago."""
        return monotonic() < self._record(url).back_off_until

    def answered_within(self, url: str, seconds: float) -> bool:
        """Whether *url* answered in the last *seconds*, and has not failed since."""
        return monotonic() - self._record(url).answered_at <= seconds

    def soonest(self, urls: Sequence[str]) -> str:
        """Return the URL whose back-off ends first."""
        return min(urls, key=lambda url: self._record(url).back_off_until)

    def ask(self, url: str) -> float:
        """Return the seconds that *url* takes to answer and to accept a write.

        Raises ReliqError when it does not, and puts it into back-off.
        """
        try:
            latency = self._ask(url, whole=False)
        except ReliqError:
            self.failed(url)
            raise
        self.answered(url)
        return latency

    def ask_whole(self, url: str) -> None:
        """Find out whether all nodes of *url*, which answers, accept a write, if one has failed."""
        if self.is_whole(url):
            return
        try:
            self._ask(url, whole=True)
        except ReliqError as exc:
            logger.debug("%s is not whole: %s", without_password(url), exc)
            return
        self._record(url).whole = True

    def is_whole(self, url: str) -> bool:
        """Whether nothing of *url* has failed since it was found to be whole."""
        return self._record(url).whole

    def _ask(self, url: str, *, whole: bool) -> float:
        options = self._record(url).options
        url = self._names.get(url, url)
        if self.probe is None:
            raise BrokerUnavailable(f"{without_password(url)}: nothing is known of its scheme")
        return self.probe(url, options, whole)


BROKERS = Brokers()


def _latencies(urls: Sequence[str]) -> Iterator[tuple[float, str]]:
    for url in urls:
        if BROKERS.in_back_off(url):
            continue
        try:
            yield BROKERS.ask(url), url
        except ReliqError as exc:
            logger.info("%s is passed over: %s", without_password(url), exc)


def primary(urls: Sequence[str]) -> Iterator[str]:
    """Yield the first URL of *urls* that answers, for ever; the first one unasked.

    Where none answers, the one that has been in back-off longest is next.
    """
    yield urls[0]
    while True:
        healthy = next((url for _, url in _latencies(urls)), None)
        yield healthy or BROKERS.soonest(urls)


def healthiest(urls: Sequence[str]) -> Iterator[str]:
    """Yield the URL of *urls* that answers fastest, for ever; the first one unasked."""
    yield urls[0]
    while True:
        found = min(_latencies(urls), default=None)
        yield BROKERS.soonest(urls) if found is None else found[1]


STRATEGIES = {"primary": primary, "healthiest": healthiest}


def admit(url: str, urls: Sequence[str], fresh_s: float) -> None:
    """Raise BrokerUnavailable where another broker of *urls* is to be tried before *url*.

    That is while *url* is in back-off and another one is not; and while the first one has
    answered in the last *fresh_s* seconds and *url* is not the first.
    """
    if len(urls) < 2:  # noqa: PLR2004 - nothing to choose from
        return
    if url != urls[0] and BROKERS.answered_within(urls[0], fresh_s):
        raise BrokerUnavailable(
            f"{without_password(url)} is not needed: {without_password(urls[0])} answers again"
        )
    if BROKERS.in_back_off(url) and not all(BROKERS.in_back_off(other) for other in urls):
        raise BrokerUnavailable(
            f"{without_password(url)} failed a moment ago and is in back-off; "
            "another broker is tried"
        )
