"""The commands that managed services refuse, as ACLs for tests and as a table of the docs.

    python -m tests.support.managed

writes the table into docs/managed-redis.md. A test compares both.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).resolve().parents[2] / "docs" / "managed-redis.md"
READ = "2026-11-24"
_TABLE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end -->)", re.DOTALL)
# Refused by all services. reliq sends none of these, except CONFIG GET in the doctor.
_OPERATED = (
    "-config -debug -migrate -replicaof -slaveof -save -bgsave -bgrewriteaof -shutdown -sync"
)
_SERVERLESS = (
    "-psync -acl -function -fcall -fcall_ro -keys -lastsave -latency -memory -monitor -move "
    "-object -psubscribe -punsubscribe -slowlog -swapdb -wait"
)
_REDIS_SOFTWARE = (
    f"{_OPERATED} -select -role -psync -failover -swapdb -move -lastsave -latency -monitor "
    "-acl +acl|whoami +config|get"
)


class Provider(NamedTuple):
    """One service: its refused commands, their effect on reliq, and the ACL of its test."""

    name: str
    source: str
    """The page with its list; "" where none is readable: the row assumes the most refusals."""
    refuses: str
    """The refused commands that reliq uses, in words."""
    effect: str
    """The effect on reliq, in words."""
    rule: str
    """The ACL rule of its user, after +@all."""
    unknown: tuple[str, ...] = ()
    """Commands that its server does not know."""
    scheme: str = "`reliqs://`"

    @property
    def row(self) -> str:
        """Return the row of the table."""
        source = f"[page]({self.source}), {READ}" if self.source else "assumed"
        cells = (self.name, self.scheme, self.refuses, self.effect, source)
        return f"| {' | '.join(cells)} |"


_BLIND = "messages of killed workers return when leases expire; waits use a token"
PROVIDERS = (
    Provider(
        "ElastiCache (nodes)",
        "https://docs.aws.amazon.com/AmazonElastiCache/latest/dg/ClientConfig.RestrictedCommands.html",
        "CONFIG",
        "no settings in the doctor",
        _OPERATED,
    ),
    Provider(
        "ElastiCache Serverless",
        "https://docs.aws.amazon.com/AmazonElastiCache/latest/dg/SupportedCommands.html",
        "CONFIG; CLIENT ID, LIST and UNBLOCK; WAIT",
        f'{_BLIND}; no `confirm="replicated"`',
        f"{_OPERATED} {_SERVERLESS} -client +client|setname +client|getname +client|reply",
        scheme="`reliq-cluster://` with TLS",
    ),
    Provider(
        "MemoryDB",
        "https://docs.aws.amazon.com/memorydb/latest/devguide/restrictedcommands.html",
        "CONFIG, ACL SETUSER",
        "no settings in the doctor; create users in the console",
        f"{_OPERATED} -psync -module -acl +acl|whoami",
        scheme="`reliq-cluster://` with TLS",
    ),
    Provider(
        "Memorystore for Redis",
        "https://cloud.google.com/memorystore/docs/redis/product-constraints",
        "CONFIG, all of CLIENT, ACL WHOAMI (as unknown commands)",
        f"{_BLIND}; unnamed connections",
        _OPERATED,
        ("CLIENT", "CONFIG", "ACL", "CLUSTER", "COMMAND", "LASTSAVE", "MONITOR", "OBJECT"),
    ),
    Provider(
        "Memorystore for Valkey",
        "https://docs.cloud.google.com/memorystore/docs/valkey/supported-commands",
        "CONFIG GET, CLIENT UNBLOCK",
        "waits use a token",
        f"{_OPERATED} -acl -client +client|id +client|info +client|kill +client|list "
        "+client|reply +client|getname +client|setname",
    ),
    Provider(
        "Azure Managed Redis, not clustered",
        "https://redis.io/docs/latest/operate/rs/references/compatibility/commands/",
        "SELECT, ROLE (on the Redis Software list that Microsoft's page links to)",
        "database 0 only",
        _REDIS_SOFTWARE,
    ),
    Provider(
        "Upstash",
        "https://upstash.com/docs/redis/overall/rediscompatibility",
        "CLIENT UNBLOCK, WAIT, ROLE",
        'waits use a token; no `confirm="replicated"`',
        f"{_OPERATED} -wait -role -client +client|getname +client|id +client|info +client|list "
        "+client|setname",
    ),
    Provider(
        "Redis Cloud",
        "https://redis.io/docs/latest/operate/rs/references/compatibility/commands/",
        "SELECT, ROLE; WAIT outside flexible plans",
        'database 0 only; outside flexible plans, no `confirm="replicated"`',
        f"{_REDIS_SOFTWARE} -wait",
    ),
    Provider(
        "Heroku Key-Value Store",
        "",
        "all of CLIENT, EVALSHA, SCRIPT, INFO, CONFIG",
        f"{_BLIND}; scripts sent as text; unnamed connections; few checks in the doctor",
        f"{_OPERATED} -client -evalsha -script -info",
        scheme="`reliqs://...?ssl_cert_reqs=none`",
    ),
)


def table() -> str:
    """Return the table for the page."""
    head = "| service | URL | refused commands that reliq uses | effect | source, date read |"
    return "\n".join([head, "| --- | --- | --- | --- | --- |", *(p.row for p in PROVIDERS)]) + "\n"


def printed() -> str:
    """Return the table in the page."""
    found = _TABLE.search(PAGE.read_text("utf-8"))
    return "" if found is None else found[0]


if __name__ == "__main__":
    PAGE.write_text(_TABLE.sub(lambda _: table(), PAGE.read_text("utf-8")), "utf-8")
