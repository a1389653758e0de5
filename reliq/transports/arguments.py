"""Queue arguments: AMQP's ``x-...`` names, checked before anything is stored."""

from __future__ import annotations

import difflib
from typing import Any

from ..envelope import pack
from ..errors import ConfigurationError

_LONGEST_MS = 10 * 366 * 86_400_000

# argument -> (name in the queue's meta, least, most, what it is)
_NUMBERS = {
    "x-expires": ("expires", 1, _LONGEST_MS, "a whole number of ms, at least 1"),
    "x-message-ttl": ("message_ttl", 0, _LONGEST_MS, "a whole number of ms, at least 0"),
    "x-max-priority": ("max_priority", 0, 255, "a whole number from 0 to 255"),
    "x-visibility-timeout": ("lease", 100, _LONGEST_MS, "a whole number of ms, at least 100"),
}
# Understood by RabbitMQ, without a meaning here: queues are what Redis makes of them.
_IGNORED = frozenset({"x-queue-type", "x-queue-mode", "x-queue-version", "x-queue-master-locator"})


def queue_arguments(
    queue: str, auto_delete: bool, arguments: dict[str, Any] | None
) -> tuple[bytes, dict[str, str]]:
    """Return the declaration as it is stored and compared, and what scripts need of it.

    Raises ConfigurationError that names the queue, the argument, what was
    expected and what it got.
    """
    meta = {"auto_delete": "1"} if auto_delete else {}
    kept: dict[str, Any] = {"auto_delete": True} if auto_delete else {}
    for name, value in sorted((arguments or {}).items()):
        if value is None or name in _IGNORED or not name.startswith("x-"):
            continue
        if name not in _NUMBERS:
            near = difflib.get_close_matches(name, _NUMBERS, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(_NUMBERS))}"
            raise ConfigurationError(f"queue {queue!r}: unknown argument {name!r}: {hint}")
        field, least, most, words = _NUMBERS[name]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ConfigurationError(
                f"queue {queue!r}: expected {name} to be {words}, got: {value!r}"
            )
        meta[field] = str(value)
        kept[name] = value
    return pack(kept), meta
