"""reliq: a message transport for Kombu and Celery that loses nothing.

Importing it makes ``reliq://``, ``reliqs://`` and ``reliq-unix://`` known to
Kombu. A Celery process needs no import: see :mod:`reliq.plugin`.
"""

from __future__ import annotations

from ._version import __version__
from .errors import (
    BrokerRefused,
    BrokerTimeout,
    BrokerUnavailable,
    ConfigurationError,
    MessageRefused,
    NotFound,
    PreconditionFailed,
    QueueFull,
    ReliqError,
    Unroutable,
)
from .transports import register

__all__ = [
    "BrokerRefused",
    "BrokerTimeout",
    "BrokerUnavailable",
    "ConfigurationError",
    "MessageRefused",
    "NotFound",
    "PreconditionFailed",
    "QueueFull",
    "ReliqError",
    "Unroutable",
    "__version__",
    "register",
]

register()
