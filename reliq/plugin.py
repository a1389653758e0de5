"""The plug-in that Kombu loads: an entry point of ``kombu.serializers``.

Kombu has no entry point for transports, but loads those for serializers when
``kombu.serialization`` is imported, which Celery always does. reliq has a real serializer there,
and loading it registers ``reliq://``. The module runs during Kombu's own import, so it may import
only ``kombu.transport`` and ``kombu.connection`` of Kombu, which do not need serialization.

It must not fail, because every program with Kombu and reliq installed runs it. A failed import
is a warning here, and an error when a URL or the serializer of reliq is used.
"""

from __future__ import annotations

import warnings
from typing import Any

from .transports import register

_broken: Exception | None = None
try:
    from .message.envelope import pack, unpack
except Exception as exc:  # noqa: BLE001 - a broken package may raise anything; see above
    _broken = exc.with_traceback(None)  # do not keep the importer's stack alive
    warnings.warn(
        f"reliq cannot be loaded ({type(exc).__name__}: {exc}): its URLs and its serializer "
        "raise this error, everything else works; fix or reinstall the named package",
        RuntimeWarning,
        stacklevel=2,
    )

CONTENT_TYPE = "application/x-reliq-msgpack"


def dumps(value: Any) -> bytes:
    """Return *value* as msgpack that keeps datetime, UUID and Decimal."""
    _require()
    return pack(value)


def loads(data: Any) -> Any:
    """Return the value of *data* from :func:`dumps`."""
    _require()
    return unpack(bytes(data))


def _require() -> None:
    if _broken is not None:
        raise ImportError(f"reliq cannot be loaded: {_broken}") from _broken


#: The arguments of ``kombu.serialization.register``, after the name.
SERIALIZER = (dumps, loads, CONTENT_TYPE, "binary")

register()
