"""An embedded broker: a Redis server in a folder, started before a connection if necessary.

Only its address and ``confirm="fsynced"`` differ from any other Redis. The server does not sync
(see :mod:`reliq.embedded.keeper`), but its files are on this machine.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...embedded.folder import SCHEME, Folder
from ...embedded.keeper import LOOKS, logs, sync
from ...embedded.start import ensure
from ...errors import BrokerRefused, BrokerTimeout, BrokerUnavailable, NotConfirmed
from ...lazy import Lazy
from .. import redis as engine
from .confirm import Confirmer
from .connect import Address
from .store import RedisStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...options import Confirm, Options
    from ...store.values import Publication
    from .connect import Dialled
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

    def connect(self, options: Options, name: str) -> Dialled:
        """Open a connection. Raises BrokerUnavailable, with the reason if it cannot start."""
        tries, name = (2, name) if self.create else (1, f"{LOOKS}{name}")
        while True:
            if self.create:
                ensure(self.folder, options)
            else:
                self.folder.require(create=False)
            try:
                with self.folder.socket() as path:
                    return Address(path=path, shown=str(self)).connect(options, name)
            except BrokerUnavailable as exc:
                tries -= 1  # a broker that has just ended is started again, once
                if not tries or isinstance(exc, BrokerTimeout):
                    raise


class EmbeddedConfirmer(Confirmer):
    """The confirmations of an embedded broker: this process syncs the files, not the server."""

    def __init__(self, folder: Folder) -> None:  # needs no wire
        self._folder = folder

    def require_confirm(self, level: Confirm) -> None:
        """Raise BrokerRefused for a confirmation by replicas: there are none."""
        if level == "replicated":
            raise BrokerRefused(
                f"{self._folder}: an embedded broker has no replicas: use confirm='fsynced'; "
                "nothing was stored"
            )

    def confirm(
        self, level: Confirm, replicas: int, timeout_ms: int, publications: Sequence[Publication]
    ) -> None:
        """Sync the server's files, which are on this machine. Raises NotConfirmed."""
        del replicas, timeout_ms, publications
        self.require_confirm(level)
        try:
            for path in logs(self._folder.path) if level == "fsynced" else ():
                with suppress(FileNotFoundError):  # rewritten: the server itself has synced it
                    sync(path)
        except OSError as exc:
            raise NotConfirmed(
                f"{self._folder}: stored, but the disk does not confirm it: {exc}; publishing "
                "it again with the same properties is safe and stores it once"
            ) from exc


class EmbeddedStore(RedisStore):
    """A store at an embedded broker."""

    def __init__(self, address: EmbeddedAddress, options: Options, consumer: str) -> None:
        super().__init__(address, options, consumer)
        self._folder = address.folder

    @Lazy
    def confirmer(self) -> EmbeddedConfirmer:
        """See :attr:`RedisStore.confirmer`."""
        return EmbeddedConfirmer(self._folder)

    @Lazy
    def reads(self) -> RedisReads:
        """See :attr:`RedisStore.reads`."""
        return engine.EmbeddedReads(self._wire, self._prefix)
