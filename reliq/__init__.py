"""reliq: a message transport for Kombu and Celery that loses nothing.

Importing it makes ``reliq://``, ``reliqs://`` and ``reliq-unix://`` known to
Kombu. A Celery process needs no import: see :mod:`reliq.plugin`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._version import __version__
from .errors import (
    BatchUncertain,
    BrokerRefused,
    BrokerTimeout,
    BrokerUnavailable,
    ConfigurationError,
    MessageRefused,
    NotConfirmed,
    NotFound,
    PreconditionFailed,
    QueueFull,
    ReliqError,
    Unroutable,
)
from .transports import register

if TYPE_CHECKING:
    from .claims import once
    from .integrations.middleware import Middleware, add_middleware

__all__ = [
    "BatchUncertain",
    "BrokerRefused",
    "BrokerTimeout",
    "BrokerUnavailable",
    "ConfigurationError",
    "MessageRefused",
    "Middleware",
    "NotConfirmed",
    "NotFound",
    "PreconditionFailed",
    "QueueFull",
    "ReliqError",
    "Unroutable",
    "__version__",
    "add_middleware",
    "once",
    "register",
]

register()


def __getattr__(name: str) -> Any:
    """Load what is asked for by few: the engines it needs are not for every process."""
    if name == "once":
        from .claims import once  # noqa: PLC0415 - see above

        return once
    if name in {"Middleware", "add_middleware"}:
        from .integrations import middleware  # noqa: PLC0415 - see above

        return getattr(middleware, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
