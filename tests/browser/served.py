"""Who may look at `reliq web` in these tests, and act."""

from __future__ import annotations

from functools import cache

from reliq.web.settings import hashed

PASSWORDS = {"vera": "to look", "otto": "to act"}
ROLES = {"vera": "viewer", "otto": "operator"}


@cache
def users() -> str:
    """Return the text of RELIQ_WEB_USERS: a viewer, vera, and an operator, otto."""
    return "; ".join(f"{name} {ROLES[name]} {hashed(PASSWORDS[name])}" for name in PASSWORDS)
