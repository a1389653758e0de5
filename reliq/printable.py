"""Untrusted text for logs, errors and terminals, made printable and one line.

Publishers choose names, content types, errors and headers. A line break in one would forge a line
of a log, and an escape sequence would control the reader's terminal. Every text therefore passes
:func:`plain`: in the records of the package's logger, in the errors of reliq, and in the output of
the command.
"""

from __future__ import annotations

import logging
import shlex
import traceback
from typing import Any

# Nesting levels of a message's data that are shown: terminals and parsers cannot take more.
_DEEPEST = 50


def plain(value: object) -> str:
    """Return *value* as one printable line, with other characters escaped.

    None becomes "".
    """
    text = "" if value is None else str(value)
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def word(name: str) -> str:
    """Return *name* as one quoted word, safe to copy into a shell."""
    return shlex.quote(plain(name))


class _Plain(logging.Filter):
    """Makes a log record printable before any handler gets it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Escape unprintable characters in the message and in the errors of a traceback."""
        message = record.getMessage()
        if not message.isprintable():
            record.msg, record.args = plain(message), ()
        if record.exc_info and record.exc_info[1] is not None:
            lines = []
            for part in traceback.TracebackException.from_exception(record.exc_info[1]).format():
                # Frames, and the lines between chained errors, are Python's own text.
                own = part.startswith(("  File ", "Traceback ", "\n", "  ["))
                lines.append(part if own else f"{plain(part.rstrip())}\n")
            record.exc_text = "".join(lines).rstrip("\n")
        return True


# On the logger itself, which all modules share, so that every handler gets printable text.
logging.getLogger("reliq").addFilter(_Plain())


def jsonable(value: Any, depth: int = 0) -> Any:
    """Return *value* for JSON: keys become text, and levels that are too deep become "..."."""
    if depth > _DEEPEST:
        return "..."
    if isinstance(value, dict):
        return {str(key): jsonable(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(inner, depth + 1) for inner in value]
    return value
