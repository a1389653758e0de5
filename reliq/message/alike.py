"""Alike: envelopes that differ in their bodies and in a few texts, at a fifth of the time.

Of messages that are made many at a time all but that is packed once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

from .envelope import VERSION, Envelope, decode, pack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_BODY = 1


class Differing(NamedTuple):
    """What differs in messages that are alike, beside their bodies."""

    headers: tuple[str, ...]
    properties: tuple[str, ...]


class AlikeEnvelopes:
    """Envelopes like *example*, the bytes of one. Of one thread."""

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
        """Add the parts of a map; return the places of what differs."""
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
        """Return the bytes of the envelope; None where one of its texts is no text.

        Of *headers* and *properties* only what differs is looked at.
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
