"""Redis Sentinel: queries the Sentinels for the master at every connection.

Owns the list of Sentinels and the check of their answers; knows nothing of queues.
A Sentinel may be down, partitioned, or behind its peers. An answer is therefore a hint: only
a server that reports itself as a master is used.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..errors import BrokerUnavailable, ConfigurationError
from .connect import Address, ask, ask_once
from .urls import address_of, read, together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..options import Options
    from .connect import Dialled

SCHEME = "reliq-sentinel"
DEFAULT_PORT = 26379


@dataclass(frozen=True)
class SentinelAddress:
    """The master that a group of Sentinels monitors. Its repr shows no password.

    *master* has everything about it but host and port: database, login and TLS, which
    the Sentinels do not know.
    """

    name: str
    sentinels: tuple[Address, ...]
    master: Address
    _knew: list[Address] = field(default_factory=list, init=False, repr=False, compare=False)
    """The Sentinel that last knew the master. Each use is atomic and needs no lock."""

    def __str__(self) -> str:
        """Return the name for messages, without the server that is the master now."""
        return f"{SCHEME}://{self.name}/{self.master.db}"

    @property
    def identity(self) -> tuple[object, ...]:
        """Return the part that a failover does not change: Sentinels, name, database, login."""
        sentinels = tuple(sorted(str(sentinel.identity) for sentinel in self.sentinels))
        return (SCHEME, self.name, sentinels, self.master.identity)

    def connect(self, options: Options, name: str) -> Dialled:
        """Open a connection to the master. Raises BrokerUnavailable if none is found.

        The Sentinels are queried in turn, the one that last knew the master first.
        """
        refusals: list[str] = []
        tried: set[tuple[str, int]] = set()
        first = self._knew.copy()
        for sentinel in (*first, *(other for other in self.sentinels if other not in first)):
            try:
                place = self._ask(sentinel, options, name)
                if place in tried:
                    continue
                tried.add(place)
                connection = self._dial_master(*place, options, name)
            except BrokerUnavailable as exc:
                refusals.append(str(exc))
                continue
            self._knew[:] = [sentinel]
            return connection
        raise BrokerUnavailable(
            f"{self}: no master was found through {len(self.sentinels)} Sentinel(s): "
            + "; ".join(refusals)
        )

    def _ask(self, sentinel: Address, options: Options, name: str) -> tuple[str, int]:
        # A slow Sentinel counts as down, as in Redis' guide for clients.
        reply = ask_once(sentinel, options, name, "SENTINEL", "get-master-addr-by-name", self.name)
        if not reply:
            raise BrokerUnavailable(
                f"the Sentinel at {sentinel.host}:{sentinel.port} knows no master "
                f"{self.name!r} (transport option master_name)"
            )
        host, port = reply
        return host.decode(), int(port)

    def _dial_master(self, host: str, port: int, options: Options, name: str) -> Dialled:
        address = replace(self.master, host=host, port=port)
        connection = address.connect(options, name)
        with connection.dialling():
            role = ask(connection, "ROLE")[0].decode()
            if role != "master":
                raise BrokerUnavailable(
                    f"{address} is named as the master {self.name!r} but is a {role}: "
                    "a failover is under way"
                )
        return connection


def sentinel_address(
    urls: Sequence[str],
    options: Options,
    username: str | None = None,
    password: Any = None,
    tls: Any = None,
) -> SentinelAddress:
    """Return the address that *urls*, one for each Sentinel, and *options* describe.

    User, password and database are the master's; naming them in one URL is enough.
    TLS is for the Sentinels as well; see :func:`.urls.together`.
    """
    parsed = [read(url, (SCHEME,)) for url in urls]
    if not options.master_name:
        raise ConfigurationError(
            f"{SCHEME}:// needs the transport option master_name: the name under which "
            "the Sentinels monitor the master (sentinel monitor NAME ...)"
        )
    hidden = any("@" in url for url in urls)
    whole = together(parsed, username=username, password=password, tls=tls)
    master = address_of(whole, show=not hidden)
    places = dict.fromkeys((item.host or "localhost", item.port or DEFAULT_PORT) for item in parsed)
    sentinels = tuple(
        Address(
            host=host,
            port=port,
            username=options.sentinel_username,
            password=options.sentinel_credential_provider or options.sentinel_password,
            tls=master.tls,
        )
        for host, port in places
    )
    return SentinelAddress(
        options.master_name, sentinels, replace(master, host="localhost", port=6379)
    )
