"""The compared transports, and how a program connects to each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from kombu import Connection, Queue

if TYPE_CHECKING:
    from collections.abc import Mapping

RELIQ, KOMBU = "reliq", "kombu"
CLASSIC, QUORUM = "rabbitmq-classic", "rabbitmq-quorum"
BARE, CLIENT, TOOL = "hiredis", "redis-py", "redis-benchmark"
EMBEDDED, SQLA, FILESYSTEM = "reliq-embedded", "sqla", "filesystem"
CHORD, CHORD_OF_OURS = "chord", "chord-over-reliq"
CLUSTER, CLUSTER_OF_ONE = "reliq-cluster", "reliq-cluster-of-one"


class Broker(TypedDict):
    """The data with which a measured program connects to its broker; passed as JSON."""

    url: str
    options: dict[str, Any]
    queue_arguments: dict[str, Any]


@dataclass(frozen=True)
class Peer:
    """A transport by its URL scheme, and the kind of its server.

    `pace` is its share of the full number of messages. A transport that is ten times slower gets a
    tenth, so that each takes about the same time. Rates are compared.
    """

    name: str
    label: str
    scheme: str
    place: str
    pace: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)
    queue_arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ours(self) -> bool:
        """Whether it is one of reliq's schemes."""
        return is_reliq(self.scheme)

    def unacked_index(self, queue: str) -> str:
        """Return the key of the zset with one entry for each unacked message of the queue."""
        return f"reliq:{{{queue}}}:unacked_index" if self.ours else "unacked_index"

    def audit(self, url: str) -> None:
        """Raise unless reliq's ledger balances in every queue; other peers have none."""
        if not self.ours:
            return
        from reliq.admin import Inspector

        with Inspector(url) as inspector:
            wrong = [result for result in inspector.audit() if not result.balanced]
        if wrong:
            raise AssertionError(f"the ledger does not balance: {wrong}")


ALL = {
    peer.name: peer
    for peer in (
        Peer(RELIQ, "reliq", "reliq", "redis"),
        Peer(KOMBU, "Kombu `redis://`", "redis", "redis-of-kombu", pace=0.1),
        Peer(CLASSIC, "RabbitMQ, classic, no confirms", "pyamqp", "rabbitmq", pace=0.4),
        Peer(
            QUORUM,
            "RabbitMQ, quorum, confirms",
            "pyamqp",
            "rabbitmq",
            pace=0.3,
            options={"confirm_publish": True},
            queue_arguments={"x-queue-type": "quorum"},
        ),
        Peer("reliq-replicated", "reliq, one replica", "reliq", "redis-replicated"),
        Peer("reliq-fsynced", "reliq, appendfsync always", "reliq", "redis-synced"),
        Peer(BARE, "bare hiredis loop", "raw", "redis-of-kombu"),
        Peer(CLIENT, "bare redis-py loop", "raw", "redis-of-kombu", pace=0.5),
        Peer(TOOL, "redis-benchmark, one client", "raw", "redis-of-kombu"),
        Peer(CHORD, "Celery's chord, Kombu `redis://`", "redis", "redis-of-kombu"),
        Peer(CHORD_OF_OURS, "Celery's chord, reliq", "reliq", "redis"),
        Peer(CLUSTER, "reliq, cluster of 3 nodes", "reliq-cluster", "cluster-3"),
        Peer(CLUSTER_OF_ONE, "reliq, cluster of one node", "reliq-cluster", "cluster-1"),
        Peer(EMBEDDED, "reliq-embedded", "reliq-embedded", "embedded", pace=0.8),
        Peer(SQLA, "Kombu `sqla+sqlite://`", "sqla+sqlite", "file-of-kombu", pace=0.02),
        Peer(FILESYSTEM, "Kombu `filesystem://`", "filesystem", "folder", pace=0.1),
    )
}


def is_reliq(url_or_scheme: str) -> bool:
    """Return whether a URL or scheme is one of reliq's."""
    return url_or_scheme.startswith("reliq")


def connect(broker: Broker, **transport_options: Any) -> Connection:
    """Open a Kombu connection; importing reliq registers its schemes with plain Kombu."""
    if is_reliq(broker["url"]):
        import reliq  # noqa: F401  # registers the schemes
    options = {**broker["options"], **transport_options}
    connection = Connection(broker["url"], transport_options=options)
    connection.connect()
    return connection


def queue_of(broker: Broker, name: str, **arguments: Any) -> Queue:
    """Return the queue of this name with the peer's arguments."""
    return Queue(name, queue_arguments=broker["queue_arguments"] or None, **arguments)
