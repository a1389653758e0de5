"""The schemes, and how Kombu gets to know them."""

from __future__ import annotations

SCHEMES = {
    "reliq": "reliq.transports.redis:Transport",
    "reliqs": "reliq.transports.redis:TLSTransport",
    "reliq-unix": "reliq.transports.redis:UnixTransport",
    "reliq-sentinel": "reliq.transports.sentinel:Transport",
}


def register() -> None:
    """Enter the schemes into Kombu's table; doing it twice is harmless."""
    from kombu.transport import TRANSPORT_ALIASES  # noqa: PLC0415 - see plugin.py

    TRANSPORT_ALIASES.update(SCHEMES)
