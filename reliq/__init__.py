"""reliq: a message transport for Kombu and Celery that loses nothing.

Importing it makes ``reliq://``, ``reliqs://`` and ``reliq-unix://`` known to
Kombu. A Celery process needs no import: see :mod:`reliq.plugin`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._version import __version__
from .errors import (
    BatchClosed,
    BatchUncertain,
    BrokerRefused,
    BrokerTimeout,
    BrokerUnavailable,
    ConfigurationError,
    Failed,
    MessageRefused,
    NotConfirmed,
    NotFound,
    PartlyPublished,
    PreconditionFailed,
    QueueFull,
    ReliqError,
    Unroutable,
)
from .transports import register

if TYPE_CHECKING:
    from .batches import Batch, add_jobs, cancelled, current_batch, progress, report
    from .claims import once
    from .integrations.middleware import Middleware, add_middleware
    from .many import publish_many

__all__ = [
    "Batch",
    "BatchClosed",
    "BatchUncertain",
    "BrokerRefused",
    "BrokerTimeout",
    "BrokerUnavailable",
    "ConfigurationError",
    "Failed",
    "MessageRefused",
    "Middleware",
    "NotConfirmed",
    "NotFound",
    "PartlyPublished",
    "PreconditionFailed",
    "QueueFull",
    "ReliqError",
    "Unroutable",
    "__version__",
    "add_jobs",
    "add_middleware",
    "cancelled",
    "current_batch",
    "once",
    "progress",
    "publish_many",
    "register",
    "report",
]

register()


def __getattr__(name: str) -> Any:
    """Load these when they are asked for: what they need is not for every process."""
    if name == "once":
        from .claims import once  # noqa: PLC0415 - see above

        return once
    if name in {"Batch", "add_jobs", "cancelled", "current_batch", "progress", "report"}:
        from . import batches  # noqa: PLC0415 - see above

        return getattr(batches, name)
    if name in {"Middleware", "add_middleware"}:
        from .integrations import middleware  # noqa: PLC0415 - see above

        return getattr(middleware, name)
    if name == "publish_many":
        from .many import publish_many  # noqa: PLC0415 - see above

        return publish_many
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
