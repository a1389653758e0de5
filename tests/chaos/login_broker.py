"""A server whose logins end: two users take turns, and clients get the current one's token.

Half of the client processes ask for the token, the others have it streamed. Both read it from a
file, which is missing while the provider fails.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, ClassVar

from redis.auth.token import SimpleToken
from redis.credentials import CredentialProvider

from tests.chaos.broker import Broker
from tests.chaos.kind import FaultKind
from tests.support.servers import RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.kind import Stage
    from tests.chaos.model import Fault, Strike
    from tests.chaos.settings import Brokers

_FILE = "RELIQ_CHAOS_LOGIN"
_LOOK_S = 0.2
_FAR_MS = 9e12


class Asked(CredentialProvider):
    """Reads user and token at each question."""

    def get_credentials(self) -> tuple[str, str]:
        """Return them; raises OSError while the provider fails."""
        user, token = Path(os.environ[_FILE]).read_text(encoding="ascii").split()
        return user, token


class Streamed(Asked):
    """Also passes on each new token, from a thread of its own."""

    def on_next(self, receive: Callable[[Any], None]) -> None:
        """Pass new tokens to *receive* from now on."""
        self._report: Callable[[Exception], None] = lambda error: None
        Thread(target=self._watch, args=(receive,), daemon=True).start()

    def on_error(self, receive: Callable[[Exception], None]) -> None:
        """Pass errors to *receive*."""
        self._report = receive

    def is_streaming(self) -> bool:
        """Whether tokens are passed on."""
        return True

    def _watch(self, receive: Callable[[Any], None]) -> None:
        known: tuple[str, str] | None = None
        pause = Event()
        while not pause.wait(_LOOK_S):
            try:
                found = self.get_credentials()
            except OSError as exc:
                self._report(exc)
                continue
            if found != known:
                known = found
                receive(SimpleToken(found[1], _FAR_MS, 0, {"oid": found[0]}))


def provider() -> CredentialProvider:
    """Return one of the two, depending on the process."""
    return Streamed() if os.getpid() % 2 else Asked()


class LoginBroker(Broker):
    """One server, whose users are changed by faults. The inspection logs in as another user."""

    def __init__(self, *, second: bool = False) -> None:
        assert not second, "logins end at one server"
        self._stack = ExitStack()
        self.second = None
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self._file = folder / "token"
        self.primary = RedisServer(appendonly=True)
        self._stack.callback(self.primary.destroy)
        self.primary.start()
        self.user = "second"
        self.renew()

    @property
    def servers(self) -> list[RedisServer]:
        """The only server."""
        return [self.primary]

    def url(self, scheme: str) -> str:
        """Return the URL for clients, without a login."""
        return self.primary.url(scheme)

    @property
    def options(self) -> dict[str, object]:
        """The provider, which is asked again after the shortest interval."""
        return {"credential_provider": f"{__name__}:provider", "credential_interval": 1}

    @property
    def environment(self) -> dict[str, str]:
        """The file with user and token."""
        return {_FILE: str(self._file)}

    def renew(self) -> str:
        """Hand out a token of the other user, who may log in from now on; return the last one."""
        before, self.user = self.user, "first" if self.user == "second" else "second"
        self.hand_out(self.accept())
        return before

    def accept(self) -> str:
        """Make the server accept only a new token of the current user; return it."""
        token = secrets.token_hex(8)
        with self.client() as client:
            client.acl_setuser(
                self.user,
                enabled=True,
                reset_passwords=True,
                passwords=[f"+{token}"],
                keys="*",
                channels="*",
                categories=["+@all"],
            )
        return token

    def hand_out(self, token: str) -> None:
        """Pass a token of the current user to clients; "": let their providers fail."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{self.user} {token}", encoding="ascii")
        new.replace(self._file)
        if not token:
            self._file.unlink()

    def cut(self, user: str) -> int:
        """Close the connections of a user; return their number."""
        with self.client() as client:
            return int(client.client_kill_filter(user=user))

    def end(self, user: str) -> str:
        """Refuse a user and close the connections that are still theirs; return both in words."""
        with self.client() as client:
            every = [one for one in client.client_list() if one["user"] != "default"]
            client.acl_setuser(user, enabled=False)
        return f"{self.cut(user)} of {len(every)} connections were not renewed"


class _OfALogin(FaultKind):
    brokers: ClassVar[frozenset[Brokers]] = frozenset({"logins"})
    of_broker = True

    def __init__(self, stage: Stage, strike: Strike) -> None:
        super().__init__(stage, strike)
        assert isinstance(stage.broker, LoginBroker)
        self.logins = stage.broker


class LoginCut(_OfALogin):
    """The token was valid until now: each client needs the next one at once."""

    name, about = "login-cut", "a new token, and CLIENT KILL USER to all logged in with the old one"

    def apply(self) -> Fault:
        """Change the token, and close all connections."""
        self.logins.hand_out(self.logins.accept())
        return self._fault(cuts=True, note=f"{self.logins.cut(self.logins.user)} connections")


class LoginRenewal(_OfALogin):
    """There is time to renew: used connections live on."""

    name, about = "login-renewal", "a token of another user; the old user is cut seconds later"
    span = (4.0, 6.0)

    def apply(self) -> Fault:
        """Hand out the other user's token."""
        self.before = self.logins.renew()
        self.fault = self._fault(cuts=True)
        return self.fault

    def undo(self) -> None:
        """End the old user."""
        self.fault.note = self.logins.end(self.before)


class LoginLate(_OfALogin):
    """The server accepts a token that the clients do not have yet."""

    name, about = "login-late", "CLIENT KILL USER, and no valid token for up to two seconds"
    span = (0.5, 2.0)

    def apply(self) -> Fault:
        """Change the token and close all connections."""
        self.token = self.logins.accept()
        return self._fault(outage=True, note=f"{self.logins.cut(self.logins.user)} connections")

    def undo(self) -> None:
        """Hand out the token."""
        self.logins.hand_out(self.token)


class LoginFailing(_OfALogin):
    """Renewals fail for some seconds; the connections stay.

    It is an outage for a process that opens one, such as that of its background loop.
    """

    name, about = "login-failing", "the provider raises for some seconds; open connections stay"
    span = (1.0, 4.0)

    def apply(self) -> Fault:
        """Take the token away."""
        self.logins.hand_out("")
        return self._fault(outage=True)

    def undo(self) -> None:
        """Hand out a new one; the old one stays valid on open connections."""
        self.logins.hand_out(self.logins.accept())


KINDS = (LoginCut, LoginRenewal, LoginLate, LoginFailing)
