"""Hiding values by their keys in what is shown of messages, wherever the keys stand.

What cannot be read for keys is hidden as a whole: a text that was cut off, or that is no JSON.
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
# Arguments as Python writes them: of the message, and of those that follow from it.
_WRITTEN = frozenset({"argsrepr", "kwargsrepr"})
UNREADABLE = "[hidden: it cannot be read for keys]"
_DEEPEST = 60
# Of arguments as Python writes them, in characters; Celery cuts them off at a thousand.
_LONGEST = 65_536
# The value of a longer key is hidden: no pattern is worth the time that looking would take.
_LONGEST_KEY = 1000


class Redaction:
    """Hides the values of *keys*: names or patterns with ``*``; case does not count."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        # Of a pattern of the shell only the star means anything.
        self._keys = tuple(re.sub("([?[])", r"[\1]", key.casefold()) for key in keys)

    def __bool__(self) -> bool:
        """Whether anything is hidden at all."""
        return bool(self._keys)

    def hides(self, key: object) -> bool:
        """Whether the value of *key* is hidden."""
        text = key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key)
        if len(text) > _LONGEST_KEY:
            return bool(self)
        name = text.casefold()
        return any(fnmatchcase(name, key) for key in self._keys)

    def value(self, value: Any, depth: int = 0) -> Any:
        """Return *value* without what is hidden in it."""
        if depth > _DEEPEST:
            return "..."
        if isinstance(value, dict):
            return {key: self.header(key, inner, depth + 1) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self.value(inner, depth + 1) for inner in value)
        return value

    def header(self, key: Any, value: Any, depth: int = 0) -> Any:
        """Return the value of a header, or of any other key, without what is hidden in it."""
        if self.hides(key):
            return HIDDEN
        if key in _WRITTEN and isinstance(value, str):
            return self.written(value)
        return self.value(value, depth)

    def written(self, text: str | None) -> str | None:
        """Return arguments, as Python writes them, without what is hidden in them."""
        if not self or text is None:
            return text
        if len(text) > _LONGEST:  # whoever may publish chooses it, and reading takes 100 times that
            return UNREADABLE
        try:
            # Also writing it may fail: a number in base 16 that is too long for base 10.
            return repr(self.value(ast.literal_eval(text)))
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            return UNREADABLE

    def json(self, text: str | None) -> str | None:
        """Return a body that is JSON without what is hidden in it."""
        if not self or text is None:
            return text
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return UNREADABLE
        return json.dumps(self.value(found), ensure_ascii=False)
