"""Connections to the data of Kombu's Redis transport, from its URLs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..client.sentinel import SCHEME as SENTINEL
from ..client.sentinel import sentinel_address
from ..client.urls import KOMBUS, address_of, read, scheme_of
from ..errors import ConfigurationError, unknown
from ..kombu_options import KNOWN, SENTINEL_LOGIN
from ..options import parse
from ..store.kombu import KombuBinding, KombuLayout, KombuRedis

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..client.connect import Broker

__all__ = ["KombuBinding", "connect_kombu", "is_kombu"]

_PLACES = frozenset({"sep", "priority_steps", "unacked_key", "unacked_index_key"})
_LOGIN = SENTINEL_LOGIN | {"credential_provider", "sentinel_kwargs"}
_OURS = _LOGIN | {"global_keyprefix", "master_name"}


def is_kombu(url: str) -> bool:
    """Whether *url* is a URL of Kombu's Redis transport."""
    return scheme_of(url.split(";", maxsplit=1)[0]) in KOMBUS


def connect_kombu(url: str, options: Mapping[str, Any] | None, name: str) -> KombuRedis:
    """Return a connection to the data of Kombu's Redis transport at *url*.

    *options* are its transport options. Only those that locate its messages have an effect:
    global_keyprefix, sep, priority_steps, unacked_key, unacked_index_key and master_name.
    Raises ConfigurationError for an unknown or wrong option, and BrokerUnavailable.
    """
    given = dict(options or {})
    for option in given:
        if option not in KNOWN:
            raise unknown("option of Kombu's Redis transport", option, KNOWN)
    layout = _layout({key: given[key] for key in _PLACES & given.keys()})
    ours = parse({key: given[key] for key in _OURS & given.keys()})
    broker: Broker
    if scheme_of(url) == "sentinel":
        urls = [part.replace("sentinel://", f"{SENTINEL}://", 1) for part in url.split(";")]
        broker = sentinel_address(urls, ours, password=ours.credential_provider)
    else:
        parsed = read(url, KOMBUS)
        password = parsed.password or ours.credential_provider
        parsed = replace(parsed, scheme=KOMBUS[parsed.scheme], password=password)
        broker = address_of(parsed, show="@" not in url)
    kombu = KombuRedis(broker, ours, name, layout)
    kombu.connect()
    return kombu


def _layout(given: dict[str, Any]) -> KombuLayout:
    for name in ("sep", "unacked_key", "unacked_index_key"):
        if name in given and (not isinstance(given[name], str) or not given[name]):
            raise ConfigurationError(f"expected {name} to be text, got: {given[name]!r}")
    if "priority_steps" in given:
        steps = given["priority_steps"]
        kinds = {type(step) for step in steps} if isinstance(steps, (list, tuple)) else set()
        if kinds != {int} or list(steps) != [step for step in range(10) if step in steps]:
            raise ConfigurationError(
                "expected priority_steps to be whole numbers from 0 to 9 in ascending order, "
                f"got: {steps!r}"
            )
        given["priority_steps"] = tuple(steps)
    return KombuLayout(**given)
