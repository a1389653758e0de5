"""Names in URLs and on pages: of queues, brokers and tasks, whatever is in them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from ..failover.brokers import without_password

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# A name of a queue may have bytes that are no text.
_ERRORS = "surrogateescape"
_MOST_FIELDS = 300


def shown_url(url: str) -> str:
    """Return *url*, or several of one broker, without user and password."""
    return without_password(url)


def query_of(raw: bytes) -> list[tuple[str, str]]:
    """Return names and values of a query, or of a form; what is too much of it is left out."""
    try:
        return parse_qsl(
            raw.decode("latin-1"),
            keep_blank_values=True,
            errors=_ERRORS,
            max_num_fields=_MOST_FIELDS,
        )
    except ValueError:
        return []


def query_text(values: Mapping[str, object]) -> str:
    """Return *values* as the query of a URL; those that are None or "" are left out."""
    kept = {name: str(value) for name, value in values.items() if value not in {None, ""}}
    return urlencode(kept, errors=_ERRORS)


def pairs_text(query: Iterable[tuple[str, str]]) -> str:
    """Return names and values, as :func:`query_of` has read them, as a query again."""
    return urlencode(list(query), errors=_ERRORS)


def link(root_path: str, path: str, values: Mapping[str, object]) -> str:
    """Return the URL of a page, from the root of its server."""
    query = query_text(values)
    return f"{root_path}{path}?{query}" if query else f"{root_path}{path}"
