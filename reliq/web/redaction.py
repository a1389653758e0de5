"""Hiding values by their keys in what is shown of messages, wherever the keys stand.

What cannot be read for keys is hidden as a whole: a text that was cut off, or that is no JSON.
"""

from __future__ import annotations

import ast
import json
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

HIDDEN = "[hidden]"
UNREADABLE = "[hidden: it cannot be read for keys]"
_DEEPEST = 60


class Redaction:
    """Hides the values of *keys*: names or patterns with ``*``; case does not count."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self._keys = tuple(key.casefold() for key in keys)

    def __bool__(self) -> bool:
        """Whether anything is hidden at all."""
        return bool(self._keys)

    def hides(self, key: object) -> bool:
        """Whether the value of *key* is hidden."""
        name = str(key).casefold()
        return any(fnmatchcase(name, pattern) for pattern in self._keys)

    def value(self, value: Any, depth: int = 0) -> Any:
        """Return *value* without what is hidden in it."""
        if depth > _DEEPEST:
            return "..."
        if isinstance(value, dict):
            return {
                key: HIDDEN if self.hides(key) else self.value(inner, depth + 1)
                for key, inner in value.items()
            }
        if isinstance(value, (list, tuple)):
            return type(value)(self.value(inner, depth + 1) for inner in value)
        return value

    def header(self, name: str, value: Any) -> Any:
        """Return the value of a header without what is hidden in it."""
        if self.hides(name):
            return HIDDEN
        if name in {"argsrepr", "kwargsrepr"} and isinstance(value, str):
            return self.written(value)
        return self.value(value)

    def written(self, text: str | None) -> str | None:
        """Return arguments, as Python writes them, without what is hidden in them."""
        if not self or text is None:
            return text
        try:
            found = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            return UNREADABLE
        return repr(self.value(found))

    def json(self, text: str | None) -> str | None:
        """Return a body that is JSON without what is hidden in it."""
        if not self or text is None:
            return text
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return UNREADABLE
        return json.dumps(self.value(found), ensure_ascii=False)
