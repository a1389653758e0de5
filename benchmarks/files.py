"""Brokers that are files: an SQLite database, or the folder of Kombu's `filesystem://`."""

from __future__ import annotations

import shutil
import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NAMES = ("data_folder_in", "data_folder_out", "processed_folder", "control_folder")


@dataclass(frozen=True)
class File:
    """A directory with one database file in it."""

    directory: Path

    def url(self, scheme: str) -> str:
        """Return the broker URL of the file."""
        return f"{scheme}:///{self.directory / 'broker.db'}"

    def options(self) -> Mapping[str, Any]:
        """Return nothing: the URL says all."""
        return {}

    def empty(self) -> None:
        """Remove the file, its log and its locks."""
        _clear(self.directory)

    def describe(self) -> str:
        """Return SQLite's version."""
        return f"SQLite {sqlite3.sqlite_version}, each transport's own defaults"


@dataclass(frozen=True)
class Folder:
    """The folders that `filesystem://` keeps its messages in."""

    directory: Path

    def url(self, scheme: str) -> str:
        """Return the broker URL, which says nothing of the place."""
        return f"{scheme}://"

    def options(self) -> Mapping[str, Any]:
        """Return the folders; what one program writes, the other reads: in and out are one."""
        return {name: str(self.directory / name.replace("_out", "_in")) for name in NAMES}

    def empty(self) -> None:
        """Remove every message and leave the folders."""
        _clear(self.directory)
        for path in set(self.options().values()):
            (self.directory / path).mkdir()

    def describe(self) -> str:
        """Return what there is to say."""
        return "a folder, no fsync"


def _clear(directory: Path) -> None:
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
