"""The contents of a server, to compare what is stored before and after an operation.

A DUMP is not comparable: the server rehashes a hash at any time, and its dump then has another
order.
"""

from __future__ import annotations

from typing import Any

_READ: dict[bytes, tuple[object, ...]] = {
    b"string": ("GET",),
    b"hash": ("HGETALL",),
    b"list": ("LRANGE", 0, -1),
    b"set": ("SMEMBERS",),
    b"zset": ("ZRANGE", 0, -1, "WITHSCORES"),
}


def value_of(client: Any, key: bytes, *, asking: bool = False) -> Any:
    """Return the value of *key*; *asking*: of a slot that a cluster's node imports."""

    def ask(name: object, *rest: object) -> Any:
        if asking:
            client.execute_command("ASKING")
        return client.execute_command(name, key, *rest)

    kind = ask("TYPE")
    name, *rest = _READ[kind]
    return kind, ask(name, *rest)


def contents(client: Any) -> dict[bytes, Any]:
    """Return all keys with their values."""
    return {key: value_of(client, key) for key in client.scan_iter()}
