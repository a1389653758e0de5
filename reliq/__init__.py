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

__all__ = [
    "BatchUncertain",
    "BrokerRefused",
    "BrokerTimeout",
    "BrokerUnavailable",
    "ConfigurationError",
    "MessageRefused",
    "NotConfirmed",
    "NotFound",
    "PreconditionFailed",
    "QueueFull",
    "ReliqError",
    "Unroutable",
    "__version__",
    "once",
    "register",
]

register()


def __getattr__(name: str) -> Any:
    """Load ``once`` when it is asked for: the engines it needs are not for every process."""
    if name == "once":
        from .claims import once  # noqa: PLC0415 - see above

        return once
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
