"""Envelope: encodes a Kombu raw message into the bytes that an engine stores.

Versioned msgpack of a few fields. datetime, date, time, UUID and Decimal survive, as in Kombu's
JSON. Decoding never executes code, and is bounded by the size of its input. Kombu's ``reliq``
serializer uses the same codec.

For many messages that differ only in their bodies and a few texts, the common part is packed once
(:class:`AlikeEnvelopes`). This takes a fifth of the time.
"""

from __future__ import annotations

import struct
from datetime import date, datetime, time
from decimal import Decimal
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import msgpack

from ..errors import MessageRefused, ReliqError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

VERSION = 1
"""The version of the envelope. A change raises `FORMAT` in values/limits.py too."""

_PLAIN = frozenset({str, bytes, int, float, bool, type(None)})
_LISTS = frozenset({tuple, list})
_CONTAINERS = (dict, list, tuple)


# Any number of UUIDs, Decimals and large integers can have equal hashes: a map with such keys
# takes quadratic time. Below this number of extension types, the cost is negligible.
_UNCHECKED = 200
_LEAST = 3  # size in bytes of the shortest extension type
_MOST_COLLISIONS = 100


class EnvelopeError(ReliqError):
    """The stored bytes are not an envelope that this version can read."""


class Envelope(NamedTuple):
    """One message as published, without its place in a queue."""

    body: bytes | str
    content_type: str | None
    content_encoding: str | None
    headers: dict[str, Any]
    properties: dict[str, Any]
    exchange: str
    routing_key: str


# Fields of a publish or a delivery, which are not properties of the message.
NOT_STORED = frozenset({"delivery_tag", "delivery_info", "body_encoding", "confirm"})
_FIELDS = 1 + len(Envelope._fields)
# The possible types of the fields after decoding: msgpack never returns subclasses.
_TYPES = (
    (bytes, str),
    (str, type(None)),
    (str, type(None)),
    (dict,),
    (dict,),
    (str,),
    (str,),
)
_KNOWN_TYPES = frozenset(product(*_TYPES))


# The types without a form in msgpack: code, type, and the conversions to and from text.
_TEXTS: tuple[tuple[int, type, Callable[[Any], str], Callable[[str], Any]], ...] = (
    (2, datetime, datetime.isoformat, datetime.fromisoformat),
    (3, date, date.isoformat, date.fromisoformat),  # after datetime, which is a date
    (4, time, time.isoformat, time.fromisoformat),
    (6, Decimal, str, Decimal),
    (1, int, str, int),
)
_UUID = 5
_RESTORED = {code: restore for code, _, _, restore in _TEXTS}


def _extend(value: Any) -> Any:
    for code, kind, text_of, _ in _TEXTS:
        if isinstance(value, kind):
            return msgpack.ExtType(code, text_of(value).encode())
    if isinstance(value, UUID):
        return msgpack.ExtType(_UUID, value.bytes)
    if isinstance(value, str):  # a str subclass: lazy translations, delivery tags
        return str.__str__(value)
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    raise TypeError(f"cannot store a {type(value).__name__}")


def _restore(code: int, data: bytes) -> Any:
    if code == _UUID:
        return UUID(bytes=data)
    restore = _RESTORED.get(code)
    if restore is None:
        raise EnvelopeError(f"extension type {code} is not known to this version")
    return restore(data.decode())


class _ManyExtensionsError(Exception):
    """The number of extension types requires a check of the keys of maps."""


def _restore_some() -> Callable[[int, bytes], Any]:
    """Return a :func:`_restore` that works for a limited number of values."""
    left = _UNCHECKED

    def restore(code: int, data: bytes) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise _ManyExtensionsError
        return _restore(code, data)

    return restore


