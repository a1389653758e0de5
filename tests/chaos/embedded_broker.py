"""The embedded broker of a run: a folder that its clients start and share."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import redis

from tests.chaos.broker import Broker, View
from tests.chaos.kind import FaultKind
from tests.support.embedded import Place, slow_disk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.chaos.model import Fault
    from tests.chaos.settings import Brokers
    from tests.support.servers import RedisServer

_SLOW_MS = 300


class EmbeddedBroker(Broker):
    """A server in a folder on a slow disk, which only clients start and restart."""

    second = None
    servers: ClassVar[list[RedisServer]] = []  # type: ignore[misc]

    def __init__(self, *, second: bool = False) -> None:
        assert not second, "an embedded broker stands alone"
        self._stack = ExitStack()
        directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self.place = Place(directory.resolve() / "broker")
        self._stack.callback(self.place.close)
        self._server = slow_disk(directory, _SLOW_MS)

    @property
    def options(self) -> dict[str, object]:
        """The transport options that the URL needs; it outlives its clients for the inspection."""
        return {"embedded_idle": 600, "embedded_server": self._server}

    def url(self, scheme: str) -> str:
        """Return the URL for clients."""
        return self.place.url

    def client(self) -> redis.Redis:
        """Return a client of the server."""
        return redis.Redis(unix_socket_path=self.place.folder.at("broker.sock"), protocol=2)

    def views(self) -> Iterator[View]:
        """Yield the view of this broker."""
        yield View("", self.place.url, self.client)

    def keep_logs(self, directory: Path) -> None:
        """Save the log of keeper and server."""
        log = Path(self.place.folder.at("broker.log"))
        (directory / "broker.txt").write_text(log.read_text(errors="replace"), encoding="utf-8")


class EmbeddedKill(FaultKind):
    """Its confirmed data is in its log; the next client that connects restarts it."""

    name, about = "embedded-kill", "SIGKILL to the server in a folder, its keeper, or both"
    brokers: ClassVar[frozenset[Brokers]] = frozenset({"embedded"})
    of_broker = True
    span = (1.0, 2.0)

    def apply(self) -> Fault:
        """Kill one or both, in either order."""
        broker = self.stage.broker
        assert isinstance(broker, EmbeddedBroker)
        server, keeper = broker.place.servers, broker.place.keepers
        choices = ([*server], [*keeper], [*server, *keeper], [*keeper, *server])
        victims = choices[int(self.strike.chance * 4)]
        broker.place.kill(*victims)
        return self._fault(outage=True, note=f"{victims} of {server} {keeper}")
