"""Declaring: the verbs of a channel for exchanges, queues and bindings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

from amqp.protocol import queue_declare_ok_t
from kombu.transport.base import to_rabbitmq_queue_arguments

from ..errors import NotFound, PreconditionFailed
from ..forks import here
from ..message.envelope import unpack
from ..message.queue_arguments import is_durable, queue_arguments

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .parts import Parts

_BIND_TRIES = 5


class Declaring:
    """A base of Channel, of which it needs no more than the transport."""

    transport: Parts

    def prepare_queue_arguments(
        self, arguments: dict[str, Any] | None, **kwargs: Any
    ) -> dict[str, Any]:
        """Turn Kombu's queue options (expires, max_length, ...) into AMQP's arguments."""
        prepared: dict[str, Any] = to_rabbitmq_queue_arguments(arguments or {}, **kwargs)
        return prepared

    def exchange_declare(
        self,
        exchange: str | None = None,
        type: str | None = "direct",  # noqa: A002 - Kombu's name
        durable: bool = False,
        auto_delete: bool = False,
        arguments: dict[str, Any] | None = None,
        nowait: bool = False,
        passive: bool = False,
    ) -> None:
        """Declare an exchange; raises PreconditionFailed when it exists and differs.

        Passive: raises NotFound when it does not exist.
        """
        del nowait
        type_ = type or "direct"
        name = exchange or f"amq.{type_}"
        if passive:
            self.transport.link.routes.require(name)
            return
        self.transport.link.routes.declare(
            name,
            type_,
            {
                "durable": bool(durable),
                "auto_delete": bool(auto_delete),
                "arguments": arguments or {},
            },
        )

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Delete an exchange; its queues stay, as in AMQP. Unknown ones are ignored."""
        del nowait
        if if_unused and (
            count := len(self.transport.link.store.exchange_table(exchange).bindings)
        ):
            raise PreconditionFailed(f"exchange {exchange!r} is in use: {count} bindings")
        self.transport.link.session.registration.topology.forget_exchange(exchange)
        self.transport.link.routes.delete(exchange)

    def queue_declare(
        self,
        queue: str | None = None,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: dict[str, Any] | None = None,
        nowait: bool = False,
        **_: Any,
    ) -> queue_declare_ok_t:
        """Declare a queue; returns its name, waiting messages and consumers.

        Raises PreconditionFailed when it exists with other arguments, NotFound
        when *passive* and it does not exist. *durable* and *exclusive* mean
        nothing here: what Redis persists is its own setting.
        """
        del durable, exclusive, nowait
        name = queue or f"amq.gen-{uuid4()}"
        encoded, meta = queue_arguments(name, auto_delete, arguments)
        here()  # a child has a link of its own
        session, store, routes = self.transport.link
        if not (passive or is_durable(meta)):
            session.duties.dead_consumers.clear(name, store)
        if ("expires" in meta or passive) and (
            store.delete_queue(name, if_idle=True).outcome == "deleted"
        ):
            routes.forget_queue(name)
        declared = store.declare_queue(name, passive, encoded, meta)
        if declared.outcome == "missing":
            raise NotFound(f"no queue {name!r}; declare it first")
        if declared.outcome == "differs":
            stored, asked = _in_words(declared.arguments), _in_words(encoded)
            raise PreconditionFailed(
                f"queue {name!r} exists with {stored}; it was declared now with {asked}. "
                "Delete it or declare it with its own arguments"
            )
        if not passive:
            self.transport.declarations.queues[name] = (encoded, meta)
            if "dead_letter_exchange" in meta:
                session.duties.passes.look_after(name)
        back = session.registration.lingers(name)  # we come back just now
        return queue_declare_ok_t(name, declared.messages, max(declared.consumers - back, 0))

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: dict[str, Any] | None = None,
        nowait: bool = False,
        **_: Any,
    ) -> None:
        """Bind *queue* to *exchange*; raises NotFound for an unknown exchange.

        One that this connection has declared, and that is gone since (its ``x-expires`` is
        shorter than the way from there to here), is declared again.
        """
        del arguments, nowait
        binding = (queue, exchange or "amq.direct", routing_key or "")
        declared = self.transport.declarations.queues.get(queue)
        if declared is None:
            self.transport.link.routes.bind(*binding)
            return
        for _tried in range(_BIND_TRIES):
            if self.transport.link.routes.bind(*binding, present=True):
                return
            self.transport.link.store.declare_queue(queue, False, *declared)
        raise NotFound(f"queue {queue!r} is gone each time before it is bound: see its x-expires")

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Remove one binding; one that does not exist is ignored."""
        del arguments
        binding = (queue, exchange or "amq.direct", routing_key or "")
        self.transport.link.session.registration.topology.forget_binding(*binding)
        self.transport.link.routes.unbind(*binding)

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any
    ) -> int:
        """Delete *queue* with its messages and bindings; returns how many waited in it.

        Raises PreconditionFailed when a condition does not hold.
        """
        self.transport.link.session.registration.end_lingering(queue, self.transport.link.store)
        deleted = self.transport.link.store.delete_queue(
            queue, if_empty=if_empty, if_unused=if_unused
        )
        if deleted.outcome == "not_empty":
            raise PreconditionFailed(f"queue {queue!r} is not empty: {deleted.number} messages")
        if deleted.outcome == "in_use":
            raise PreconditionFailed(f"queue {queue!r} is in use: {deleted.number} consumers")
        self.transport.declarations.forget(queue)
        self.transport.link.routes.forget_queue(queue)
        return deleted.number

    def queue_purge(self, queue: str, **_: Any) -> int:
        """Remove what waits in *queue*, ready or delayed; returns how many messages."""
        return self.transport.link.store.purge(queue)

    def after_reply_message_received(self, queue: str) -> None:
        """Delete a reply queue that has served its purpose."""
        self.queue_delete(queue)

    def list_bindings(self) -> Iterable[tuple[str, str, str]]:
        """Return (queue, exchange, routing key) of every binding there is."""
        return list(self.transport.link.routes.bindings())

    get_bindings = list_bindings

    def _size(self, queue: str) -> int:
        status = self.transport.link.store.status(queue)
        return 0 if status is None else status.ready + status.delayed


def _in_words(declaration: bytes) -> str:
    return repr(unpack(declaration)) if declaration else "no arguments"
