"""Settings of a queue that an operator changes while it is in use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError, NotFound
from ..message.queue_arguments import FIELDS, WHOLE, queue_arguments
from ..routing.partitions import configure
from ..store.protocol import status_of
from . import partitions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..store.protocol import Store

CHANGEABLE = (
    "x-delivery-limit",
    "x-max-length",
    "x-message-ttl",
    "x-overflow",
    "x-partitions",
    "x-visibility-timeout",
)
"""Those that hold from the next step on, whatever is in the queue."""

_TEXTS = frozenset({"x-overflow", "x-dead-letter-exchange", "x-dead-letter-routing-key"})


def settings(store: Store, queue: str, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Change settings of *queue* (None: back to what was declared); return those that hold.

    Raises NotFound, or ConfigurationError before anything is changed.
    """
    declared = status_of(store, queue).declared
    for name in changes or ():
        if name not in CHANGEABLE:
            raise ConfigurationError(
                f"queue {queue!r}: {name!r} cannot be changed: expected one of "
                f"{', '.join(CHANGEABLE)}"
            )
    _, meta = queue_arguments(queue, False, declared)
    before = store.configure(queue, {})
    if before is None:
        raise NotFound(f"no queue {queue!r}")
    wanted: dict[str, str | None] = {}
    for name, value in (changes or {}).items():
        field = FIELDS[name]
        wanted[field] = meta.get(field) if value is None else _checked(queue, name, value)
    merged = {**before, **wanted}
    if merged.get("overflow") and not (merged.get("max_length") or merged.get("max_bytes")):
        raise ConfigurationError(
            f"queue {queue!r}: x-overflow means nothing without x-max-length or x-max-length-bytes"
        )
    count = wanted.pop("partitions", "")
    after = configure(store, queue, wanted) if wanted else before
    if count != "":
        partitions.change(store, queue, int(count or 1))
        after = store.configure(queue, {})
    if after is None:
        raise NotFound(f"no queue {queue!r}")
    held = {**after, **{field: after[whole] for field, whole in WHOLE.items() if whole in after}}
    return {name: _value(name, held[field]) for name, field in FIELDS.items() if field in held}


def _checked(queue: str, name: str, value: Any) -> str:
    # An overflow is checked on its own here; with what, is for the caller.
    companion = {"x-max-length": 1} if name == "x-overflow" else {}
    _, meta = queue_arguments(queue, False, {name: value, **companion})
    return meta[FIELDS[name]]


def _value(name: str, stored: str) -> Any:
    if name in _TEXTS:
        return stored
    if name == "x-dead-letter-expired":
        return stored == "1"
    return -1 if name == "x-delivery-limit" and stored == "0" else int(stored)
