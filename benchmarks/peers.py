"""The transports that are compared, and how a program connects to one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kombu import Connection


@dataclass(frozen=True)
class Peer:
    """A transport by its URL scheme."""

    name: str
    scheme: str

    def url(self, port: int) -> str:
        """Return the broker URL of database 0 of the server on this loopback port."""
        return f"{self.scheme}://127.0.0.1:{port}/0"

    def unacked_index(self, queue: str) -> str:
        """Return the key of the zset with one entry for each unacked message of the queue."""
        if is_reliq(self.scheme):
            return f"reliq:{{{queue}}}:unacked_index"
        return "unacked_index"

    def audit(self, port: int) -> None:
        """Raise unless reliq's ledger balances in every queue; Kombu keeps none."""
        if not is_reliq(self.scheme):
            return
        from reliq.admin import Inspector

        with Inspector(self.url(port)) as inspector:
            wrong = [result for result in inspector.audit() if not result.balanced]
        if wrong:
            raise AssertionError(f"the ledger does not balance: {wrong}")


def is_reliq(url_or_scheme: str) -> bool:
    """Tell whether a URL or scheme is one of reliq's."""
    return url_or_scheme.startswith("reliq")


def connect(url: str, **transport_options: Any) -> Connection:
    """Open a Kombu connection; plain Kombu knows reliq's schemes once it is imported."""
    if is_reliq(url):
        import reliq  # noqa: F401  # registers the schemes
    connection = Connection(url, transport_options=transport_options)
    connection.connect()
    return connection
