"""Redaction: hides the values of given keys in displayed messages, at any depth.

Text that cannot be searched for keys is hidden completely: truncated text, or text that is not
JSON.
"""

from __future__ import annotations

import ast
import json
import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

HIDDEN = "[hidden]"
# Headers with arguments in Python syntax: of the message, and of its callbacks.
_WRITTEN = frozenset({"argsrepr", "kwargsrepr"})
UNREADABLE = "[hidden: cannot be searched for keys]"
_DEEPEST = 60
# Longest arguments in Python syntax, in characters; Celery truncates them at a thousand.
_LONGEST = 65_536
# The value of a longer key is always hidden, because matching patterns would take too long.
_LONGEST_KEY = 1000


class Redaction:
    """Hides the values of *keys*: names or patterns with ``*``, case-insensitive."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        # Escape the other characters of shell patterns: only the star is special.
        self._keys = tuple(re.sub("([?[])", r"[\1]", key.casefold()) for key in keys)

    def __bool__(self) -> bool:
        """Whether any key is hidden."""
        return bool(self._keys)

    def hides(self, key: object) -> bool:
        """Whether the value of *key* is hidden."""
        text = key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key)
        if len(text) > _LONGEST_KEY:
            return bool(self)
        name = text.casefold()
        return any(fnmatchcase(name, key) for key in self._keys)

    def value(self, value: Any, depth: int = 0) -> Any:
        """Return *value* with the values of hidden keys replaced."""
        if depth > _DEEPEST:
            return "..."
        if isinstance(value, dict):
            return {key: self.header(key, inner, depth + 1) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self.value(inner, depth + 1) for inner in value)
        return value

    def header(self, key: Any, value: Any, depth: int = 0) -> Any:
        """Return the redacted value of a header, or of any other key."""
        if self.hides(key):
            return HIDDEN
        if key in _WRITTEN and isinstance(value, str):
            return self.written(value)
        return self.value(value, depth)

    def written(self, text: str | None) -> str | None:
        """Return redacted arguments in Python syntax."""
        if not self or text is None:
            return text
        if len(text) > _LONGEST:  # publishers choose it, and parsing takes 100 times the memory
            return UNREADABLE
        try:
            # repr may fail too: a long hexadecimal number exceeds the limit of decimal digits.
            return repr(self.value(ast.literal_eval(text)))
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            return UNREADABLE

    def json(self, text: str | None) -> str | None:
        """Return a redacted JSON body."""
        if not self or text is None:
            return text
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return UNREADABLE
        return json.dumps(self.value(value), ensure_ascii=False)
