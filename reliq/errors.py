"""What can go wrong, as a user sees it.

Every error that leaves reliq is one of these. Foreign errors (redis, sockets)
become ours at one border, ``engines/redis/connect.py``. This module knows
nothing of any engine; it knows Kombu's channel errors only by the base class
that py-amqp gives them, so that ``except connection.channel_errors`` works.
"""

from __future__ import annotations

from amqp.exceptions import ChannelError


class ReliqError(Exception):
    """The root: catches everything that reliq raises on its own account."""


class ConfigurationError(ReliqError, ValueError):
    """An option, a URL or an argument is wrong; nothing was connected or stored."""


class BrokerUnavailable(ReliqError, ConnectionError):
    """The broker cannot be reached, or cannot serve now; connecting again may help.

    Kombu and Celery treat it as a recoverable connection error. It is also a
    builtin :class:`ConnectionError`, hence an :class:`OSError`, without an errno.
    """


class BrokerTimeout(BrokerUnavailable):
    """The broker did not reply within ``socket_timeout``.

    Deliberately not a :class:`TimeoutError`: that is ``socket.timeout``, which
    Kombu reads as "no message arrived".
    """


class BrokerRefused(ReliqError):
    """The broker understood and said no (out of memory, permission, wrong type).

    Connecting again does not help, so Kombu must not retry it.
    """


class MessageRefused(ReliqError, ValueError):
    """The message cannot be stored (too large, not serialisable); nothing was stored."""


class NotFound(ReliqError, ChannelError):
    """A passive declaration named a queue or exchange that does not exist (AMQP 404)."""

    code = 404


class PreconditionFailed(ReliqError, ChannelError):
    """A declaration contradicts what exists, or a condition does not hold (AMQP 406)."""

    code = 406


class QueueFull(ReliqError, ChannelError):
    """A queue is at its limit and was declared with ``x-overflow: reject-publish``.

    Nothing was stored in it. Publishing again helps only when there is room, so Kombu
    does not retry it.
    """

    code = 406


class Unroutable(ReliqError, ChannelError):
    """No queue is bound for the message, and ``unroutable="error"`` asks to be told."""

    code = 312
