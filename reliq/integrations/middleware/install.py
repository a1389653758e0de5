"""Adding middleware to an app, keeping it when the app is pickled, and calling it at publishes.

An app without middleware is not changed. `publish` surrounds the only place where Celery makes task
messages, `AMQP.create_task_message`. That step precedes the connection; a later error may be taken
for an error of the broker. Celery's signals are unsuitable, because they swallow exceptions.
"""

# ruff: noqa: SLF001 - the public registry of tasks would finalize the app

from __future__ import annotations

import inspect
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kombu.utils.imports import symbol_by_name

from ...errors import ConfigurationError
from .chain import CHAIN, Chain, Middleware, PublishContext, chain_of
from .worker import calling, request_class, watch_ends

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def add_middleware(app: Any, *middleware: Middleware) -> None:
    """Append *middleware* to the chain of a Celery *app*; objects already in it stay unchanged.

    Call it where the app is created, in every process that publishes or runs its tasks, and
    before a worker starts. The app's configuration is not read. Raises ConfigurationError for an
    invalid app or middleware, and then adds nothing.
    """
    app = getattr(app, "_get_current_object", lambda: app)()
    celery = sys.modules.get("celery")
    if celery is None or not isinstance(app, celery.Celery):
        raise ConfigurationError(f"expected a Celery application, got: {app!r:.100}")
    for item in middleware:
        if not isinstance(item, Middleware):
            raise ConfigurationError(
                f"expected an instance of reliq.Middleware, got: {item!r:.100}"
            )
    if middleware:
        chain = chain_of(app) or _begin_chain(app)
        for item in middleware:
            if item not in chain.items:
                chain.items = (*chain.items, item)


def _carry(chain: Chain, app: Any) -> None:
    add_middleware(app, *chain.items)


def _begin_chain(app: Any) -> Chain:
    chain = Chain()
    setattr(app, CHAIN, chain)
    # Celery calls the fix-ups of each app that it makes or unpickles. A spawned child, which
    # receives the app as a pickle, therefore has the same middleware.
    app.fixups = [*app.fixups, partial(_carry, chain)]
    watch_publishing(app)
    watch_ends()
    _watch_registry(app._tasks, chain)
    return chain


def _watch_registry(registry: Any, chain: Chain) -> None:
    """Wrap the tasks that are registered now and later."""
    kind = type(registry)

    class Registry(kind):  # type: ignore[misc,valid-type]
        def __setitem__(self, name: str, task: Any) -> None:
            super().__setitem__(name, task)
            _surround(task, chain)

    Registry.__name__, Registry.__qualname__ = kind.__name__, kind.__qualname__
    registry.__class__ = Registry
    for task in list(registry.values()):
        _surround(task, chain)


def _surround(task: Any, chain: Chain) -> None:
    """Give *task* alone, not its class, the hooks that Celery looks up in a class."""
    base: Any = type(task)
    celery_task = sys.modules.get("celery.app.task")
    if celery_task is None or not isinstance(task, celery_task.Task) or hasattr(base, CHAIN):
        return
    kind: Any = type(base)
    surrounded = kind(
        base.__name__,
        (base,),
        {
            CHAIN: chain,
            "__call__": calling(base, chain),
            "__module__": base.__module__,
            "__qualname__": base.__qualname__,
            "__doc__": base.__doc__,
        },
    )
    surrounded.Request = property(
        lambda self: request_class(symbol_by_name(super(surrounded, self).Request), chain)
    )
    task.__class__ = surrounded


_CREATE, _SEND = "create_task_message", "send_task_message"


_HELD: ContextVar[list[tuple[dict[str, Any], dict[str, Any]]] | None] = ContextVar(
    "reliq held", default=None
)


@contextmanager
def holding() -> Iterator[list[tuple[dict[str, Any], dict[str, Any]]]]:
    """Do not call middleware for messages made in the block; the caller calls it for its copies.

    Yields a list to which the properties and options of each message are appended.
    """
    held: list[tuple[dict[str, Any], dict[str, Any]]] = []
    token = _HELD.set(held)
    try:
        yield held
    finally:
        _HELD.reset(token)


def inner(function: Any) -> Any:
    """Return Celery's function inside *function* of an app's `amqp`; itself if not wrapped."""
    get = getattr(function, "reliq_around", None)
    return function if get is None else get()


class _Prepared(NamedTuple):
    """Celery's ``task_message``, with complete headers that the chain has seen."""

    headers: dict[str, Any]
    properties: dict[str, Any]
    body: Any
    sent_event: dict[str, Any] | None


def watch_publishing(app: Any) -> None:
    """Call the chain of *app* for each task that it publishes; does not read its configuration."""
    amqp = app.amqp
    create, send = _maker(amqp, _CREATE), _maker(amqp, _SEND)

    def create_task_message(*args: Any, **options: Any) -> Any:
        return _prepared(app, create()(*args, **options), options)

    def send_task_message(
        producer: Any, name: str, message: Any, *args: Any, **options: Any
    ) -> Any:
        if not isinstance(message, _Prepared):  # made with AMQP.as_task_v2
            message = _prepared(app, message, options)
        # Celery would overwrite the chain's changes with them.
        options.pop("headers", None)
        return send()(producer, name, message, *args, **options)

    create_task_message.reliq_around = create  # type: ignore[attr-defined]
    send_task_message.reliq_around = send  # type: ignore[attr-defined]
    setattr(amqp, _CREATE, create_task_message)
    setattr(amqp, _SEND, send_task_message)


def _maker(amqp: Any, name: str) -> Callable[[], Any]:
    """Return a getter of Celery's own function, which reads the configuration when made."""
    made: list[Any] = [vars(amqp)[name]] if name in vars(amqp) else []

    def get() -> Any:
        if not made:
            # The attribute that this would fill is already replaced.
            descriptor = inspect.getattr_static(type(amqp), name)
            make = getattr(descriptor, "func", None)
            made.append(getattr(type(amqp), name).__get__(amqp) if make is None else make(amqp))
        return made[0]

    return get


def apply_publish(context: PublishContext) -> None:
    """Run `publish` of an app's chain for a message that Celery has not made.

    The headers must be complete, and may be changed. Raises the middleware's exceptions; the
    message must not be stored then. Does nothing for an app without middleware.
    """
    chain = chain_of(context.app)
    for item in () if chain is None else chain.items:
        item.publish(context)


def _prepared(app: Any, message: Any, options: dict[str, Any]) -> _Prepared:
    """Return *message* with complete headers, after the chain; raises the chain's exceptions."""
    headers, properties, body, sent_event = message
    headers.update(options.get("headers") or {})
    if isinstance(body, dict):  # protocol 1
        name, task_id, args, kwargs = (body[key] for key in ("task", "id", "args", "kwargs"))
    else:
        name, task_id, (args, kwargs, _) = headers["task"], headers["id"], body
    held = _HELD.get()
    if held is not None:
        held.append((dict(properties), options))
    else:
        apply_publish(
            PublishContext(
                app=app,
                name=name,
                id=task_id,
                headers=headers,
                args=args,
                kwargs=kwargs,
                properties=properties,
                options=options,
            )
        )
    return _Prepared(headers, properties, body, sent_event)
