"""Lines that a SIGKILL cannot take back, and that tell whether they are whole.

Each is appended with one write(2) to a file opened with O_APPEND: apart from those of other
processes, and kept by the kernel when the writer is killed. But a writer that is killed in
the midst of it leaves a half: the kernel stops where a page ends. So a line begins with a
line break of its own, and ends with a mark.
"""

from __future__ import annotations

import os

_WHOLE = " ."


def append(fd: int, line: str) -> None:
    """Append one line of ASCII."""
    os.write(fd, f"\n{line}{_WHOLE}\n".encode("ascii", "replace"))


def whole(text: str) -> list[str]:
    """Return the lines in *text* that were written to their end."""
    return [line[: -len(_WHOLE)] for line in text.split("\n") if line.endswith(_WHOLE)]
