"""reliq: a message transport for Kombu and Celery that loses no messages.

Importing it registers its URL schemes, such as ``reliq://`` and ``reliqs://``, with Kombu. Celery
processes need no import: see :mod:`reliq.plugin`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._version import __version__
from .consumer.host import HOST
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
from .integrations import prepare
from .lazy import names_of
from .transports import register

if TYPE_CHECKING:
    from .batches import Batch, add_jobs, cancelled, current_batch, progress, report
    from .integrations.middleware import Middleware, add_middleware
    from .tasks.once import once
    from .tasks.publish_many import publish_many

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

HOST.prepare = prepare
register()

__getattr__ = names_of(
    __name__,
    {
        ".batches": "Batch add_jobs cancelled current_batch progress report",
        ".tasks.once": "once",
        ".integrations.middleware": "Middleware add_middleware",
        ".tasks.publish_many": "publish_many",
    },
)
