"""How an app gets its middleware, and keeps it when it is pickled.

An app without middleware is not touched.
"""

# ruff: noqa: SLF001 - Celery's registry of tasks is to be had without finalizing the app

from __future__ import annotations

import sys
from typing import Any

from kombu.utils.imports import symbol_by_name

from ...errors import ConfigurationError
from .chain import CHAIN, Chain, Middleware, chain_of
from .publish import watch_publishing
from .worker import calling, request_class, watch_ends


def add_middleware(app: Any, *middleware: Middleware) -> None:
    """Append *middleware* to the chain of a Celery *app*; what is in it already stays as it is.

    To be called where the app is made, in every process that publishes or runs its tasks, and
    before a worker starts. The app's configuration is not read for it. Raises
    ConfigurationError for what is no Celery app or no middleware, and then nothing is added.
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
            chain.add(item)


class _Carried:
    """One of the app's fix-ups: Celery calls these for each app that it makes or unpickles.

    So a child that is spawned, which gets the app as a pickle, has the same middleware.
    """

    def __init__(self, chain: Chain) -> None:
        self._chain = chain

    def __call__(self, app: Any) -> None:
        add_middleware(app, *self._chain.items)


def _begin_chain(app: Any) -> Chain:
    """Have an empty chain called for *app*."""
    chain = Chain()
    setattr(app, CHAIN, chain)
    app.fixups = [*app.fixups, _Carried(chain)]
    watch_publishing(app)
    watch_ends()
    _watch_registry(app._tasks, chain)
    return chain


def _watch_registry(registry: Any, chain: Chain) -> None:
    """Surround the tasks that are registered, and those that will be, each as it is."""
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
    """Give *task*, and no other of its class, the hooks that Celery looks for in a class."""
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
