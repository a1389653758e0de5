"""The servers of a run, each started at its first use and ended with the run."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from benchmarks import clusters, files, rabbitmq, servers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


class Place(Protocol):
    """A private broker of the run: a server on loopback, or a directory."""

    def url(self, scheme: str) -> str:
        """Return the broker URL for this scheme."""

    def options(self) -> Mapping[str, Any]:
        """Return the transport options needed to reach it."""

    def empty(self) -> None:
        """Delete every message, queue and statistic."""

    def describe(self) -> str:
        """Return version and settings in the format of the report."""


_IN_A_DIRECTORY: dict[str, Callable[[Path], Place]] = {
    "embedded": files.Embedded,
    "file-of-kombu": files.File,
    "folder": files.Folder,
}


class Missing(Exception):
    """A server is not available on this machine; the text names what is missing."""


class Places:
    """Starts each place once, at its first use; ends all of them when closed."""

    def __init__(self, executable: str, appendfsync: str = "no") -> None:
        self._executable = executable
        self._appendfsync = appendfsync
        self._stack = ExitStack()
        self._started: dict[str, Place] = {}
        self.missing: dict[str, str] = {}

    def close(self) -> None:
        """End every server and remove its files."""
        self._stack.close()

    def get(self, name: str) -> Place:
        """Return the place of this name; raise Missing, with the reason, if not available."""
        if name in self.missing:
            raise Missing(self.missing[name])
        if name not in self._started:
            try:
                self._started[name] = self._start(name)
            except Missing as missing:
                self.missing[name] = str(missing)
                raise
        return self._started[name]

    def describe(self) -> dict[str, str]:
        """Return the description of each place that was started."""
        return {name: place.describe() for name, place in self._started.items()}

    def _start(self, name: str) -> Place:
        if name == "rabbitmq":
            return self._enter_rabbitmq()
        if name in _IN_A_DIRECTORY:
            # An embedded broker may write while its folder is removed, which ends the broker.
            kept = tempfile.TemporaryDirectory(
                prefix="reliq-benchmark-", ignore_cleanup_errors=True
            )
            return _IN_A_DIRECTORY[name](Path(self._stack.enter_context(kept)))
        executable, settings = self._executable, servers.persistence(self._appendfsync)
        if name.startswith("cluster"):
            masters = int(name.rpartition("-")[2])
            return self._stack.enter_context(clusters.started(executable, settings, masters))
        if name == "redis-synced":
            found = servers.with_waitaof(executable)
            if found is None:
                raise Missing("no server with WAITAOF found (redis-server 7.2 or valkey-server)")
            executable, settings = found, servers.persistence("always")
        server = self._stack.enter_context(servers.started(executable, settings))
        if name == "redis-replicated":
            replica = self._stack.enter_context(servers.started(executable, settings))
            replica.follow(server)
        return server

    def _enter_rabbitmq(self) -> Place:
        if rabbitmq.find() is None:
            raise Missing(rabbitmq.WHAT_TO_INSTALL)
        return self._stack.enter_context(rabbitmq.started())
