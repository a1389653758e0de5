"""The users of `reliq web` in these tests, with their roles and passwords."""

from __future__ import annotations

from functools import cache

from reliq.web.settings import hashed

PASSWORDS = {"vera": "to look", "otto": "to act"}
ROLES = {"vera": "viewer", "otto": "operator"}


@cache
def users() -> str:
    """Return the text of RELIQ_WEB_USERS: the viewer vera and the operator otto."""
    return "; ".join(f"{name} {ROLES[name]} {hashed(PASSWORDS[name])}" for name in PASSWORDS)
