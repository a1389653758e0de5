"""Scripts of the package with a changed text: with a bug, or another clock."""

from __future__ import annotations

from reliq.lua.scripts import Script


def with_text(script: Script, text: str) -> Script:
    """Return *script* with another text."""
    other = Script(script.name)
    other._take(text, script.keys)
    return other
