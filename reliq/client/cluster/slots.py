"""Slots: this process's map of the slots to the nodes of a cluster, and the cluster's address.

A MOVED reply corrects one slot at once. The whole map is queried when a node does not answer or a
slot is moving, by one thread at a time, at most once a second. The query goes to the nodes of the
last map, then to those of the URL, which may all be gone. A map without most of the known masters
comes from a node that has left the cluster, and may be in another one now.
"""

from __future__ import annotations

import random
from binascii import crc_hqx
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

from ...errors import BrokerRefused, BrokerUnavailable, ConfigurationError, ReliqError, again
from ...forks import OwnLock
from ..connect import Address, ask_once
from ..error_replies import code_of
from ..urls import PORT, address_of, read, together

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ...options import Options
    from ..connect import Dialled

SCHEME = "reliq-cluster"
SLOTS = 16384
# The range of random pauses, so that processes that lose a node together do not query together.
_LEAST_S, _MOST_S = 1.0, 1.5


class Place(NamedTuple):
    """The host and port of a node."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return its name for messages."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@lru_cache(maxsize=65536)
def slot_of(key: str | bytes) -> int:
    """Return the slot of *key*."""
    name = key if isinstance(key, bytes) else key.encode("utf-8", "surrogateescape")
    tag, closed, _ = name.partition(b"{")[2].partition(b"}")
    return crc_hqx(tag if tag and closed else name, 0) % SLOTS


class SlotMap:
    """The slots of one cluster, shared by all connections of a process to it."""

    _lock = OwnLock()
    """Guards the map. No thread waits while it holds the lock. Each step leaves a usable map."""
    _asking = OwnLock()
    """Held by the thread that queries a node, while others wait for the answer. A nested refresh
    queries as well."""

    def __init__(self, seeds: tuple[Address, ...], reachable: Mapping[Place, Place]) -> None:
        self._seeds = seeds
        self._reachable = dict(reachable)
        self._slots: list[Place | None] = [None] * SLOTS
        self._named = [Place(seed.host, seed.port) for seed in seeds]
        # The nodes of the last map, including replicas.
        self._nodes: set[Place] = set()
        # Replica -> its master.
        self._replicas: dict[Place, Place] = {}
        self._queried_at = -inf
        self._pause_s = 0.0
        self._failure: ReliqError | None = None
        self._random = random.Random()  # noqa: S311 - no secret
        self.layouts: defaultdict[str, dict[str, int]] = defaultdict(dict)
        """Prefix -> ``Store.partitions``, shared because a new connection may not reach the node
        that has them. Each use is one step, without a lock."""
        self.reached = set(self._named)
        """The nodes of the URL, and those that were reached before."""
        self.unreachable: set[Place] = set()
        """The nodes that did not answer the last query, over any connection."""

    def place_of(self, slot: int) -> Place | None:
        """Return the node that has *slot*; None if unknown."""
        return self._slots[slot]

    def address(self, place: Place) -> Address:
        """Return the address of a node."""
        return replace(self._seeds[0], host=place.host, port=place.port)

    @property
    def masters(self) -> set[Place]:
        """The nodes that have slots."""
        return set(self.sizes)

    @property
    def sizes(self) -> Counter[Place]:
        """The number of slots of each node."""
        with self._lock:
            return Counter(place for place in self._slots if place is not None)

    @property
    def uncovered(self) -> int:
        """The number of slots without a node."""
        with self._lock:
            return self._slots.count(None)

    def has_replica(self, place: Place) -> bool:
        """Whether a node has a replica in the last map."""
        return place in self._replicas.values()

    @property
    def replicas(self) -> set[Place]:
        """The replicas, which may take over the slots of their masters."""
        return set(self._replicas)

    def moved(self, slot: int, host: str, port: int) -> None:
        """Record that *slot* is at another node."""
        place = self._to_reach(Place(host, port))
        with self._lock:
            self._slots[slot] = place
            self._nodes.add(place)

    def _to_reach(self, place: Place) -> Place:
        return self._reachable.get(place, place)

    # -- the whole map

    @property
    def age_s(self) -> float:
        """The seconds since the last query for the map."""
        return monotonic() - self._queried_at

    def refresh(self, options: Options, name: str) -> None:
        """Query a node for the map, unless a recent query had a result. Blocks.

        Raises BrokerUnavailable if no node answers, and ConfigurationError if a node that answers
        is not in a cluster.
        """
        queried_at = self._queried_at
        with self._asking:
            if self._queried_at == queried_at and self.age_s >= self._pause_s:
                failure: ReliqError | None = None
                try:
                    self._take(self._ask_one(options, name))
                except ReliqError as exc:
                    failure = again(exc)
                # After an interruption, nothing is recorded, and the next caller queries.
                self._failure = failure
                self._pause_s = self._random.uniform(_LEAST_S, _MOST_S)
                self._queried_at = monotonic()
            if self._failure is not None:
                raise again(self._failure)

    def _ask_one(self, options: Options, name: str) -> list[tuple[int, int, list[Place]]]:
        with self._lock:
            places = list(self._nodes)
        self._random.shuffle(places)
        places += [place for place in self._named if place not in places]
        places.sort(key=self.unreachable.__contains__)  # unreachable nodes last
        doubtful: list[tuple[int, int, list[Place]]] = []
        refusals: list[str] = []
        no_cluster: ConfigurationError | None = None
        masters = self.masters
        for place in places:
            try:
                reply = list(self._ask(place, options, name))
                reported = {place for *_, places in reply for place in places}
                if 2 * len(masters & reported) >= len(masters):  # it has most of the known masters
                    return reply
                doubtful = doubtful or reply
            except (BrokerUnavailable, BrokerRefused) as exc:  # noqa: PERF203 - one of few
                refusals.append(str(exc))
            except ConfigurationError as exc:  # other nodes may be in a cluster
                no_cluster = again(exc)
        if doubtful:
            return doubtful  # no node that answers contradicts it
        if no_cluster is not None and not refusals:
            raise again(no_cluster)
        if no_cluster is not None:
            refusals.append(str(no_cluster))
        raise BrokerUnavailable(
            f"none of {len(places)} known nodes of the cluster answers: {'; '.join(refusals)}"
        )

    def _ask(
        self, place: Place, options: Options, name: str
    ) -> Iterator[tuple[int, int, list[Place]]]:
        address = self.address(place)
        try:
            reply = ask_once(address, options, name, "CLUSTER", "SLOTS")
        except BrokerRefused as exc:
            raise _explained(exc, address) from exc
        if not reply:
            raise BrokerUnavailable(f"{address} knows no node that has slots")
        for first, last, *nodes in reply:
            yield first, last, [self._to_reach(_place(node, place)) for node in nodes]

    def _take(self, reply: list[tuple[int, int, list[Place]]]) -> None:
        slots: list[Place | None] = [None] * SLOTS
        for first, last, (master, *_) in reply:
            slots[first : last + 1] = [master] * (last + 1 - first)
        with self._lock:
            self._slots = slots
            self._nodes = {place for *_, places in reply for place in places}
            self._replicas = {other: master for *_, (master, *rest) in reply for other in rest}
            self.unreachable &= self._nodes


def _place(node: Any, queried: Place) -> Place:
    """Return the place of a node in a reply; a node without a name is the queried node *asked*."""
    host, port, *_ = node
    name = (host or b"").decode()
    return Place(queried.host if name in {"", "?"} else name, int(port))


def _explained(error: BrokerRefused, address: Address) -> ReliqError:
    if "cluster support disabled" in str(error):
        return ConfigurationError(
            f"{address} is no node of a cluster: use reliq:// for a single server, or name nodes "
            "that have cluster-enabled yes"
        )
    if code_of(error.reply) == "NOPERM":
        return BrokerRefused(
            f"{address} refuses this user the query for the slots of the cluster: give the user, "
            "at every node, the rule that `reliq acl --cluster` prints"
        )
    return again(error)


# Identity of a cluster -> its map, shared by the whole process.
_maps: WeakValueDictionary[object, SlotMap] = WeakValueDictionary()


@dataclass(frozen=True)
class ClusterAddress:
    """A cluster, given by some of its nodes. The repr shows no password."""

    seeds: tuple[Address, ...]
    reachable: tuple[tuple[Place, Place], ...] = ()
    """Announced places, each with the place to connect to instead."""
    slots: SlotMap = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Share the map with equal addresses of this process."""
        slots = SlotMap(self.seeds, dict(self.reachable))
        object.__setattr__(self, "slots", _maps.setdefault(self.identity, slots))

    def __str__(self) -> str:
        """Return a usable URL for messages, without secrets."""
        first, *others = (f"{SCHEME}://{Place(seed.host, seed.port)}" for seed in self.seeds)
        tls = "" if self.seeds[0].tls is None else "?ssl=true"
        return ";".join([f"{first}{tls}", *others])

    @property
    def identity(self) -> tuple[object, ...]:
        """Return the identity of the cluster and user, independent of the order of the nodes."""
        return (SCHEME, tuple(sorted(str(seed.identity) for seed in self.seeds)), self.reachable)

    @property
    def password(self) -> Any:
        """The password, which is the same at every node."""
        return self.seeds[0].password

    def connect(self, options: Options, name: str) -> Dialled:
        """Raise an error: connect to one node instead, by its address in :class:`SlotMap`."""
        raise NotImplementedError(f"{self}: {name} requests one connection, {options!r}")


def _mapped(text: str) -> Place:
    host, _, port = text.rpartition(":")
    return Place(host.strip("[]"), int(port))


def cluster_address(
    urls: Sequence[str],
    options: Options,
    username: str | None = None,
    password: Any = None,
    tls: Any = None,
) -> ClusterAddress:
    """Return the address of *urls*, one for each node, joined by :func:`..urls.together`."""
    parsed = [read(url, (SCHEME,)) for url in urls]
    whole = together(parsed, username=username, password=password, tls=tls)
    if whole.path not in {"", "0"}:
        raise ConfigurationError(
            f"expected no database, or 0, in a {SCHEME}:// URL: Redis Cluster has no other. Use "
            "the transport option global_keyprefix to separate applications"
        )
    first = address_of(replace(whole, path=""))
    places = dict.fromkeys((item.host or "localhost", item.port or PORT) for item in parsed)
    reachable = tuple((_mapped(name), _mapped(other)) for name, other in options.address_map)
    seeds = tuple(replace(first, host=host, port=port) for host, port in places)
    return ClusterAddress(seeds, reachable)
