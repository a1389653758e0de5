"""Collecting: a producer that prepares messages as Kombu's does, and keeps them.

A caller that sends many tasks passes it to Celery as the producer, and then sends the collected
messages in its own way. All code up to Kombu's last step is Kombu's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kombu import Producer, Queue

from ..transports.publish.chunk import Prepared

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


# Positions in the arguments of Kombu's last step (5.5 to 5.7).
_PREPARED = 6
_ROUTING_KEY, _EXCHANGE, _DECLARE, _CONFIRM_TIMEOUT = 6, 9, 10, 12


class Content(NamedTuple):
    """The content of a message before serialization."""

    body: Any
    serializer: str | None
    compression: str | None


def _settings_of(producer: Any) -> dict[str, Any]:
    """Return the settings with which another producer publishes as *producer* does."""
    return {
        "exchange": producer.exchange,
        "routing_key": producer.routing_key,
        "serializer": producer.serializer,
        "auto_declare": producer.auto_declare,
        "compression": producer.compression,
    }


class Collector(Producer):
    """Keeps published messages for *producer* to send."""

    def __init__(self, producer: Any) -> None:
        super().__init__(None, **_settings_of(producer))
        self._producer = producer
        self.collected: list[Prepared] = []
        self.contents: list[Content] = []
        self.retry = False
        """Whether a failed publish of the last messages is retried."""
        self.retry_policy: Mapping[str, Any] = {}

    @property
    def channel(self) -> Any:
        """The channel of the producer that sends."""
        return self._producer.channel

    @property
    def connection(self) -> Any:
        """The connection of the producer that sends."""
        return self._producer.connection

    def publish(
        self,
        body: Any,
        *args: Any,
        retry: bool = False,
        retry_policy: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Collect a message; the arguments are those of Kombu's ``publish``."""
        self.retry, self.retry_policy = bool(retry), retry_policy or {}
        serializer, compression = options.get("serializer"), options.get("compression")
        self.contents.append(Content(body, serializer, compression))
        super().publish(body, *args, **options)

    def _publish(self, *prepared: Any, **_: Any) -> None:
        properties = prepared[_PREPARED - 1]
        reply_to = properties.get("reply_to")
        if isinstance(reply_to, Queue):
            properties["reply_to"] = reply_to.name
        timeout = prepared[_CONFIRM_TIMEOUT] if len(prepared) > _CONFIRM_TIMEOUT else None
        where = prepared[_EXCHANGE] or "", prepared[_ROUTING_KEY] or "", prepared[_DECLARE]
        self.collected.append(Prepared._make((*prepared[:_PREPARED], *where, timeout, None)))

    def serialize(self, content: Content, headers: dict[str, Any]) -> tuple[Any, str, str]:
        """Return body, content type and encoding; write the compression to *headers*."""
        body, serializer, compression = content
        made: tuple[Any, str, str] = self._prepare(
            body, serializer, None, None, compression or self.compression, headers
        )
        return made

    def take(self) -> tuple[list[Prepared], list[Content]]:
        """Return the messages collected since the last call."""
        taken = self.collected, self.contents
        self.collected, self.contents = [], []
        return taken


class Reporting(Producer):
    """Publishes as *producer* does, and first calls *before* with headers and properties."""

    def __init__(
        self, producer: Any, before: Callable[[dict[str, Any], dict[str, Any]], object]
    ) -> None:
        super().__init__(producer.connection, **_settings_of(producer))
        self._before = before
        self._reported = False

    def publish(self, *args: Any, **options: Any) -> Any:
        """Publish; the arguments are those of Kombu's ``publish``."""
        self._reported = False
        return super().publish(*args, **options)

    def _publish(self, *prepared: Any, **options: Any) -> Any:
        if not self._reported:  # retries call this method too
            self._reported = True
            self._before(*prepared[4:6])
        return super()._publish(*prepared, **options)
