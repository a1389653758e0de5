"""What Celery shows of a task's arguments (``argsrepr``), at a fifth of the time.

Celery's ``saferepr`` walks whatever it is given with a stack of iterators. What is plain and
short, as most arguments are, is written here directly, with the same result; anything else is
left to Celery.
"""

from __future__ import annotations

import sys
from types import NoneType
from typing import Any

_SCALARS: frozenset[Any] = frozenset({int, float, bool, NoneType})
_CONTAINERS: dict[Any, str] = {tuple: "(%s)", list: "[%s]", dict: "{%s}"}


def text_of(value: Any, longest: int, levels: int) -> str:
    """Return what Celery's ``saferepr(value, longest, maxlevels=levels)`` does."""
    text = _plain(value, longest, levels) if levels > 0 else None
    if text is not None and len(text) < longest:  # so that Celery cuts nothing off
        return text
    saferepr = sys.modules["celery.utils.saferepr"].saferepr
    shown: str = saferepr(value, longest, maxlevels=levels)
    return shown


def _plain(value: Any, longest: int, levels: int) -> str | None:
    """Return the text of *value*; None where Celery is to be asked."""
    kind = type(value)
    if kind is str:
        return None if len(value) >= longest else "'" + value.replace("'", "\\'") + "'"
    if kind in _SCALARS:
        return str(value)
    form = _CONTAINERS.get(kind) if levels > 0 else None
    if form is None:
        return None
    inner = (_pairs if kind is dict else _joined)(value, longest, levels - 1)
    if inner is None:
        return None
    return f"({inner},)" if kind is tuple and len(value) == 1 else form % inner


def _joined(values: Any, longest: int, levels: int) -> str | None:
    texts: list[str] = []
    left = longest
    for value in values:
        text = _plain(value, left, levels)
        if text is None or len(text) >= left:
            return None
        left -= len(text)
        texts.append(text)
    return ", ".join(texts)


def _pairs(values: dict[Any, Any], longest: int, levels: int) -> str | None:
    texts: list[str] = []
    left = longest
    for key, value in values.items():
        name, text = _plain(key, left, 0), _plain(value, left, levels)
        if name is None or text is None or len(name) + len(text) >= left:
            return None
        left -= len(name) + len(text)
        texts.append(f"{name}: {text}")
    return ", ".join(texts)
