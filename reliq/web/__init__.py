"""A page to look at: what brokers hold, who has it, what died and why, and how to put it right.

``reliq web`` serves it; :func:`app` makes the ASGI application, to be mounted in one's own. Needs
the extra ``web`` (Starlette, Jinja2). Stands on the Inspector: nothing here talks to an engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError
from .application import Application
from .settings import Settings, User, accounts, accounts_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from .settings import Account

__all__ = ["Application", "User", "app"]


def app(
    *urls: str,
    transport_options: Mapping[str, Any] | None = None,
    allow_actions: bool = False,
    users: str = "",
    users_file: str | Path | None = None,
    user_header: str = "",
    proxies: Iterable[str] = ("127.0.0.1", "::1"),
    operators: Iterable[str] = (),
    hosts: Iterable[str] = (),
    redact: Iterable[str] = (),
    root_path: str = "",
    interval_s: float = 2.0,
    action_log: Path | None = None,
) -> Application:
    """Return an ASGI application with the pages of the brokers at *urls*.

    transport_options: those of the application whose brokers they are. allow_actions: let
    operators change things; otherwise nobody may. users: lines of ``name role hash``, as
    docs/web.md has them, for HTTP Basic; users_file: a file of such lines. user_header: in their
    place, the header in which a proxy at one of *proxies* names the user, who is a viewer unless
    named in *operators*. With neither, only who
    is on this machine is answered, by a name of this machine or one of *hosts*. redact: keys whose
    values are hidden in messages. root_path: the path of a proxy under which the pages are; where
    the application is mounted in another, that knows it. interval_s: so often a page that somebody
    looks at is read anew. action_log: a file to which each action is appended.

    Connects when it is first asked. Raises ConfigurationError.
    """
    named: Mapping[str, Account] = {}
    if users_file is not None or users.strip():
        named = accounts(users, "users") if users_file is None else accounts_in(users_file)
    return Application(
        Settings(
            urls=urls,
            transport_options=transport_options or {},
            allow_actions=allow_actions,
            users=named,
            user_header=user_header,
            proxies=frozenset(_each("proxies", proxies)),
            operators=frozenset(_each("operators", operators)),
            hosts=frozenset(_each("hosts", hosts)),
            redact=tuple(_each("redact", redact)),
            root_path=root_path,
            interval_s=interval_s,
            action_log=action_log,
        )
    )


def _each(name: str, given: Iterable[str]) -> Iterable[str]:
    """Return *given*; raises ConfigurationError for a text, which would be one for each letter."""
    if isinstance(given, str):
        raise ConfigurationError(f"expected {name} to be a list of texts, got: {given!r}")
    return given
