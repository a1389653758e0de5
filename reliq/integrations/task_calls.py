"""Many calls of one task: Celery makes one message, from which the others are filled in.

Calls of a task with the same options share almost everything: route, headers, declaration. So
Celery's own code makes one message, with a producer that collects it, and the others are made from
it. If a message may depend on the single call (a signal's receiver, a custom router, a task class
with its own ``apply_async``, stamps), Celery makes each message.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import Enum
from importlib import import_module
from time import monotonic
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from kombu import Producer
from kombu.exceptions import EncodeError, OperationalError

from ..errors import ConfigurationError
from .call_template import FILLED_IN, CallTemplate, task_ids
from .middleware.chain import chain_of
from .middleware.install import holding, inner

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..transports.publish.chunk import Prepared
    from .collecting import Collector

# Lifetime of a template with a countdown or an expiry, as both count from its creation.
_STAYS_S = 0.01
# The option that counts from the publish.
_EXPIRATION = "expiration"
# Options that prevent a template: Celery would build the varying fields in another way.
_FOR_EACH = frozenset({"argsrepr", "kwargsrepr", "stamped_headers", "router"})
_ELSEWHERE = frozenset({"connection", "publisher", "add_to_parent"})
_PROTOCOL = 2
_LEVELS = 3


class Way(Enum):
    """How the messages of calls are made."""

    FILLED = "Celery makes one, and the others are made from it"
    EACH = "Celery makes each, and they are sent together"
    PLAIN = "Celery makes and sends each"


def _celery(module: str) -> Any:
    """Return a module of Celery, some of which are loaded at their first use."""
    return import_module(f"celery.{module}")


def raise_interrupt(error: BaseException) -> None:
    """Raise the soft time limit that *error* is, or that interrupted Kombu's serialization."""
    billiard = sys.modules.get("billiard.exceptions")
    cause = error.__cause__ or error.__context__ if isinstance(error, EncodeError) else error
    if billiard is not None and isinstance(cause, billiard.SoftTimeLimitExceeded):
        raise type(cause)(*cause.args) from None


def _is_celerys(function: Any, module: Any) -> bool:
    """Whether *function* is defined in *module*: not replaced, wrapped or overridden."""
    if type(function) is MethodType:
        function = function.__func__
    # By its type, because wrappers pretend to be functions.
    return type(function) is FunctionType and function.__globals__ is vars(module)


def _receivers(name: str) -> bool:
    return bool(getattr(getattr(_celery("signals"), name, None), "receivers", None))


