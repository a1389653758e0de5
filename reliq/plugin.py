"""What Kombu loads by itself: the entry point ``kombu.serializers``.

Kombu has no entry point for transports, but loads those for serializers when
``kombu.serialization`` is imported, which Celery always does. So ours is a real
serializer, and loading it makes ``reliq://`` known. Runs in the middle of
Kombu's own import: it must import nothing of Kombu but ``kombu.transport`` and
``kombu.connection``, which do without serialization.
"""

from __future__ import annotations

from typing import Any

from .envelope import pack, unpack
from .transports import register

CONTENT_TYPE = "application/x-reliq-msgpack"


def dumps(value: Any) -> bytes:
    """Return *value* as msgpack that keeps datetime, UUID and Decimal."""
    return pack(value)


def loads(data: Any) -> Any:
    """Return what :func:`dumps` was given."""
    return unpack(bytes(data))


#: What ``kombu.serialization.register`` is called with, after the name.
SERIALIZER = (dumps, loads, CONTENT_TYPE, "binary")

register()
