"""Write the generated parts of docs/: the ACL rules, and the options of Kombu's Redis transport.

    python docs/rules.py

A test fails until that is done after a script or the code sends another command, or after
reliq/kombu_options.py changes.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from reliq.admin import ROLES, acl_rule
from reliq.kombu_options import KEPT, SUBSTITUTES

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"(?<=^```acl\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)
_OPTIONS = re.compile(
    r"(?<=^<!-- options of redis:// -->\n).*?(?=^<!-- end of the options)",
    re.MULTILINE | re.DOTALL,
)


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


def options_table() -> str:
    """Return the table of the options of Kombu's Redis transport."""
    rows = [
        *(([name], f"works: {effect}") for name, effect in KEPT.items()),
        *((names, f"no effect: {reason}") for names, reason in SUBSTITUTES.items()),
    ]
    lines = (f"| {', '.join(f'`{name}`' for name in names)} | {text} |\n" for names, text in rows)
    return "| option of `redis://` | with reliq |\n| --- | --- |\n" + "".join(lines)


def write_options(path: Path) -> None:
    """Put the table of options between its two comments."""
    text = path.read_text("utf-8")
    path.write_text(_OPTIONS.sub(lambda _: options_table(), text), "utf-8")


if __name__ == "__main__":
    write(ROOT / "docs" / "operations.md", *(acl_rule(role) for role in ROLES))
    write_options(ROOT / "docs" / "migrating.md")
