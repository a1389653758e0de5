"""The client: connections to servers, Sentinels and clusters, and commands over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import names_of

if TYPE_CHECKING:
    from .tls import require_tls_files as require_tls_files
    from .tls import tls_options as tls_options

# Imported when used: not every process needs them.
__getattr__ = names_of(__name__, {".tls": "require_tls_files tls_options"})
