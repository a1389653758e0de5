"""The errors of reliq.

Every error that reliq raises is one of these. ``client/connect.py`` translates errors of
Redis and sockets. This module is independent of the engines. It uses py-amqp's base class of
channel errors, so that ``except connection.channel_errors`` works.
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
"""The logger of reliq: reports to operators."""
_NOT_FOUND = "NOT_FOUND - "


class Flushable(Protocol):
    """An object whose publishes can be retried after a failure."""

    def flush(self) -> None:
        """Retry; each message is stored once."""


class ReliqError(Exception):
    """The base class of all errors of reliq.

    The text is one printable line, safe for terminals, whatever names it contains.
    """

    reply = ""
    """The error reply of the broker, if it did not run a command."""
    passes = False
    """Whether the same command may succeed later: reports to the broker are kept."""

    def __str__(self) -> str:
        """Return the problem, its place and the remedy."""
        return plain(super().__str__())


class BatchClosed(ReliqError):
    """The batch is sealed or cancelled, and accepts no more jobs. Nothing was stored."""


class Failed(Exception):
    """A task raises this for a business failure: its job has failed, without an error.

    Its text is shown with the job. The task is not retried. Outside a batch, it has no special
    meaning.
    """


E = TypeVar("E", bound=ReliqError)


def again(error: E) -> E:
    """Return a copy of *error* without its traceback.

    For errors that are kept or raised again: a traceback keeps the local variables of all callers
    alive.
    """
    new = type(error).__new__(type(error), *error.args)
    new.__dict__.update(error.__dict__)
    return new


class ConfigurationError(ReliqError, ValueError):
    """An option, a URL or an argument is wrong; nothing was connected or stored."""


def refuse_sqlite() -> NoReturn:
    """Raise ConfigurationError: the SQLite broker was removed."""
    raise ConfigurationError(
        "reliq-sqlite:// was removed: use reliq-embedded:////folder for a broker without server "
        "setup, or reliq-spool:////file, last in a list of brokers, for a publisher's journal"
    )


def unknown(what: str, name: object, known: Collection[str]) -> ConfigurationError:
    """Return the error for a *name* that is not in *known*, with the nearest known name."""
    near = get_close_matches(str(name), known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(set(known)))}"
    return ConfigurationError(f"unknown {what} {name!r}: {hint}")


def near(name: str, known: Collection[str]) -> str:
    """Return the end of an error for an unknown *name*, with similar names in *known*."""
    matches = get_close_matches(name, sorted(known), n=3)
    return f"; did you mean {' or '.join(map(repr, matches))}?" if matches else ""


def require_one_of(what: str, value: str, known: Collection[str]) -> None:
    """Raise ConfigurationError if *value* is not in *known*."""
    if value not in known:
        raise ConfigurationError(f"expected {what} to be one of {', '.join(known)}, got: {value!r}")


class BrokerUnavailable(ReliqError, ConnectionError):
    """The broker is unreachable, or cannot serve now; reconnecting may help.

    Kombu and Celery treat this as a recoverable connection error. It is also a built-in
    :class:`ConnectionError`, and therefore an :class:`OSError`, without an errno.
    """

    passes = True
    unsent = False
    """Whether the command was definitely not run."""
    untouched: frozenset[str] = frozenset()
    """For a publish: the queues in which it definitely stored nothing."""


class BrokerTimeout(BrokerUnavailable):
    """The broker did not reply within ``socket_timeout``.

    Not a :class:`TimeoutError`, because that is ``socket.timeout``, which Kombu interprets as "no
    message arrived".
    """


class NotConfirmed(BrokerUnavailable):
    """The broker has stored the message, but not as durably as ``confirm`` requires.

    It was not on enough replicas, or not on disk, within ``confirm_timeout``. The message may be
    lost with this broker, or delivered. A retry with the same properties is safe: it stores the
    message once, and waits again.
    """


class BrokerRefused(ReliqError):
    """The broker refused the command (out of memory, permission, wrong type).

    Connecting again does not help, so Kombu must not retry it.
    """


class MessageRefused(ReliqError, ValueError):
    """The message cannot be stored (too large, not serialisable); nothing was stored."""


class BatchUncertain(ReliqError):
    """A batch was not flushed; some, all or none of its messages may be stored.

    Not a connection error, because a new publish may store messages twice. Call ``flush()`` again
    instead: it stores each message once, however often it is called.

    batch: the batch; its ``flush()`` also works after the ``with`` block of Kombu's
        ``Producer.batch()``. If you drop the batch, its uncertain messages are abandoned.
    messages: number of uncertain messages.
    queues: names of their target queues, as far as known.
    """

    def __init__(self, text: str, batch: Flushable, messages: int, queues: tuple[str, ...]) -> None:
        super().__init__(text)
        self.batch = batch
        self.messages = messages
        self.queues = queues


class PartlyPublished(ReliqError):
    """``publish_many`` stopped before the end of its items. The cause has the reason.

    Each taken item is in one of three states.

    sent: number of stored items (including items dropped without a bound queue, as with
        ``delay()``). Their ids were passed to ``on_sent``.
    unsent: the items that were definitely not stored, in order. If an item caused the failure, it
        is the first.
    uncertain: the ids of tasks that may be stored.
    batch: keeps the uncertain messages; its ``flush()`` stores each once, however often it is
        called. None if nothing is uncertain, or if the broker is not a broker of reliq.
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

    The text begins with AMQP's NOT_FOUND, which programs recognise.
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

    Nothing was stored in it. Kombu does not retry, because a retry needs room in the queue.
    """

    code = 406


class Unroutable(ReliqError, ChannelError):
    """No queue is bound for the message, and ``unroutable="error"`` is set."""

    code = 312
