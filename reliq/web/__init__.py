"""The web page: queues, messages, consumers, dead letters, batches, and actions for operators.

``reliq web`` serves the page. :func:`app` returns it as an ASGI application to mount in another.
Needs the extra ``web`` (Starlette, Jinja2). Uses the Inspector only, never an engine.
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

    transport_options: the options of the application that uses these brokers. allow_actions: let
    operators change data; otherwise the page is read-only. users: lines of ``name role hash`` for
    HTTP Basic (docs/web.md); users_file: a file of such lines. user_header: instead of users, the
    header in which a proxy at one of *proxies* names the user, a viewer unless in *operators*.
    Without users and header, only requests from this machine are answered, for its own names and
    those in *hosts*. redact: keys whose values are hidden in messages. root_path: the path under
    which a proxy serves the page; a mounted application gets it from its parent.
    interval_s: seconds between two reads of a viewed page. action_log: a file for all actions.

    Connects at the first request. Raises ConfigurationError.
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
    """Return *given*; raise ConfigurationError for a string, which is a list of letters."""
    if isinstance(given, str):
        raise ConfigurationError(f"expected {name} to be a list of strings, got: {given!r}")
    return given
