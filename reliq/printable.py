"""Text that others wrote, for logs, errors and terminals: one line that is only shown.

Names, content types, errors and headers come from whoever may publish. A line break in one
would make a line of a log that nobody wrote, an escape sequence would command the terminal
of who reads it. Every text passes :func:`plain` here: in the records of the package's logger,
in the errors of reliq, and in what the command prints.
"""

from __future__ import annotations

import logging
import shlex
import traceback
from typing import Any

# Of what a message brings, so many levels are shown: no terminal and no parser takes more.
_DEEPEST = 50


def plain(value: object) -> str:
    """Return *value* as one line that cannot talk to a terminal: what is no text is escaped.

    None is "".
    """
    text = "" if value is None else str(value)
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def word(name: str) -> str:
    """Return *name* as one word of a command that somebody may copy into a shell."""
    return shlex.quote(plain(name))


class _Plain(logging.Filter):
    """Makes a record printable before any handler has it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Escape what is no text in the message and in the errors of a traceback."""
        message = record.getMessage()
        if not message.isprintable():
            record.msg, record.args = plain(message), ()
        if record.exc_info and record.exc_info[1] is not None:
            lines = []
            for part in traceback.TracebackException.from_exception(record.exc_info[1]).format():
                # Frames, and what joins the errors of a chain, are Python's own text.
                own = part.startswith(("  File ", "Traceback ", "\n", "  ["))
                lines.append(part if own else f"{plain(part.rstrip())}\n")
            record.exc_text = "".join(lines).rstrip("\n")
        return True


# On the logger itself, which all modules share: no handler and no formatter gets another text.
logging.getLogger("reliq").addFilter(_Plain())


def jsonable(value: Any, depth: int = 0) -> Any:
    """Return *value* as JSON can have it: keys are text, and what lies too deep is left out."""
    if depth > _DEEPEST:
        return "..."
    if isinstance(value, dict):
        return {str(key): jsonable(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(inner, depth + 1) for inner in value]
    return value
