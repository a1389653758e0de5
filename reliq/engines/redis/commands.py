"""What a store's commands go over: one wire, or one to each node of a cluster."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from ...store.protocol import ignore_result

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...options import Confirm
    from ...store.values import Publication
    from .connect import Broker
    from .scripts import Script
    from .stream import Command, Reply
    from .unanswered import OnReply


class Commands(Protocol):
    """See :class:`.wire.Wire`."""

    @property
    def address(self) -> Broker:
        """The broker."""

    @property
    def client_id(self) -> int:
        """The server's name for the connection."""

    @property
    def dials(self) -> int:
        """Grows whenever a connection is opened."""

    @property
    def connected_at(self) -> float:
        """When the connection began to be opened (monotonic clock)."""

    @property
    def alive(self) -> bool:
        """Whether it is connected."""

    @property
    def waiting(self) -> bool:
        """Whether a posted command has no reply yet."""

    def connect(self) -> None:
        """Dial unless connected; raises BrokerUnavailable."""

    def descriptors(self) -> Mapping[int, object]:
        """Return the descriptors to watch for replies, each with what it belongs to."""

    def disable_reconnect(self) -> None:
        """Never dial again, where an event loop watches one descriptor."""

    def close(self) -> None:
        """Close for good; commands under way, and later ones, get a BrokerUnavailable."""

    def check(self) -> None:
        """Raise BrokerTimeout if the oldest unanswered command waits too long."""

    def post(
        self,
        command: Command,
        on_reply: OnReply = ignore_result,
        script: Script | None = None,
        patience_s: float = 0.0,
    ) -> None:
        """Write *command* now; *on_reply* gets its reply or a ReliqError, later."""

    def post_packed(
        self,
        data: bytes,
        command: Command,
        on_reply: OnReply = ignore_result,
        script: Script | None = None,
        patience_s: float = 0.0,
    ) -> None:
        """Write *data*, which is *command* packed; otherwise as :meth:`post`."""

    def post_script(
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[Any],
        on_reply: OnReply = ignore_result,
    ) -> None:
        """Post *script*; see :meth:`post`."""

    def call(self, command: Command, script: Script | None = None) -> Reply:
        """Write *command*, wait for its reply and return it; raises ReliqError."""

    def execute(self, script: Script, keys: Sequence[str], args: Sequence[Any]) -> Reply:
        """Run *script* and return its reply; raises ReliqError."""

    def exchange(
        self, commands: Sequence[tuple[Command, Script | None]], patience_s: float = 0.0
    ) -> list[Reply]:
        """Write all *commands* at once and return their replies; raises the first error."""

    def replies(
        self, commands: Sequence[tuple[Command, Script | None]], patience_s: float = 0.0
    ) -> list[Reply]:
        """Do as :meth:`exchange` does; what a command is refused with is its reply."""

    def receive(self) -> None:
        """Read what has come, without waiting, and hand it out."""

    def wait_for_replies(self, timeout_s: float = inf) -> None:
        """Wait until every posted command has its reply; at most *timeout_s*."""


class Confirming(Protocol):
    """See :class:`.confirm.Confirmer`."""

    def require_confirm(self, level: Confirm) -> None:
        """Raise BrokerRefused where the broker cannot say that a write is on disk."""

    def confirm(
        self, level: Confirm, replicas: int, timeout_ms: int, publications: Sequence[Publication]
    ) -> None:
        """Wait for replicas or the disk; raises NotConfirmed after *timeout_ms*."""
