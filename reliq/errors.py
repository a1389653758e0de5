"""What can go wrong, as a user sees it.

Every error that leaves reliq is one of these. Foreign errors (redis, sockets)
become ours at one border, ``engines/redis/connect.py``. This module knows
nothing of any engine; it knows Kombu's channel errors only by the base class
that py-amqp gives them, so that ``except connection.channel_errors`` works.
"""

from __future__ import annotations

import logging
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from amqp.exceptions import ChannelError

from .printable import plain

if TYPE_CHECKING:
    from collections.abc import Collection

logger = logging.getLogger("reliq")
"""The log of all of reliq: what is said to an operator, and not raised."""
_NOT_FOUND = "NOT_FOUND - "


class Flushable(Protocol):
    """What can be tried again after a failure."""

    def flush(self) -> None:
        """Try again; each message is stored once."""


class ReliqError(Exception):
    """The root: catches everything that reliq raises on its own account.

    Its text is one line that may be shown on any terminal, whatever names are in it.
    """

    reply = ""
    """The broker's own words, where it said that it did not carry a command out."""

    def __str__(self) -> str:
        """Return what happened, where, and what to do."""
        return plain(super().__str__())


class BatchClosed(ReliqError):
    """A batch takes no more jobs: it is sealed, or cancelled. Nothing was stored."""


class Failed(Exception):
    """A task raises it for a business failure: its job has failed, and that is no error.

    It is shown with the job, and not retried. Outside a batch it is an exception like any other.
    """


E = TypeVar("E", bound=ReliqError)


def again(error: E) -> E:
    """Return a new error that says what *error* says, and knows nothing of where that was met.

    For one that is kept, or raised from where it was kept: its traceback leads to the locals of
    everyone who had called, and all of that stays alive with it.
    """
    new = type(error).__new__(type(error), *error.args)
    new.__dict__.update(error.__dict__)
    return new


class ConfigurationError(ReliqError, ValueError):
    """An option, a URL or an argument is wrong; nothing was connected or stored."""


def refuse_sqlite() -> NoReturn:
    """Raise ConfigurationError: there is no broker in an SQLite file."""
    raise ConfigurationError(
        "reliq-sqlite:// is gone: use reliq-embedded:////folder for a broker without a server to "
        "set up, or reliq-spool:////file, last in a list of brokers, for a publisher's journal"
    )


def unknown(what: str, name: object, known: Collection[str]) -> ConfigurationError:
    """Return the error for a *name* that is none of *known*, with the one it comes near."""
    near = get_close_matches(str(name), known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"
    return ConfigurationError(f"unknown {what} {name!r}: {hint}")


def require_one_of(what: str, value: str, known: Collection[str]) -> None:
    """Raise ConfigurationError where *value* is none of *known*."""
    if value not in known:
        raise ConfigurationError(f"expected {what} to be one of {', '.join(known)}, got: {value!r}")


class BrokerUnavailable(ReliqError, ConnectionError):
    """The broker cannot be reached, or cannot serve now; connecting again may help.

    Kombu and Celery treat it as a recoverable connection error. It is also a
    builtin :class:`ConnectionError`, hence an :class:`OSError`, without an errno.
    """

    unsent = False
    """Whether the command was certainly carried out by nobody."""
    untouched: frozenset[str] = frozenset()
    """Of a publish: the queues into which it has certainly stored nothing."""


class BrokerTimeout(BrokerUnavailable):
    """The broker did not reply within ``socket_timeout``.

    Deliberately not a :class:`TimeoutError`: that is ``socket.timeout``, which
    Kombu reads as "no message arrived".
    """


class NotConfirmed(BrokerUnavailable):
    """The broker has stored the message, but it is not as safe yet as ``confirm`` asks.

    Not on enough replicas, or not on disk, within ``confirm_timeout``. It may be
    lost with this broker, and it may well be delivered: trying again with the same
    properties is safe, stores it once, and waits again.
    """


class BrokerRefused(ReliqError):
    """The broker understood and said no (out of memory, permission, wrong type).

    Connecting again does not help, so Kombu must not retry it.
    """


class MessageRefused(ReliqError, ValueError):
    """The message cannot be stored (too large, not serialisable); nothing was stored."""


class BatchUncertain(ReliqError):
    """A batch was not flushed; some, all or none of its messages may be stored.

    Not a connection error: what helps is not to publish again but to call
    ``flush()`` again, which stores each message once, however often it is called.

    batch: the batch; its ``flush()`` works also after the ``with`` block of Kombu's
        ``Producer.batch()`` has ended. Whoever drops it gives the messages up.
    messages: how many messages are uncertain.
    queues: where they go, as far as it is known: names of queues.
    """

    def __init__(self, text: str, batch: Flushable, messages: int, queues: tuple[str, ...]) -> None:
        super().__init__(text)
        self.batch = batch
        self.messages = messages
        self.queues = queues


class PartlyPublished(ReliqError):
    """``publish_many`` has stopped before the end of what it was given. The cause says why.

    Each item that it took is in one of three states.

    sent: how many items are stored (or dropped, where no queue is bound for them, as by
        ``delay()``). Their ids were handed to ``on_sent``.
    unsent: the items that were certainly not stored, in their order. Where one of them is to
        blame it is the first.
    uncertain: the ids of tasks that may be stored or not.
    batch: what keeps the uncertain ones; its ``flush()`` stores each once, however often it is
        called. None where nothing is uncertain, or where the broker is no broker of reliq.
    """

    def __init__(
        self,
        text: str,
        sent: int,
        unsent: list[Any],
        uncertain: tuple[str, ...] = (),
        batch: Flushable | None = None,
    ) -> None:
        super().__init__(text)
        self.sent = sent
        self.unsent = unsent
        self.uncertain = uncertain
        self.batch = batch


class NotFound(ReliqError, ChannelError):
    """A queue, an exchange or a dead letter does not exist (AMQP 404).

    Its text begins with AMQP's word for that, by which programs know it.
    """

    code = 404

    def __init__(self, reply_text: str, *details: Any) -> None:
        if not reply_text.startswith(_NOT_FOUND):
            reply_text = f"{_NOT_FOUND}{reply_text}"
        super().__init__(reply_text, *details)


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
