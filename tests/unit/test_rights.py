"""The rules of `reliq acl` are derived from the code's commands and printed in the documents."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from reliq import ConfigurationError
from reliq.admin import ROLES, acl_rule
from reliq.lua import rights, scripts

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = [ROOT / "reliq" / name for name in ("client", "doctor", "store")]
SCRIPTS = [item for item in vars(scripts).values() if isinstance(item, scripts.Script)]

# Commands whose second word matters.
_CONTAINERS = {"ACL", "CLIENT", "CLUSTER", "CONFIG", "SCRIPT", "SENTINEL"}
# Beginnings of errors that look like commands.
_ERRORS = {"OOM", "NOPERM", "MISCONF", "WRONGTYPE", "CROSSSLOT"}
# Every user may log in.
_OF_NO_ROLE = {"auth"}
# redis-py selects the database.
_BY_REDIS_PY = {"select"}


def _words(nodes):
    return [node.value if isinstance(node, ast.Constant) else None for node in nodes]


def sent(source):
    """Return the commands that a module sends: tuples and calls that begin with one."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        words = []
        if isinstance(node, ast.Tuple):
            words = _words(node.elts)
        elif isinstance(node, ast.Call) and "ask" in ast.unparse(node.func):
            words = [word for word in _words(node.args) if word is not None]
        first = words[0] if words else None
        if isinstance(first, str) and re.fullmatch("[A-Z]+", first) and first not in _ERRORS:
            found.add(f"{first}|{words[1]}".lower() if first in _CONTAINERS else first.lower())
    return found


def test_every_command_that_is_sent_is_in_a_role():
    """The roles contain exactly the commands that are sent."""
    optional = rights.CONFIG | rights.BEHIND_SENTINELS
    optional |= rights.IN_CLUSTER | rights.OPERATES_CLUSTER
    optional = optional.union(*rights.CONFIRMS.values())
    named = optional.union(*(role.sent for role in rights.ROLES.values()))
    found = _BY_REDIS_PY.union(
        *(sent(path.read_text()) for folder in FOLDERS for path in folder.rglob("*.py"))
    )
    assert sorted(found - _OF_NO_ROLE) == sorted(named)


def test_what_the_walk_finds():
    """The walk finds tuples and calls with commands, but not the words of errors."""
    source = (
        'wire.call(("HGET", key, "x")); self._ask("CONFIG", "GET", name); ("OOM", "full")\n'
        'ask(connection, "ROLE"); ("CLIENT", "LIST", "ID", *ids); name.startswith("RDB")'
    )
    assert {"hget", "config|get", "role", "client|list"} == sent(source)


def test_every_script_is_in_a_role():
    """Each script belongs to a role, and each command in a script can be read."""
    run = {script.name for role in rights.ROLES.values() for script in role.scripts}
    assert sorted(script.name for script in SCRIPTS) == sorted(run), "see lua/rights.py"
    for script in SCRIPTS:
        code = "\n".join(line.partition("--")[0] for line in script.text.splitlines())
        assert code.count("redis.call") + code.count("redis.pcall") == len(
            re.findall(r"redis\.p?call\('[A-Z]+'", code)
        ), script.name


@pytest.mark.parametrize("role", ROLES)
def test_nothing_is_granted_that_harms_others(role):
    """A rule grants no category, and no command that reaches beyond its keys."""
    rule = acl_rule(role, confirm="replicated", config=True, sentinels=True, cluster=True)
    words = rule.split()
    assert not [word for word in words if "@" in word or word.startswith("-")]
    harmful = "acl config eval_ro fcall flushall flushdb function keys module monitor script client"
    harmful += " acl|setuser config|set script|flush script|kill function|load client|kill debug"
    harmful += " replicaof shutdown swapdb save cluster subscribe publish rename copy restore"
    harmful += " migrate cluster|setslot cluster|reset cluster|failover"
    assert set() == {word[1:] for word in words if word[0] == "+"} & set(harmful.split())


def test_what_is_only_for_who_asks():
    """Optional rights are granted on request only.

    They cover settings (passwords among them), waits, the role of a server, and the slots of nodes.
    """
    rules = " ".join(acl_rule(role) for role in ROLES).split()
    assert set() == {"+config|get", "+wait", "+waitaof", "+role", "+cluster|slots"} & set(rules)
    assert "+config|get" in acl_rule("operator", config=True).split()
    assert "+config|get" not in acl_rule("worker", config=True).split()
    assert "+role" in acl_rule("worker", sentinels=True).split()
    for role in ROLES:
        asks_nodes = role != "sentinel"
        assert asks_nodes is ("+cluster|slots" in acl_rule(role, cluster=True).split())
    operators = {r for r in ROLES if "+cluster|nodes" in acl_rule(r, cluster=True).split()}
    assert {"viewer", "operator", "migration"} == operators
    assert "+waitaof" in acl_rule("producer", confirm="fsynced").split()
    with pytest.raises(ConfigurationError, match="one of none, accepted, replicated, fsynced"):
        acl_rule("producer", confirm="replicate")


def test_a_password_with_a_space_is_not_shown():
    """A password with a space is refused, and the error contains no part of it."""
    with pytest.raises(ConfigurationError, match="password without spaces") as caught:
        acl_rule("worker", password="hush hush")
    assert "hush" not in str(caught.value)


def printed(path):
    """Return the ACL rules in a document."""
    text = path.read_text("utf-8")
    blocks = re.findall(r"^```acl\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [" ".join(rule.split()) for block in blocks for rule in re.split(r"\n(?=ACL)", block)]


def test_the_page_for_operators_prints_every_rule():
    """The page for operators contains every rule as `reliq acl` prints it."""
    page = ROOT / "docs" / "operations.md"
    assert printed(page) == [acl_rule(role) for role in ROLES], "run docs/rules.py"
