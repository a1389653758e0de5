"""Content of messages: bodies, types, compression and headers arrive unchanged."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal

import pytest
from kombu import compression
from kombu.serialization import registry

from ..kombu_client import Taker, declare, get, publish


def there_and_back(client, body, **properties):
    """Publish *body* and return the received message."""
    connection = client.connect()
    declare(connection, "q")
    publish(connection, "q", body, **properties)
    message = get(connection, "q")
    message.ack()
    return message


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"\x00\xff\xfe\r\n$5", b"\x00\xff\xfe\r\n$5"),
        (b"", b""),
        ("", b""),
        ("grüße \N{SNOWMAN} \U0001f600", "grüße \N{SNOWMAN} \U0001f600".encode()),
        (b"x" * 3_000_000, b"x" * 3_000_000),
    ],
    ids=["bytes", "empty bytes", "empty text", "text", "three megabytes"],
)
def test_raw_bodies(client, body, expected):
    """A body with its own content type arrives byte by byte."""
    message = there_and_back(client, body, content_type="application/data")
    assert bytes(message.body) == expected
    assert message.content_type == "application/data"


@pytest.mark.parametrize("body", ["grüße", b"\x00\xff", {}, [], None, 0, {"n": [1, 2.5, None]}])
def test_serialised_bodies(client, body):
    """A body that Kombu serialises decodes to an equal value."""
    message = there_and_back(client, body)
    assert message.decode() == body


def test_text_in_another_encoding(client):
    """The content encoding named by the publisher reaches the consumer."""
    message = there_and_back(client, "grüße", content_type="text/plain", content_encoding="latin-1")
    assert bytes(message.body) == "grüße".encode("latin-1")
    assert message.content_encoding == "latin-1"
    assert message.payload == "grüße"


@pytest.mark.parametrize("serializer", ["json", "pickle", "msgpack", "reliq"])
def test_serializers(client, serializer):
    """A body of every available serializer arrives, with its content type."""
    body = {"text": "ü", "n": 7, "list": [1, None]}
    message = there_and_back(client, body, serializer=serializer)
    message.accept = {message.content_type}
    assert message.decode() == body
    assert message.content_type == registry.name_to_type[serializer]


def test_the_reliq_serializer_keeps_types(client):
    """The serializer of reliq supports bytes, dates, UUIDs and Decimals."""
    body = {
        "bytes": b"\x00\xff",
        "when": dt.datetime(2026, 2, 3, 4, 5, 6, 7, tzinfo=dt.timezone.utc),
        "id": uuid.UUID(int=5),
        "price": Decimal("1.10"),
        "large": 2**80,
    }
    message = there_and_back(client, body, serializer="reliq")
    message.accept = {message.content_type}
    assert message.decode() == body


@pytest.mark.parametrize("method", compression.encoders())
def test_compression(client, method):
    """A body compressed with any of Kombu's available methods is decompressed on arrival."""
    body = {"text": "abc" * 1000}
    message = there_and_back(client, body, compression=method)
    assert message.payload == body
    assert message.headers["compression"] == method


def test_compressed_requeued(client):
    """A compressed message is intact after a requeue."""
    connection = client.connect()
    taker = Taker(connection, "q", prefetch_count=1)
    publish(connection, "q", "abc" * 1000, compression="gzip")
    taker.take()[0].requeue()
    assert taker.take()[0].payload == "abc" * 1000


HEADERS = {
    "datetime": dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.timezone.utc),
    "naive": dt.datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001 - applications send naive values
    "date": dt.date(2026, 1, 2),
    "time": dt.time(3, 4, 5),
    "uuid": uuid.UUID("12345678123456781234567812345678"),
    "decimal": Decimal("12345678901234567890.123456789"),
    "unicode": "grüße \N{SNOWMAN}",
    "ключ": "value",
    "large": 2**63,
    "larger": 10**40,
    "negative": -(2**70),
    "float": 1.5,
    "none": None,
    "true": True,
    "bytes": b"\x00\xff",
    "nested": {"list": [1, {"a": dt.date(2026, 1, 2)}], "empty": {}},
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers(client, name):
    """A header arrives with its type and value."""
    message = there_and_back(client, "x", headers={name: HEADERS[name]})
    assert message.headers[name] == HEADERS[name]
    assert type(message.headers[name]) is type(HEADERS[name])


def test_properties(client):
    """AMQP's properties arrive unchanged."""
    properties = {
        "correlation_id": "c",
        "reply_to": "r",
        "message_id": "m",
        "type": "t",
        "app_id": "a",
        "user_id": "u",
        "timestamp": 123,
        "delivery_mode": 1,
    }
    message = there_and_back(client, "x", priority=4, **properties)
    arrived = {name: message.properties.get(name) for name in [*properties, "priority"]}
    assert arrived == {**properties, "priority": 4}


def test_published_again(client):
    """A publish with properties copied from a received message stores a new message."""
    connection = client.connect()
    declare(connection, "q")
    publish(connection, "q", "x", headers={"h": 1}, correlation_id="c")
    first = get(connection, "q")
    publish(connection, "q", first.payload, headers=first.headers, **first.properties)
    second = get(connection, "q")
    assert second.payload == "x"
    assert second.delivery_tag != first.delivery_tag


def test_published_again_after_a_redelivery(client):
    """Headers copied from a redelivered message, as by Celery's retry, carry no delivery count."""
    connection = client.connect()
    declare(connection, "q")
    publish(connection, "q", "x")
    get(connection, "q").requeue()
    first = get(connection, "q")
    assert (True, 1) == (first.headers["redelivered"], first.headers["x-delivery-count"])
    publish(connection, "q", "y", headers=first.headers)
    second = get(connection, "q")
    assert ("y", {}) == (second.payload, second.headers)
    assert "redelivered" not in second.delivery_info


def test_what_cannot_be_stored_is_refused(client):
    """A header of an unsupported type is refused with a reason, and no message is stored."""
    from reliq import MessageRefused

    connection = client.connect()
    declare(connection, "q")
    with pytest.raises(MessageRefused, match="object"):
        publish(connection, "q", "x", headers={"h": object()})
    assert client.status("q").ledger.get("published", 0) == 0


def test_what_is_too_large_is_refused(client):
    """A message above max_message_bytes is refused; the error names the limit."""
    from reliq import MessageRefused

    connection = client.connect(max_message_bytes=10_000)
    declare(connection, "q")
    publish(connection, "q", "x" * 9_000)
    with pytest.raises(MessageRefused, match="max_message_bytes") as caught:
        publish(connection, "q", "x" * 11_000)
    assert "10000" in str(caught.value).replace(" ", "").replace(",", "")
    assert client.status("q").ready == 1
