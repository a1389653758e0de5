"""Callbacks: the message of each is made where the batch is opened, which knows the app."""

from __future__ import annotations

from typing import Any

from ..errors import ConfigurationError
from ..integrations.collecting import Collector
from ..integrations.outcomes import adding_to
from ..message.delivery_tag import new_tag
from ..transfer.batch_callbacks import CallbackMessage
from ..transfer.batch_callbacks import packed as as_text
from ..transports.base import Transport


def packed(signature: Any, batch: str) -> str:
    """Return the message of *signature*, called with the id of *batch*, as it is noted there.

    Its queue or exchange is declared. Raises ConfigurationError for what is no signature of one
    task, and what publishing it would raise; nothing is published.
    """
    app = getattr(signature, "app", None)
    if app is None:
        raise ConfigurationError(
            f"expected a signature of a task, as report.s() is one, got: {signature!r:.100}"
        )
    if app.conf.task_always_eager:
        raise ConfigurationError(
            f"{signature!r:.100} would run now: with task_always_eager tasks are not published. A "
            "batch with callbacks is opened without it"
        )
    with app.producer_or_acquire() as producer, adding_to(None):
        if not isinstance(producer.connection.transport, Transport):
            raise ConfigurationError(
                f"expected the app of {signature!r:.100} to use the broker of its batch, which "
                f"publishes it; its broker is {producer.connection.as_uri()}"
            )
        collector = Collector(producer)
        signature.apply_async((batch,), producer=collector, add_to_parent=False)
        messages, _ = collector.take()
        if len(messages) != 1:
            raise ConfigurationError(
                f"expected a signature that publishes one message, got: {signature!r:.100}"
            )
        (found,) = messages
        producer.maybe_declare(found.declare[0]) if found.declare else None
        channel = producer.channel
        raw = channel.prepare_message(
            found.body,
            found.priority,
            found.content_type,
            found.content_encoding,
            found.headers,
            found.properties,
        )
        item = channel.transport.encoder.encode(raw, found.exchange, found.routing_key)
    message = CallbackMessage(
        item.exchange, item.routing_key, item.envelope, item.rank, new_tag(item.rank)
    )
    return as_text(message)
