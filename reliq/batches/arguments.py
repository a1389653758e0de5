"""Arguments and callbacks of a batch, validated when it is created, before anything is stored."""

from __future__ import annotations

from math import isfinite
from typing import Any

from ..errors import ConfigurationError
from ..integrations.collecting import Collector
from ..message.delivery_tag import new_tag
from ..transports.base import Transport
from ..values.job_headers import adding_to
from .callbacks import CallbackMessage
from .callbacks import packed as as_text
from .jobs import MOST_ID, MOST_NUMBER, is_id, is_text


def checked_id(option: str, value: str) -> str:
    """Return *value*; raises ConfigurationError for an invalid id."""
    if not is_id(value):
        raise ConfigurationError(
            f"expected {option} to be a text of 1 to {MOST_ID} characters that can be encoded, "
            f"got: {value!r:.100}"
        )
    return value


def milliseconds(option: str, seconds: float) -> int:
    """Return a time in ms; raises ConfigurationError unless it is a number above 0."""
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not is_number or not isfinite(seconds) or not 0 < seconds * 1000 <= MOST_NUMBER:
        raise ConfigurationError(
            f"expected {option} to be a number of seconds above 0, got: {seconds!r:.100}"
        )
    return max(int(seconds * 1000), 1)


def names_of(failures: Any) -> tuple[str, ...]:
    """Return the dotted names of exceptions that are failures; raises ConfigurationError."""
    if isinstance(failures, (tuple, list, set, frozenset)):
        names = [
            f"{failure.__module__}.{failure.__qualname__}"
            if isinstance(failure, type) and issubclass(failure, BaseException)
            else failure
            for failure in failures
        ]
        if all(isinstance(name, str) and name and is_text(name) for name in names):
            return tuple(names)
    raise ConfigurationError(
        "expected failures to be a tuple of exceptions or of their dotted names, got: "
        f"{failures!r:.100}"
    )


def packed(signature: Any, batch: str) -> str:
    """Return the message of *signature*, called with the id of *batch*, in its stored form.

    Declares its queue or exchange. Raises ConfigurationError unless it is the signature of one
    task, and the errors of its publish; nothing is published.
    """
    app = getattr(signature, "app", None)
    if app is None:
        raise ConfigurationError(
            f"expected a signature of a task, such as report.s(), got: {signature!r:.100}"
        )
    if app.conf.task_always_eager:
        raise ConfigurationError(
            f"{signature!r:.100} would run immediately: with task_always_eager, tasks are not "
            "published. Disable it to open a batch with callbacks"
        )
    with app.producer_or_acquire() as producer, adding_to(None):
        if not isinstance(producer.connection.transport, Transport):
            raise ConfigurationError(
                f"expected the app of {signature!r:.100} to use the batch's broker, which "
                f"publishes the callback; its broker is {producer.connection.as_uri()}"
            )
        collector = Collector(producer)
        signature.apply_async((batch,), producer=collector, add_to_parent=False)
        messages, _ = collector.take()
        if len(messages) != 1:
            raise ConfigurationError(
                f"expected a signature that publishes one message, got: {signature!r:.100}"
            )
        (sent,) = messages
        producer.maybe_declare(sent.declare[0]) if sent.declare else None
        channel = producer.channel
        raw = channel.prepare_message(*sent[:6])
        item = channel.transport.encoder.encode(raw, sent.exchange, sent.routing_key)
    message = CallbackMessage(
        item.exchange, item.routing_key, item.envelope, item.rank, new_tag(item.rank, item.headers)
    )
    return as_text(message)