class TaskCalls:
    """Calls of a task, signature or name with equal *options*; raises ConfigurationError."""

    def __init__(self, task: Any, app: Any, options: Mapping[str, Any], star: bool) -> None:
        current = getattr(task, "_get_current_object", None)
        task = current() if current is not None else task  # a shared task's proxy: the app's task
        self._signature: Any = None
        self._type: Any = None
        if "celery" not in sys.modules:
            raise ConfigurationError(f"expected a task of Celery, got: {task!r}")
        if isinstance(task, _celery("app.task").Task):
            self.app, self.name, self._type = task.app, task.name, task
            self._apply = task.apply_async
        elif isinstance(task, _celery("canvas").Signature):
            self.app, self.name, self._signature = app or task.app, task.task, task
            self._type = self.app.tasks.get(task.task) if task.task in self.app.tasks else None
            self._apply = task.apply_async
        elif isinstance(task, str) and task:
            if app is None:
                raise ConfigurationError(f"expected an app with the task name {task!r}, got none")
            self.app, self.name = app, task
            self._apply = self._by_name
        else:
            raise ConfigurationError(
                f"expected a task, a signature or a task's name, got: {task!r}"
            )
        self.producer = options.get("producer")
        self._options = {name: value for name, value in options.items() if name != "producer"}
        self._star = star
        self.retry_policy: Mapping[str, Any] | None = None
        """The retry policy of the messages made last; None: no retries."""
        self._template: CallTemplate | None = None
        self._until = 0.0
        signed = {} if self._signature is None else self._signature.options
        self._all_options = {**signed, **self._options}
        for name in ("task_id", "args", "kwargs"):
            if name in self._all_options:
                raise ConfigurationError(
                    f"expected no option {name}: each item of the iterable is one call"
                )

    def _by_name(self, args: Any, kwargs: Any, **options: Any) -> Any:
        return self.app.send_task(self.name, args, kwargs, **options)

    def arguments(self, item: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments in *item*; raises TypeError."""
        if not self._star:
            return (item,), {}
        if isinstance(item, Mapping):
            return (), dict(item)
        if isinstance(item, (tuple, list)):
            return tuple(item), {}
        raise TypeError(
            f"expected a tuple of arguments or a mapping of keyword arguments, got: {item!r}"
        )

    def apply(self, item: Any, task_id: str, producer: Any, **more: Any) -> None:
        """Have Celery publish a call with *producer*, or its own producer, or run an eager task."""
        args, kwargs = self.arguments(item)
        options = {"add_to_parent": False, **self._options, **more}
        if producer is not None:
            options["producer"] = producer
        self._apply(args, kwargs, task_id=task_id, **options)

    def may_be_sent(self, error: Exception) -> bool:
        """Whether a call may be published although its :meth:`apply` has raised *error*."""
        if self.eager:
            return False
        return isinstance(error, (OSError, OperationalError))

    @property
    def eager(self) -> bool:
        """Whether calls run at once in this process."""
        return bool(self.app.conf.task_always_eager) and self._apply != self._by_name

    def way(self, producer: Any) -> Way:
        """Return the best way to make the messages now. Its conditions may change at any time."""
        conf, options = self.app.conf, self._all_options
        kind = None if self._signature is None else type(self._signature)
        if (
            self.eager
            or type(producer) is not Producer
            or (kind is not None and kind is not _celery("canvas").Signature)  # a chain, a group
            or not _ELSEWHERE.isdisjoint(options)
            or conf.task_send_sent_event
            # These receive information that must be true when they are called.
            or _receivers("after_task_publish")
            or _receivers("task_sent")
        ):
            return Way.PLAIN
        headers = options.get("headers") or {}
        if (
            conf.task_protocol == _PROTOCOL
            and not _receivers("before_task_publish")
            and _FOR_EACH.isdisjoint(options)
            and FILLED_IN.isdisjoint(headers)
            and self._is_unchanged()
            and self._routes_by_name()
        ):
            return Way.FILLED
        return Way.EACH

    def _is_unchanged(self) -> bool:
        """Whether only Celery's and Kombu's own code makes the messages."""
        app, task = self.app, self._type
        amqp = _celery("app.amqp")
        ours = (
            _is_celerys(type(app).send_task, _celery("app.base"))
            and _is_celerys(app.send_task, _celery("app.base"))
            and _is_celerys(inner(app.amqp.create_task_message), amqp)
            and _is_celerys(inner(app.amqp.send_task_message), amqp)
            and _is_celerys(Producer.publish, sys.modules["kombu.messaging"])
        )
        ignores = self._all_options.get("ignore_result")
        if not (getattr(task, "ignore_result", False) if ignores is None else ignores):
            # A third-party result backend may do anything at a publish. Celery's own declare a
            # queue for all results, or subscribe to one early.
            notified = getattr(app.backend.on_task_call, "__func__", None)
            if not str(getattr(notified, "__module__", "")).startswith("celery.backends."):
                return False
        if task is None or not ours:
            return ours
        module = _celery("app.task")
        return (
            _is_celerys(task.apply_async, module)
            and _is_celerys(task.shadow_name, module)
            and getattr(task, "_dump_pydantic_arguments", None) is None
            and not getattr(task, "__v2_compat__", False)
        )

    def _routes_by_name(self) -> bool:
        """Whether a task's route depends only on its name."""
        routes = _celery("app.routes")
        router = self.app.amqp.router
        evaluate = _celery("utils.functional").maybe_evaluate
        return type(router) is routes.Router and all(
            type(evaluate(route)) is routes.MapRoute for route in router.routes
        )

    def messages(
        self, items: Sequence[Any], collector: Collector, way: Way
    ) -> Iterator[tuple[str, list[Prepared]]]:
        """Yield the id of each call and its messages; raises Celery's errors for a call.

        A custom task class may publish no or several messages. *way* is never PLAIN. Headers and
        properties are not shared between messages, at their first level.
        """
        typed = self._type is not None and self._type.typing
        check = getattr(self._type, "__header__", None) if typed else None
        for item, task_id in zip(items, task_ids(len(items)), strict=True):
            if way is not Way.FILLED or self._template is None:
                yield task_id, self._made(item, task_id, collector, way)
                continue
            template = self._template
            if template.timed and monotonic() > self._until:
                # Ignore the result: the backend was prepared at the first call.
                with holding() as held:
                    self.apply(item, task_id, collector, ignore_result=True)
                if held and _EXPIRATION in held[-1][1]:
                    again = {_EXPIRATION: held[-1][1][_EXPIRATION]}
                    template.options = {**template.options, **again}
                (message,), _ = collector.take()
                template.time_as(message)
                self._until = monotonic() + _STAYS_S
            args, kwargs = self.arguments(item)
            if self._signature is not None:
                merge = self._signature._merge  # noqa: SLF001 - Celery's way to add arguments
                args, kwargs, _ = merge(args, kwargs)
            if check is not None:  # as Celery checks before it sends
                check(*args, **kwargs)
            yield task_id, [template.fill(task_id, args, kwargs, collector, self.app)]

    def _made(self, item: Any, task_id: str, collector: Collector, way: Way) -> list[Prepared]:
        """Have Celery make the message of a call; keep it as a template if possible."""
        self._template = None
        notified = chain_of(self.app) is None or way is not Way.FILLED
        if notified:
            self.apply(item, task_id, collector)
        else:
            with holding() as held:
                self.apply(item, task_id, collector)
        prepared, contents = collector.take()
        self.retry_policy = collector.retry_policy if collector.retry else None
        if way is Way.FILLED and len(prepared) == 1:
            limits = (
                self.app.amqp.argsrepr_maxsize,
                self.app.amqp.kwargsrepr_maxsize,
                getattr(self.app.conf, "task_repr_maxlevels", _LEVELS),
            )
            self._template = CallTemplate.of(task_id, prepared[0], contents[0], collector, limits)
            self._until = monotonic() + _STAYS_S
        if notified:
            return prepared
        if self._template is None:  # the middleware was not called for it
            self.apply(item, task_id, collector)
            return collector.take()[0]
        ((self._template.given_properties, self._template.options),) = held
        args, kwargs, _ = contents[0].body
        return [self._template.fill(task_id, args, kwargs, collector, self.app)]
