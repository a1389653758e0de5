"""Lines in a file that survive a SIGKILL and are recognizably complete.

Each is appended with one write(2) to a file opened with O_APPEND. Lines of several processes
therefore stay separate, and the kernel keeps them when the writer is killed. However, a writer that
is killed during the write leaves a partial line, because the kernel stops at the end of a page. So
a line begins with its own line break, and ends with a mark.
"""

from __future__ import annotations

import os

_WHOLE = " ."


def append(fd: int, line: str) -> None:
    """Append one line of ASCII."""
    os.write(fd, f"\n{line}{_WHOLE}\n".encode("ascii", "replace"))


def whole(text: str) -> list[str]:
    """Return the complete lines in *text*."""
    return [line[: -len(_WHOLE)] for line in text.split("\n") if line.endswith(_WHOLE)]