def _checked_map(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    hashes = {hash(key) for key, _ in pairs}
    if len(pairs) - len(hashes) > _MOST_COLLISIONS:
        raise EnvelopeError(
            f"{len(pairs)} keys of one map have {len(hashes)} hashes: not decoded, "
            "because it would take too long"
        )
    return dict(pairs)


def _refuse_keys(value: Any) -> None:
    """Raise TypeError for a map whose key would decode to a list, which cannot be a key."""
    is_map = type(value) is dict or (type(value) not in _LISTS and isinstance(value, dict))
    for key in value:
        inner = key
        if is_map:
            if type(key) not in _PLAIN and isinstance(key, (tuple, list, frozenset)):
                raise TypeError(f"a {type(key).__name__} cannot be the key of a map")
            inner = value[key]
        kind = type(inner)
        if kind not in _PLAIN and inner and (kind is dict or isinstance(inner, _CONTAINERS)):
            _refuse_keys(inner)


def pack(value: Any) -> bytes:
    """Return *value* as msgpack bytes.

    Raises MessageRefused for a value without a representation.
    """
    try:
        if type(value) is tuple or isinstance(value, _CONTAINERS):
            _refuse_keys(value)
        packed: bytes = msgpack.Packer(default=_extend, use_bin_type=True).pack(value)
    except (TypeError, ValueError, OverflowError, RecursionError, struct.error) as exc:
        raise MessageRefused(
            f"the message cannot be stored: {exc}; use only types that msgpack supports, and "
            "datetime, UUID or Decimal"
        ) from exc
    return packed


def unpack(data: bytes) -> Any:
    """Decode the result of :func:`pack`; raises EnvelopeError for other bytes."""
    try:
        # No limits such as max_array_len: msgpack refuses a header that claims more than the given
        # bytes, and from version 1.2.4 on allocates nothing in advance.
        if len(data) < _LEAST * _UNCHECKED:
            return msgpack.unpackb(data, ext_hook=_restore, raw=False, strict_map_key=False)
        try:
            some = _restore_some()
            return msgpack.unpackb(data, ext_hook=some, raw=False, strict_map_key=False)
        except _ManyExtensionsError:
            return msgpack.unpackb(
                data,
                ext_hook=_restore,
                object_pairs_hook=_checked_map,
                raw=False,
                strict_map_key=False,
            )
    except EnvelopeError:
        raise
    except MemoryError as exc:
        raise EnvelopeError(
            f"not decoded: {len(data)} bytes need more memory than this process may use"
        ) from exc
    except (ValueError, TypeError, ArithmeticError, RecursionError, msgpack.UnpackException) as exc:
        raise EnvelopeError(f"not an envelope: {type(exc).__name__}: {exc}") from exc


def encode(envelope: Envelope) -> bytes:
    """Return the bytes to store for *envelope*."""
    return pack((VERSION, *envelope))


def decode(data: bytes) -> Envelope:
    """Return the envelope in *data*; raises EnvelopeError with the reason."""
    return Envelope._make(fields_of(data))


def fields_of(data: bytes) -> list[Any]:
    """Return the fields of the envelope in *data*, in order; raises as :func:`decode` does."""
    fields = unpack(data)
    if type(fields) is list and len(fields) == _FIELDS and fields[0] == VERSION:
        del fields[0]
        if tuple(map(type, fields)) in _KNOWN_TYPES:
            return fields
        for name, value, types in zip(Envelope._fields, fields, _TYPES, strict=True):
            if type(value) not in types:
                raise EnvelopeError(f"not an envelope: its {name} is a {type(value).__name__}")
    if type(fields) is list and fields and type(fields[0]) is int and fields[0] != VERSION:
        raise EnvelopeError(f"envelope version {fields[0]} is not known to this version of reliq")
    raise EnvelopeError("not an envelope: no version, or the wrong number of fields")


def is_reply(properties: Mapping[str, Any], headers: Mapping[str, Any]) -> bool:
    """Whether a message is a reply. Over AMQP, every reply has a correlation id.

    A request also has a ``reply_to``, perhaps empty. A Celery task has a ``task`` header.
    """
    return bool(
        properties.get("correlation_id") and "reply_to" not in properties and "task" not in headers
    )


_BODY = 1


class Differing(NamedTuple):
    """The names of headers and properties that differ between similar messages."""

    headers: tuple[str, ...]
    properties: tuple[str, ...]


class AlikeEnvelopes:
    """Encodes envelopes similar to *example*, the bytes of one. Belongs to one thread."""

    def __init__(self, example: bytes, differing: Differing) -> None:
        envelope = decode(example)
        self._packer = msgpack.Packer(use_bin_type=True)
        self._parts: list[bytes] = [
            self._packer.pack_array_header(1 + len(Envelope._fields)) + pack(VERSION),
            b"",  # the body
            pack(envelope.content_type) + pack(envelope.content_encoding),
        ]
        self._headers = self._add_map(envelope.headers, differing.headers)
        self._properties = self._add_map(envelope.properties, differing.properties)
        self._parts.append(pack(envelope.exchange) + pack(envelope.routing_key))

    def _add_map(
        self, values: Mapping[str, Any], differing: Iterable[str]
    ) -> list[tuple[int, str]]:
        """Add the parts of a map; return the positions of differing values."""
        places = []
        known = self._packer.pack_map_header(len(values))
        for name, value in values.items():
            known += pack(name)
            if name in differing:
                self._parts += [known, b""]
                places.append((len(self._parts) - 1, name))
                known = b""
            else:
                known += pack(value)
        self._parts.append(known)
        return places

    def encode(
        self, body: bytes | str, headers: Mapping[str, Any], properties: Mapping[str, Any]
    ) -> bytes | None:
        """Return the bytes of the envelope; None if a value cannot be packed.

        Reads only the differing values of *headers* and *properties*.
        """
        parts = self._parts.copy()
        packed: Callable[[bytes | str], bytes] = self._packer.pack
        try:
            parts[_BODY] = packed(body)
            for place, name in self._headers:
                parts[place] = packed(headers[name])
            for place, name in self._properties:
                parts[place] = packed(properties[name])
        except (TypeError, ValueError, OverflowError):
            return None
        return b"".join(parts)
