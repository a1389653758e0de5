"""Write the ACL rules that `reliq acl` prints into docs/operations.md.

    python docs/rules.py

A test fails until that is done after a script or the code sends another command.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from reliq.admin import ROLES, acl_rule

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"(?<=^```acl\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)


def wrapped(*rules: str) -> str:
    """Return rules as they stand in a document: 100 columns, continued lines indented."""
    return "".join(
        textwrap.fill(
            rule, 100, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False
        )
        + "\n"
        for rule in rules
    )


def write(path: Path, *rules: str) -> None:
    """Put *rules* into the one block of a document that is marked acl."""
    text = path.read_text("utf-8")
    path.write_text(_BLOCK.sub(lambda _: wrapped(*rules), text), "utf-8")


if __name__ == "__main__":
    write(ROOT / "docs" / "operations.md", *(acl_rule(role) for role in ROLES))
