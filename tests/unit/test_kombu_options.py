"""reliq/kombu_options.py knows every option of the installed Kombu's Redis transport."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import fields

from kombu import connection
from kombu.transport import redis, virtual

from reliq.kombu_options import KEPT, UNUSED
from reliq.options import PASSED_THROUGH, Options

LISTED = {*KEPT, *UNUSED}
MAPPINGS = {"transport_options", "transport_opts", "topts", "connection_kwargs", "conn_opts"}
# Known to redis-py only; applications set it all the same, and Kombu ignores it.
OF_REDIS_PY = {"socket_read_size"}


def read_by(module):
    """Return the names that a module of Kombu reads from the mapping of transport options."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        where, key = None, None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            if node.func.attr in {"get", "pop", "setdefault"}:
                where, key = node.func.value, node.args[0]
        elif isinstance(node, ast.Subscript):
            where, key = node.value, node.slice
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In):
            where, key = node.comparators[0], node.left
        name = getattr(where, "attr", getattr(where, "id", None))
        if name in MAPPINGS and isinstance(key, ast.Constant):
            yield key.value


def of_kombu():
    """Return all options of the installed Kombu's Redis transport."""
    documented = re.search(r"Transport Options\n=+\n(.*?)\n\w.*\n===", redis.__doc__, re.DOTALL)
    return {
        *redis.SentinelChannel.from_transport_options,
        *(name for module in (redis, virtual.base, connection) for name in read_by(module)),
        *re.findall(r"^\* ``(\w+)``", documented[1], re.MULTILINE),
        # Arguments of redis-py's connections that Kombu takes from its connection.
        *(name for name in vars(connection.Connection("redis://")) if name.startswith("cred")),
    }


def test_every_option_of_kombu_is_listed():
    """A new option of Kombu fails this test until reliq/kombu_options.py says what it does."""
    found = of_kombu()
    assert {"retry", "reauth_check_interval", "min_other_sentinels", "polling_interval"} <= found
    assert set() == found - LISTED - PASSED_THROUGH
    assert OF_REDIS_PY == LISTED - found


def test_each_option_is_listed_once():
    """An option has an effect or has none; reliq's own options have an effect."""
    assert len(LISTED) == len(KEPT) + len(UNUSED)
    own = {field.name for field in fields(Options)}
    assert {"sentinel_kwargs"} == set(KEPT) - own
    assert set() == own & UNUSED
    assert set() == LISTED & PASSED_THROUGH
