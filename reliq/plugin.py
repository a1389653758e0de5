"""What Kombu loads by itself: the entry point ``kombu.serializers``.

Kombu has no entry point for transports, but loads those for serializers when
``kombu.serialization`` is imported, which Celery always does. So ours is a real
serializer, and loading it makes ``reliq://`` known. Runs in the middle of
Kombu's own import: it must import nothing of Kombu but ``kombu.transport`` and
``kombu.connection``, which do without serialization.

Nor may it fail: every program that has Kombu and reliq installed runs it. What cannot be loaded
is a warning here, and an error for whoever uses a URL or the serializer of reliq.
"""

from __future__ import annotations

import warnings
from typing import Any

from .transports import register

_broken: Exception | None = None
try:
    from .message.envelope import pack, unpack
except Exception as exc:  # noqa: BLE001 - a broken package may raise anything; see above
    _broken = exc.with_traceback(None)  # the importer's stack is not to stay with it
    warnings.warn(
        f"reliq cannot be loaded ({type(exc).__name__}: {exc}): its URLs and its serializer "
        "raise this error, everything else works; mend or reinstall what it names",
        RuntimeWarning,
        stacklevel=2,
    )

CONTENT_TYPE = "application/x-reliq-msgpack"


def dumps(value: Any) -> bytes:
    """Return *value* as msgpack that keeps datetime, UUID and Decimal."""
    _require()
    return pack(value)


def loads(data: Any) -> Any:
    """Return what :func:`dumps` was given."""
    _require()
    return unpack(bytes(data))


def _require() -> None:
    if _broken is not None:
        raise ImportError(f"reliq cannot be loaded: {_broken}") from _broken


#: What ``kombu.serialization.register`` is called with, after the name.
SERIALIZER = (dumps, loads, CONTENT_TYPE, "binary")

register()
