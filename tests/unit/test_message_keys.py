"""Only the shared functions for the moves of a message write its keys, under whatever local name.

The expanded scripts are read: each write is traced from the local that it names to the keys that
the script is given, through assignments, loops, tables and parameters.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.unit.test_lua_headers import _READS, SCRIPTS, SHARED, expressions

if TYPE_CHECKING:
    from collections.abc import Iterator

KEYS = {"messages", "ready", "delayed", "expiry", "unacked_index", "unacked", "deliveries"}
KEYS |= {"dead", "dead_info"}
WRITERS = {
    "store",
    "take",
    "promote",
    "lease",
    "end_leases",
    "wait",
    "count_failures",
    "record_dead",
    "unbury",
    "leave",
    "wipe",
}
EXCEPTIONS = {
    # Measured for one message: end_leases adds 3.4 % to the instructions of the script.
    ("ack", "ZREM", "unacked_index"),
    ("ack", "HDEL", "unacked"),
    # Returns a message that this consumer removed, if nobody stored it since, in one command.
    # Measured: `store` needs two more, and a step of 50 messages a third more instructions.
    ("hand_back", "HSETNX", "messages"),
}

_CALL = re.compile(r"redis\.p?call\('(\w+)'(?:, ([^,)]+)(.*))?")
_NOTHING = re.compile(r"(, 'XX', 0)?, ('-'|''|0)(, '')?\)")
_SETS = re.compile(r"^ *(?:local )?([\w.\[\]#+, ]+?) = (.+)$", re.MULTILINE)
_LOOPS = re.compile(r"\bfor ([\w, ]+) in (.+) do\b")
_FUNCTION = re.compile(r"( *)(?:local )?function (\w+)\(([^)]*)\)")


class Write(NamedTuple):
    """One command of a script that writes a key of a message."""

    function: str
    """The shared function with the command, or the script itself."""
    command: str
    key: str


def words(text: str) -> set[str]:
    """Return the names in an expression, without its strings."""
    return set(re.findall(r"[A-Za-z_]\w*", re.sub(r"'[^'\n]*'", "", text)))


def origins(code: str) -> dict[str, set[str]]:
    """Return name -> the names that it may stand for: assigned, iterated over, or passed to it."""
    found: dict[str, set[str]] = defaultdict(set)
    for names, values in [*_SETS.findall(code), *_LOOPS.findall(code)]:
        given = expressions(values)
        for i, name in enumerate(names.split(", ")):
            parts = given if len(given) != len(names.split(", ")) else [given[i]]
            for part in words(name):
                found[part].update(*map(words, parts))
    for _, name, parameters in _FUNCTION.findall(code):
        for arguments in re.findall(rf"(?<!function )\b{name}\((.*)", code):
            given = expressions(arguments[: end_of(arguments)])
            for parameter, argument in zip(parameters.split(", "), given, strict=False):
                found[parameter] |= words(argument)
    return found


def end_of(arguments: str) -> int:
    """Return the position of the parenthesis that closes the arguments of a call."""
    depth = 1
    for position, char in enumerate(arguments):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return position
    return len(arguments)


def plain(text: str) -> str:
    """Return a script without comments and line breaks in expressions; parameters get own names."""
    code = "\n".join(line.partition("--")[0].rstrip() for line in text.splitlines())
    code = re.sub(r"([({])\n +", r"\1", code)
    lines = re.sub(r"(,|\bor|\band)\n +", r"\1 ", code).splitlines()
    for first, line in enumerate(lines):
        if begins := _FUNCTION.match(line):
            indent, name, parameters = begins.groups()
            for n in range(first, lines.index(f"{indent}end", first)):
                for parameter in words(parameters):
                    lines[n] = re.sub(rf"\b{parameter}\b", f"{parameter}_of_{name}", lines[n])
    return "\n".join(lines)


def keys_of(expression: str, known: dict[str, set[str]]) -> set[str]:
    """Return the keys that an expression may stand for."""
    found, left = set(), words(expression)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left |= set() if name in KEYS else known[name]
    return found & KEYS


def writes(script: str, text: str) -> Iterator[Write]:
    """Yield the writes of an expanded script to the keys of messages."""
    code = plain(text)
    known = origins(code)
    function, depth = script, ""
    for line in code.splitlines():
        begins = _FUNCTION.match(line)
        if begins and begins[2] in SHARED and function == script:
            depth, function = begins[1], begins[2]
        for command, key, rest in _CALL.findall(line):
            if not _READS.search(command) and not _NOTHING.match(rest):
                for name in keys_of(f"{key} {rest}" if command == "UNLINK" else key, known):
                    yield Write(function, command, name)
        if function != script and line == f"{depth}end":
            function = script


OF_MESSAGES = {name: text for name, text in SCRIPTS.items() if not name.startswith("kombu_")}


@pytest.mark.parametrize("name", OF_MESSAGES)
def test_only_the_moves_write_the_keys_of_a_message(name):
    """Each write of a script is in a shared function for it, or is a listed exception."""
    found = {write for write in writes(name, SCRIPTS[name]) if write.function not in WRITERS}
    assert set() == found - EXCEPTIONS


def test_nothing_is_listed_in_vain():
    """Each function writes, each exception is needed, and there are at most four."""
    found = {write for name, text in OF_MESSAGES.items() for write in writes(name, text)}
    assert WRITERS == {write.function for write in found} & set(SHARED)
    assert {tuple(write) for write in found if write.function not in WRITERS} >= EXCEPTIONS
    assert len(EXCEPTIONS) <= 4


@pytest.mark.parametrize("name", SCRIPTS)
def test_commands_are_called_by_name(name):
    """A script does not call Redis through another local, which would hide its commands."""
    code = re.sub(r"--.*|'[^'\n]*'", "", SCRIPTS[name])
    assert [] == re.findall(r"\bredis\b(?!\.p?call\()", code)


@pytest.mark.parametrize(
    "code",
    [
        "redis.call('ZREM', ready, tag)",
        "local place = ready\nredis.call('ZREM', place, tag)",
        "local a, b = dead, ready\nlocal c = x and b or a\nredis.pcall('ZADD', c, 1, tag)",
        "for _, place in ipairs({stats, ready}) do\n  redis.call('ZREM', place, tag)\nend",
        "local t = {}\nt.place = ready\nredis.call('ZREM', t.place, tag)",
        "local function out(key, tag)\n  redis.call('ZREM', key, tag)\nend\nout(ready, 'x')",
        "local function out(\n    key)\n  redis.call('ZREM', key, 'x')\nend\nout(\n  ready)",
        "redis.call('UNLINK', stats, ready)",
    ],
)
def test_no_alias_hides_a_write(code):
    """A write to a key of a message is found under any local name."""
    assert "ready" in {write.key for write in writes("script", code)}


def test_what_changes_nothing_is_no_write():
    """A check of a right, a read, and a write of another key are no writes of a message."""
    code = "redis.call('ZPOPMIN', ready, 0)\nredis.call('HGET', unacked, 'x')\n"
    code += "redis.call('HDEL', messages, '-')\nredis.call('HINCRBY', stats, 'acked', 1)"
    assert [] == list(writes("script", code))
