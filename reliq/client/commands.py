"""Commands: how a store sends commands to one server or to the nodes of a cluster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import ReliqError, again
from ..values.values import ignore_result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..lua.scripts import Script
    from ..options import Options
    from .connect import Broker
    from .pipeline import OnReply
    from .stream import Command, Reply


class Commands(ABC):
    """Sends commands. A call waits for its reply; the reply to a post is read later.

    Calls and posts have no order between them. Both kinds of wire also have the other methods
    that a store needs of its connections.
    """

    address: Broker
    options: Options
    connections = 0
    """A counter that grows with each reconnection to the broker."""

    # -- the connections

    @property
    @abstractmethod
    def dials(self) -> int:
        """A counter that grows with each opened connection."""

    @property
    @abstractmethod
    def client_id(self) -> int:
        """The server's id of the connection for posts; 0 if it is unknown."""

    @abstractmethod
    def connect(self) -> None:
        """Connect unless connected. Raises BrokerUnavailable."""

    @abstractmethod
    def connect_to_post(self) -> None:
        """Open the connection for posts unless it is open. Raises BrokerUnavailable."""

    # -- calls

    @abstractmethod
    def replies(
        self, commands: Sequence[tuple[Command, Script | None]], patience_s: float = 0.0
    ) -> list[Reply]:
        """Do as :meth:`exchange` does, but return the refusal of a command as its reply."""

    def exchange(
        self, commands: Sequence[tuple[Command, Script | None]], patience_s: float = 0.0
    ) -> list[Reply]:
        """Write all *commands* at once and return their replies: one round trip to each node.

        Not atomic, and ordered only within a slot. Raises the first error among the replies, after
        all have arrived. *patience_s* is the time that the commands may take in addition to
        socket_timeout.
        """
        return raise_first(self.replies(commands, patience_s), ReliqError)

    def call_all(self, *commands: Command) -> list[Reply]:
        """Do as :meth:`exchange` does, with commands that run no script."""
        return self.exchange([(command, None) for command in commands])

    def call(self, command: Command, script: Script | None = None) -> Reply:
        """Write *command*, wait for its reply and return it. Raises ReliqError."""
        return raise_first(self.replies(((command, script),)), ReliqError)[0]

    def run(
        self, script: Script, others: NamedTuple | None, args: Sequence[Any], /, **keys: str
    ) -> Reply:
        """Run *script* with these keys (:meth:`..lua.scripts.Script.named`). Raises ReliqError."""
        return self.call(*script.over(others, args, **keys))

    # -- posts

    @abstractmethod
    def post(
        self,
        command: Command,
        on_reply: OnReply = ignore_result,
        script: Script | None = None,
        patience_s: float = 0.0,
    ) -> None:
        """Write *command* now; *on_reply* gets its reply or a ReliqError later.

        Raises BrokerUnavailable if the command could not be written; *on_reply* is then not
        called. Over a cluster, *on_reply* is called, unless the whole wire was closed.
        """

    @abstractmethod
    def call_in_order(self, command: Command, script: Script) -> Reply:
        """Do as :meth:`call` does, after all earlier posts to the same server."""


def raise_first(replies: list[Reply], kind: type[ReliqError]) -> list[Reply]:
    """Return *replies*. Raises the first error of type *kind* among them."""
    for reply in replies:
        if isinstance(reply, kind):
            raise again(reply)
    return replies
