"""An embedded broker: a Redis server in a folder, started before a connection if necessary.

Only its address and ``confirm="fsynced"`` differ from any other Redis. The server does not sync
(see :mod:`reliq.embedded.keeper`), but its files are on this machine.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import store as engine
from ..client.connect import Address
from ..embedded.folder import SCHEME, Folder
from ..embedded.keeper import PASSIVE, ROOM, logs, sync
from ..embedded.start import ensure
from ..errors import BrokerRefused, BrokerTimeout, BrokerUnavailable
from ..lazy import Lazy
from .confirm import LOST, Confirmer, knows_all, not_confirmed
from .store import RedisStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..client.commands import Commands
    from ..client.connect import Dialled
    from ..options import Confirm, Options
    from ..values.values import Publication, Wanted
    from .reads import RedisReads


@dataclass(frozen=True)
class EmbeddedAddress:
    """The broker in a folder. Without *create*, it is not started."""

    folder: Folder
    create: bool = True

    def __str__(self) -> str:
        """Return the broker's URL."""
        return str(self.folder)

    @property
    def identity(self) -> tuple[object, ...]:
        """Return the identity of the broker."""
        return (SCHEME, self.folder.path)

    @property
    def advice(self) -> dict[str, str]:
        """The advice on an error reply, by its code, if the disk is the reason."""
        if not self.folder.read("keeper.lock")[0].get("scarce"):
            return {}
        less = f"{ROOM // 10**6} MB of its disk are free, or soon will be: free some space"
        return {"OOM": f"less than {less}"}

    def connect(self, options: Options, name: str) -> Dialled:
        """Open a connection. Raises BrokerUnavailable, with the reason if it cannot start."""
        tries, name = (2, name) if self.create else (1, f"{PASSIVE}{name}")
        while True:
            if self.create:
                ensure(self.folder, options)
            else:
                self.folder.require(create=False)
            try:
                with self.folder.translated(), self.folder.socket() as path:
                    return Address(path=path, shown=str(self)).connect(options, name)
            except BrokerUnavailable as exc:
                tries -= 1  # a broker that has just ended is started again, once
                if not tries or isinstance(exc, BrokerTimeout):
                    raise


class EmbeddedConfirmer(Confirmer):
    """The confirmations of an embedded broker: this process syncs the files, not the server."""

    def __init__(self, wire: Commands, prefix: str, folder: Folder) -> None:
        super().__init__(wire, prefix)
        self._folder = folder

    def require_confirm(self, level: Confirm) -> None:
        """Raise BrokerRefused for a confirmation by replicas: there are none."""
        if level == "replicated":
            raise BrokerRefused(
                f"{self._folder}: an embedded broker has no replicas: use confirm='fsynced'; "
                "nothing was stored"
            )

    def confirm(self, wanted: Wanted, publications: Sequence[Publication]) -> None:
        """Sync the server's files, which are on this machine. Raises NotConfirmed.

        The steps have this order: the server has written all to its files, they are synced, and
        they are those of this server.
        """
        self.require_confirm(wanted.level)
        numbers = self._numbers(publications)
        commands = [*(("HGET", *place) for place in numbers), ("INFO", "server")]
        *stored, server, log = self._call(
            ("INFO", "persistence"), wanted.timeout_ms / 1000, "the messages are stored", commands
        )
        if not knows_all(numbers, stored):
            reason: object = LOST
        elif b"aof_last_write_status:ok" not in log:
            reason = "the server cannot write its log: check its disk"
        else:
            reason = self._sync(server)
        if reason:
            raise not_confirmed(self._folder, wanted.level, publications, str(reason))

    def _sync(self, server: bytes) -> object:
        """Sync the files; return the reason if they are not on disk, or not those of *server*."""
        synced = False
        try:
            for path in logs(self._folder.path):
                with suppress(FileNotFoundError):  # rewritten: the server itself has synced it
                    sync(path)
                    synced = True
            state = self._folder.state()
        except OSError as exc:
            return exc
        run: str = state.get("run", "")  # a keeper of an earlier version does not tell it
        if synced and state["runs"] and f"run_id:{run}".encode() in server:
            return None
        return "the broker's folder was removed, moved or replaced"


class EmbeddedStore(RedisStore):
    """A store at an embedded broker."""

    def __init__(self, address: EmbeddedAddress, options: Options, consumer: str) -> None:
        super().__init__(address, options, consumer)
        self._folder = address.folder

    @Lazy
    def confirmer(self) -> EmbeddedConfirmer:
        """See :attr:`RedisStore.confirmer`."""
        return EmbeddedConfirmer(self._wire, self._prefix, self._folder)

    @Lazy
    def reads(self) -> RedisReads:
        """See :attr:`RedisStore.reads`."""
        return engine.EmbeddedReads(self._wire, self._prefix)
