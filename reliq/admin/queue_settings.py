"""Settings of a queue for operators: the current values, and changes of the whole queue."""

from __future__ import annotations

from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError
from ..message.queue_arguments import FIELDS, LIMITS, queue_arguments, refuse_divided_limits
from ..message.queue_arguments import WHOLE as WHOLE_FIELDS
from ..routing.partitions import configure, divide
from ..values.protocol import no_queue, status_of
from .names import CHANGEABLE
from .partitions import require_nodes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..values.protocol import Store

# Consumers check the layout of their queues once per restore_interval, by default 5 s. Over a
# cluster, the only consumer of a quiet queue checks it once in four intervals.
_ATTACHED_WITHIN_S = 25.0
_POLL_EVERY_S = 0.1


def _divide(store: Store, queue: str, partitions: int) -> None:
    """Divide *queue* into *partitions*; new ones get messages when they have consumers.

    Waits some seconds for these consumers. Raises as :func:`reliq.routing.partitions.divide`.
    """
    require_nodes(store, queue, partitions)
    until = monotonic() + _ATTACHED_WITHIN_S

    def attached(partition: str) -> None:
        # Read the consumers each time: a dead one never attaches, and others remove it later.
        while not set(store.consumers_of(queue)) <= set(store.consumers_of(partition)):
            if monotonic() > until:
                return
            sleep(_POLL_EVERY_S)

    divide(store, queue, partitions, attached)


_TEXTS = frozenset({"x-overflow", "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-rate"})


def settings(store: Store, queue: str, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Change settings of *queue* (None: restore the declared value); return the current ones.

    Raises NotFound, and ConfigurationError before any change.
    """
    declared = status_of(store, queue).declared
    for name in changes or ():
        if name not in CHANGEABLE:
            raise ConfigurationError(
                f"queue {queue!r}: {name!r} cannot be changed; expected one of "
                f"{', '.join(CHANGEABLE)}"
            )
    _, meta = queue_arguments(queue, False, declared)
    before = store.configure(queue, {})
    if before is None:
        raise no_queue(store, queue)
    wanted: dict[str, str | None] = {}
    for name, value in (changes or {}).items():
        field = FIELDS[name]
        wanted[field] = meta.get(field)
        if value is not None:
            # Check an overflow alone here, and with the current limits below.
            companion = {"x-max-length": 1} if name == "x-overflow" else {}
            wanted[field] = queue_arguments(queue, False, {name: value, **companion})[1].get(field)
    merged = {**before, **wanted}
    if merged.get("overflow") and not (merged.get("max_length") or merged.get("max_bytes")):
        raise ConfigurationError(
            f"queue {queue!r}: x-overflow has no effect without x-max-length or x-max-length-bytes"
        )
    limited = [name for name in LIMITS if merged.get(FIELDS[name])]
    refuse_divided_limits(queue, limited, int(merged.get("partitions") or 1))
    count = wanted.pop("partitions", "")
    after = configure(store, queue, wanted) if wanted else before
    if count != "":
        _divide(store, queue, int(count or 1))
        after = store.configure(queue, {})
    if after is None:
        raise no_queue(store, queue)
    held = {
        **after,
        **{field: after[whole] for field, whole in WHOLE_FIELDS.items() if whole in after},
    }
    return {name: _value(name, held[field]) for name, field in FIELDS.items() if field in held}


def _value(name: str, stored: str) -> Any:
    if name in _TEXTS:
        return stored
    if name == "x-dead-letter-expired":
        return stored == "1"
    return -1 if name == "x-delivery-limit" and stored == "0" else int(stored)
