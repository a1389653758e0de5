"""Brokers without a configured server: `reliq-embedded://`, SQLite, `filesystem://`."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import redis

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NAMES = ("data_folder_in", "data_folder_out", "processed_folder", "control_folder")


@dataclass(frozen=True)
class Embedded:
    """The folder of a `reliq-embedded://` broker, whose server ends when it is removed."""

    directory: Path

    def url(self, scheme: str) -> str:
        """Return the broker URL of the folder."""
        return f"{scheme}:///{self.directory}"

    def options(self) -> Mapping[str, Any]:
        """Return no options: the URL is sufficient."""
        return {}

    def _client(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(self.directory / "broker.sock"))

    def empty(self) -> None:
        """Delete every key, if a user has started the server."""
        with self._client() as client, suppress(redis.ConnectionError):
            client.flushall()

    def describe(self) -> str:
        """Return its server and version."""
        with self._client() as client:
            server = client.info("server")
        version = server.get("valkey_version") or server["redis_version"]
        return f"{server.get('server_name', 'redis')} {version} in a folder, with its defaults"


@dataclass(frozen=True)
class File:
    """A directory with one database file."""

    directory: Path

    def url(self, scheme: str) -> str:
        """Return the broker URL of the file."""
        return f"{scheme}:///{self.directory / 'broker.db'}"

    def options(self) -> Mapping[str, Any]:
        """Return no options: the URL is sufficient."""
        return {}

    def empty(self) -> None:
        """Remove the file, its log and its locks."""
        _clear(self.directory)

    def describe(self) -> str:
        """Return SQLite's version."""
        return f"SQLite {sqlite3.sqlite_version}, with the transport's defaults"


@dataclass(frozen=True)
class Folder:
    """The folders in which `filesystem://` keeps its messages."""

    directory: Path

    def url(self, scheme: str) -> str:
        """Return the broker URL, which does not name the folders."""
        return f"{scheme}://"

    def options(self) -> Mapping[str, Any]:
        """Return the folders. One program reads what the other writes, so in and out are equal."""
        return {name: str(self.directory / name.replace("_out", "_in")) for name in NAMES}

    def empty(self) -> None:
        """Remove every message and keep the folders."""
        _clear(self.directory)
        for path in set(self.options().values()):
            (self.directory / path).mkdir()

    def describe(self) -> str:
        """Return a description for the report."""
        return "a folder, without fsync"


def _clear(directory: Path) -> None:
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
