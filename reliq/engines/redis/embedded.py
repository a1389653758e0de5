"""The server in a folder as a Redis: started before each connection where it does not run.

Its rules are those of any Redis. Of its own are where it is, and what ``confirm="fsynced"`` is: it
syncs nothing by itself (see :mod:`reliq.embedded.keeper`), but its files are on this machine.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...embedded.folder import SCHEME, Folder
from ...embedded.keeper import LOOKS, logs, sync
from ...embedded.start import STARTS_WITHIN_S, ensure
from ...errors import BrokerRefused, BrokerTimeout, BrokerUnavailable, NotConfirmed, again
from .connect import Address, dial
from .store import RedisStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    import redis

    from ...options import Confirm, Options
    from ...store.inspection import BrokerInfo, Finding
    from ...store.values import Publication

_OF_A_NETWORK = frozenset({"login", "replication", "tcp-keepalive"})

__all__ = ["SCHEME", "EmbeddedAddress", "EmbeddedStore"]


@dataclass(frozen=True)
class EmbeddedAddress:
    """The broker in a folder. Without *create* it is only looked at: nothing is started."""

    folder: Folder
    create: bool = True

    def __str__(self) -> str:
        """Return the URL that names it."""
        return str(self.folder)

    @property
    def identity(self) -> tuple[object, ...]:
        """Return what two of them must share to be the same broker."""
        return (SCHEME, self.folder.path)

    def connect(self, options: Options, name: str) -> redis.connection.AbstractConnection:
        """Open a connection; raises BrokerUnavailable, with the reason where it cannot start.

        Goes to the next server where one has just ended.
        """
        deadline = time.monotonic() + STARTS_WITHIN_S
        while True:
            try:
                if self.create:
                    ensure(self.folder, options)
                    return self._dial(options, name)
                self.folder.require(create=False)
                return self._dial(options, f"{LOOKS}{name}")
            except FileNotFoundError as exc:
                error = BrokerUnavailable(
                    f"{self}: it does not run, and looking at it does not start it; start the "
                    f"application, or: reliq embedded run {self.folder.path} ({exc.strerror})"
                )
            except BrokerUnavailable as exc:
                error = again(exc)
            self.folder.raise_remembered()
            final = error.reply or isinstance(error, BrokerTimeout) or not self.create
            if final or time.monotonic() > deadline:
                raise again(error)
            time.sleep(0.01)

    def _dial(self, options: Options, name: str) -> redis.connection.AbstractConnection:
        with self.folder.socket() as path:
            address = Address(path=path)
            try:
                return dial(address, options, name)
            except BrokerUnavailable as exc:
                error = type(exc)(str(exc).replace(str(address), str(self)))
                error.reply = exc.reply
                raise again(error) from exc


class _FileConfirmer:
    """Confirms by an fdatasync of the server's files, which are this machine's own."""

    def __init__(self, address: EmbeddedAddress) -> None:
        self._address = address

    def require_confirm(self, level: Confirm) -> None:
        """Raise BrokerRefused for a confirmation by replicas: there are none."""
        if level == "replicated":
            raise BrokerRefused(
                f"{self._address}: an embedded broker has no replicas: use confirm='fsynced'; "
                "nothing was stored"
            )

    def confirm(
        self, level: Confirm, replicas: int, timeout_ms: int, publications: Sequence[Publication]
    ) -> None:
        """Bring what was stored to the disk; raises NotConfirmed."""
        del replicas, timeout_ms, publications
        self.require_confirm(level)
        if level != "fsynced":
            return
        try:
            for path in logs(self._address.folder.path):
                with suppress(FileNotFoundError):  # rewritten: synced by the server itself
                    sync(path)
        except OSError as exc:
            raise NotConfirmed(
                f"{self._address}: stored, but the disk does not confirm it: {exc}; publishing "
                "it again with the same properties is safe and stores it once"
            ) from exc


class EmbeddedStore(RedisStore):
    """A store at an embedded broker."""

    def __init__(self, address: EmbeddedAddress, options: Options, consumer: str) -> None:
        super().__init__(address, options, consumer)
        self._confirmer = _FileConfirmer(address)
        self._address = address

    def about(self) -> BrokerInfo:
        """Return what the server says of itself."""
        about = super().about()
        fsync = "second" if about.persistence == "AOF no" else "always"
        return replace(about, persistence=f"AOF {fsync}")

    def diagnose(self) -> list[Finding]:
        """Look at what can be wrong: no login, replica or network belongs to it."""
        return [
            item
            for item in super().diagnose()
            if item.check not in _OF_A_NETWORK and "without fsync" not in item.message
        ]
