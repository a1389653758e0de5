"""The errors for which Kombu tries a publish again, and for how long it tries to connect."""

from __future__ import annotations

from typing import Any

from ..integrations.celery import WATCH


class Recoverable:
    """An attribute of a transport's class, and of each transport.

    OperationalError is not one: Kombu makes it of the last try to connect that a policy
    allows, and would begin with the whole policy again. But Kombu makes it also of the last
    one within connect_timeout, whatever the policy allows. So that is to be no limit where
    there is a policy. Kombu writes the policy into the transport options, and asks the
    transport for this attribute, as a publish with retries begins.

    Where there is none, Kombu tries for ever, says nothing, and lets nobody end it. A Celery worker
    that begins would wait so for a node that is lost, where others answer. It is told then that
    the transport cannot tell which errors these are: Kombu tries once more, and raises.
    """

    def __init__(self, errors: tuple[type[Exception], ...]) -> None:
        self._errors = errors

    def __get__(self, transport: Any, owner: Any) -> tuple[type[Exception], ...]:
        """Return the errors, and lift the limit where there is a policy."""
        client = None if transport is None else transport.client
        if client is not None:
            if "max_retries" in client.transport_options:
                client.transport_options.setdefault("connect_retries_timeout", None)
            elif transport.link.store.has_nodes and WATCH.begins:
                raise AttributeError("no errors after which a worker that begins tries for ever")
        return self._errors
