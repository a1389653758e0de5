"""Commands: how a store sends its commands, to one server or to the nodes of a cluster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import ReliqError, again
from ...store.values import ignore_result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...options import Options
    from .connect import Broker
    from .pipeline import OnReply
    from .scripts import Script
    from .stream import Command, Reply


class Commands(ABC):
    """A command is called, and its reply waited for; or posted, and its reply read later.

    Between a call and a post there is no order. What a store needs of its connections beside that
    is in both kinds of wire.
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
        """The server's name for the connection that is posted over; 0 where it is not known."""

    @abstractmethod
    def connect(self) -> None:
        """Dial unless connected; raises BrokerUnavailable."""

    @abstractmethod
    def connect_to_post(self) -> None:
        """Have the connection that is posted over; raises BrokerUnavailable."""

    # -- calls

    @abstractmethod
    def replies(
        self, commands: Sequence[tuple[Command, Script | None]], patience_s: float = 0.0
    ) -> list[Reply]:
        """Do as :meth:`exchange` does; a refusal of a command is its reply."""

    def exchange(
        self, commands: Sequence[tuple[Command, Script | None]], patience_s: float = 0.0
    ) -> list[Reply]:
        """Write all *commands* at once and return their replies: one round trip to each node.

        Not atomic, and in order only within a slot. Raises the first error among the replies,
        after all have come. *patience_s* is how long the commands themselves may take, beyond
        socket_timeout.
        """
        return raise_first(self.replies(commands, patience_s), ReliqError)

    def call_all(self, *commands: Command) -> list[Reply]:
        """Do as :meth:`exchange` does, with commands that run no script."""
        return self.exchange([(command, None) for command in commands])

    def call(self, command: Command, script: Script | None = None) -> Reply:
        """Write *command*, wait for its reply and return it; raises ReliqError."""
        return raise_first(self.replies(((command, script),)), ReliqError)[0]

    def run(
        self, script: Script, others: NamedTuple | None, args: Sequence[Any], /, **keys: str
    ) -> Reply:
        """Run *script* over these keys (:meth:`.scripts.Script.named`); raises ReliqError."""
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
        """Write *command* now; *on_reply* gets its reply or a ReliqError, later.

        Raises BrokerUnavailable when it could not be written; *on_reply* is then
        not called. Over a cluster *on_reply* is called, unless all of it was closed.
        """

    @abstractmethod
    def call_in_order(self, command: Command, script: Script) -> Reply:
        """Do as :meth:`call` does, behind what was posted to the same server before."""


def raise_first(replies: list[Reply], kind: type[ReliqError]) -> list[Reply]:
    """Return *replies*; raises the first error of this *kind* among them."""
    for reply in replies:
        if isinstance(reply, kind):
            raise again(reply)
    return replies
