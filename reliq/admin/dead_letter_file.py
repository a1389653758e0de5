"""Dead letters in a file: one JSON object per line.

The first line names the export. Each further line is a dead letter with a number. An import stores
a dead letter under the name of its export and its number. A file that is read twice therefore
stores each dead letter once.
"""

from __future__ import annotations

import base64
import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from ..errors import ConfigurationError
from ..message.delivery_tag import is_tag
from ..values.inspection import DeadLetter
from ..values.values import Move
from .names import REASONS

if TYPE_CHECKING:
    from pathlib import Path

_VERSION = 1
# The largest integer that Lua's numbers represent exactly.
_MOST = 2**53
_KEPT = ("tag", "reason", "count", "consumer", "error", "died_ms")


@dataclass(slots=True)
class Export:
    """An export file that is being written. tags: the dead letters in it."""

    id: str
    path: Path
    file: IO[bytes]
    tags: set[str]
    number: int

    def write(self, dead_letter: DeadLetter) -> None:
        """Append *dead_letter*."""
        self.number += 1
        record = {
            "number": self.number,
            **{name: getattr(dead_letter, name) for name in ("task", "id", *_KEPT)},
            "envelope": base64.b64encode(dead_letter.envelope or b"").decode(),
        }
        self.file.write(json.dumps(record).encode() + b"\n")
        self.tags.add(dead_letter.tag)

    def complete(self) -> None:
        """Sync and close the file, and read it back as an import would.

        Raises OSError, and ConfigurationError if an import would refuse or omit a dead letter.
        """
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        _, moves = read(self.path)
        if self.tags != {move.tag for move in moves}:
            raise ConfigurationError(f"{str(self.path)!r} was changed while it was written")

    def close(self) -> None:
        """Close the file. If the last write fails, resume repeats it."""
        with suppress(OSError):
            self.file.close()


def begin(path: Path, queue: str, broker: str, now_ms: int) -> Export:
    """Create a file private to this user; raises ConfigurationError if it exists."""
    try:
        # The file holds messages. O_EXCL refuses links, even dangling ones.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        file = os.fdopen(os.open(path, flags, 0o600), "wb")
    except OSError as exc:
        hint = "; resume the export, or choose another path" if path.exists() else ""
        raise ConfigurationError(f"cannot write {str(path)!r}: {exc.strerror}{hint}") from exc
    name = os.urandom(8).hex()
    header = {"reliq_dead_letters": _VERSION, "id": name, "queue": queue}
    header |= {"broker": broker, "exported_ms": now_ms}
    file.write(json.dumps(header).encode() + b"\n")
    return Export(name, path, file, set(), 0)


def resume(path: Path, queue: str) -> Export:
    """Open the file of an interrupted export, and remove an incomplete last line."""
    name, header, records, whole = _scan(path)
    if header.get("queue") != queue:
        raise ConfigurationError(
            f"{str(path)!r} holds dead letters of {header.get('queue')!r}, not of {queue!r}"
        )
    try:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC), "r+b")
    except OSError as exc:
        raise ConfigurationError(f"cannot write {str(path)!r}: {exc.strerror}") from exc
    file.truncate(whole)
    file.seek(whole)
    last = max((record["number"] for record in records), default=0)
    return Export(name, path, file, {record["tag"] for record in records}, last)


def _scan(path: Path) -> tuple[str, dict[str, Any], list[dict[str, Any]], int]:
    """Return the export's name, the header, the records, and the bytes of complete lines."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as exc:
        raise ConfigurationError(f"cannot read {str(path)!r}: {exc.strerror}") from exc
    whole, parsed = 0, []
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n") and number == len(lines):
            break  # the writer was interrupted
        try:
            record = json.loads(line)
        except ValueError as exc:
            raise _wrong(path, number, "not JSON") from exc
        if not isinstance(record, dict):
            raise _wrong(path, number, "not an object")
        parsed.append(record)
        whole += len(line)
    if not parsed or parsed[0].get("reliq_dead_letters") != _VERSION:
        raise ConfigurationError(f"{str(path)!r} is not an export of dead letters of this version")
    for number, record in enumerate(parsed[1:], 2):
        _check(path, number, record)
    name = parsed[0].get("id")
    if not isinstance(name, str) or not re.fullmatch(r"[0-9a-f]{16}", name):
        raise _wrong(path, 1, "expected id to be 16 hexadecimal digits")
    return name, parsed[0], parsed[1:], whole


def _wrong(path: Path, line: int, what: str) -> ConfigurationError:
    return ConfigurationError(f"{str(path)!r}, line {line}: {what}")


def _check(path: Path, line: int, record: dict[str, Any]) -> None:
    for name in ("number", *_KEPT, "envelope"):
        kind = int if name in {"number", "count", "died_ms"} else str
        if not isinstance(record.get(name), kind) or isinstance(record[name], bool):
            raise _wrong(path, line, f"expected {name} to be of type {kind.__name__}")
    if record["number"] < 1 or record["count"] < 0 or record["died_ms"] < 1:
        raise _wrong(path, line, "number, count or died_ms is too small")
    if max(record["number"], record["count"], record["died_ms"]) > _MOST:
        raise _wrong(path, line, "number, count or died_ms is too large")
    try:
        (record["consumer"] + record["error"]).encode()
    except UnicodeEncodeError as exc:
        raise _wrong(path, line, "consumer or error is not text") from exc
    if not is_tag(record["tag"]) or "|" in record["consumer"]:
        raise _wrong(path, line, "tag or consumer is not in reliq's format")
    if record["reason"] not in REASONS:
        raise _wrong(path, line, f"expected reason to be one of {', '.join(REASONS)}")


def read(path: Path) -> tuple[str, list[Move]]:
    """Return the name of the export, and its dead letters as moves for the store to accept.

    Checks the whole file; raises ConfigurationError with the line number.
    """
    name, _, records, _ = _scan(path)
    moves = []
    for line, record in enumerate(records, 2):
        try:
            envelope = base64.b64decode(record["envelope"], validate=True)
        except ValueError as exc:
            raise _wrong(path, line, "the envelope is not base64") from exc
        dead_letter = DeadLetter(**{name: record[name] for name in _KEPT}, envelope=envelope)
        tag, number, failed = dead_letter.tag, record["number"], dead_letter.count
        moves.append(Move(tag, number, envelope, failed=failed, dead_letter=dead_letter))
    return name, moves
