"""The header of each Lua script states its keys and arguments, and matches the script.

Named = used = sent: the body uses each named key or argument under that name and with commands of
its type. The Python caller sends it in that position. A rule that several scripts apply is one
function of lua/shared.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, get_type_hints

import pytest

from reliq.batches.jobs import Change, Note
from reliq.client.connect import Address
from reliq.client.stream import parts_of
from reliq.client.wire import Wire
from reliq.lua import keys, scripts
from reliq.options import Options
from reliq.store.kombu import KombuLayout, KombuRedis
from reliq.store.store import RedisStore
from reliq.values.inspection import Position
from reliq.values.values import Delivery, Lease, Move, Publication
from tests.model.mutants import MUTANTS

if TYPE_CHECKING:
    from collections.abc import Sequence

FOLDER = Path(scripts.__file__).parent
FILES = {path.stem: path.read_text("utf-8") for path in sorted(FOLDER.glob("*.lua"))}
# The scripts as sent to the server: with the limits and the shared functions that they name.
SCRIPTS = {name: scripts.Script(name).text for name in FILES}
SHARED = {path.stem: path.read_text("utf-8") for path in sorted(FOLDER.glob("shared/*.lua"))}

_KEYS = re.compile(r" *-- keys(?: of each)?: \w+(, \w+)*")
_PART = re.compile(r"^    (\w+): str  # ([A-Z]+)", re.MULTILINE)
_OTHER = re.compile(r"^def (\w+)\(.*\) -> str:  # ([A-Z]+)", re.MULTILINE)
# The type of each key according to keys.py.
OF_QUEUE = dict(_PART.findall(inspect.getsource(keys.QueueKeys)))
OTHERS = dict(
    [
        *_PART.findall(inspect.getsource(keys.BatchKeys)),
        *_PART.findall(inspect.getsource(keys.BrokerKeys)),
        *_OTHER.findall(inspect.getsource(keys)),
    ]
)
_ARG = re.compile(r"-- ARGV\[(\d+)(\.\.)?\] (\w+(?:, \w+)*) \(.+")
_LOCAL = re.compile(r"^local ([\w, ]+?) =\s*(.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
_CALL = re.compile(r"redis\.p?call\('(\w+)'(?:, ([^,)]+))?")
_INTACT = re.compile(r"\bintact\(\{([\w, ]+)\},\s+\{([\w, ]+)\}\)")
_ADD = re.compile(r"(?<!function )\badd\((\w+), ")
_FUNCTION = re.compile(r"( *)local function (\w+)\(")
_LIST = r"(?m)^ *-- {}(?: of each)?: (.+)$"
_OF_LUA = re.findall(
    r"\w+",
    "and break do else elseif end false for function if in local nil not or repeat return then "
    "true until while KEYS ARGV redis string table math cjson tonumber tostring type unpack "
    "ipairs pairs pcall next",
)
_LIMIT = re.compile(r"\b[A-Z][A-Z_]{3,}\b(?!')")
_FAMILY = {"H": "HASH", "Z": "ZSET", "L": "LIST", "R": "LIST", "S": "SET"}
_STRING = {"SET", "GET", "INCR", "INCRBY", "DECR"}
_ANY_TYPE = {"EXISTS", "DEL", "UNLINK", "EXPIRE", "PEXPIRE", "TTL", "PTTL", "PERSIST", "TYPE"}
_KEYLESS = {"TIME", "INFO"}


class Header(NamedTuple):
    """The contents of a script's first comment."""

    keys: tuple[str, ...]
    args: list[str]
    tail: list[str]


def split(text: str) -> tuple[list[str], str]:
    """Return (lines of the first comment, the code after it)."""
    lines = text.splitlines()
    end = next(i for i, line in enumerate(lines) if not line.startswith("--"))
    body = "\n".join(lines[end:]) + "\n"
    if "unpack(KEYS, n + " in text:  # they are named inside a loop, by its n
        body = re.sub(r"^  ", "", body, flags=re.MULTILINE)
    return lines[:end], body


def read(name: str) -> Header:
    """Return the header of a script, after a check of the format of its keys and ARGV lines."""
    assert all(_KEYS.fullmatch(line) for line in FILES[name].splitlines() if "-- keys" in line)
    found = Header(scripts.Script(name).keys, [], [])
    for line in split(FILES[name])[0]:
        if line.startswith("-- ARGV"):
            match = _ARG.fullmatch(line)
            assert match, line
            assert not found.tail, f"after the repeated ones: {line}"
            assert int(match[1]) == len(found.args) + 1, line
            (found.tail if match[2] else found.args).extend(match[3].split(", "))
    return found


def expressions(text: str) -> list[str]:
    """Split *text* at its commas outside parentheses."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


def locals_of(body: str, array: str) -> dict[int, str]:
    """Return position -> the name that the body gives to KEYS[n] or ARGV[n]."""
    named = {}
    for names, values in _LOCAL.findall(body):
        for name, value in zip(names.split(", "), expressions(values), strict=False):
            match = re.search(rf"\b{array}\[(\d+)\]", value)
            if match:
                named[int(match[1])] = name
    return named


def same_name(said: str, used: str) -> bool:
    """Whether a local has the name in the header, its beginning or its last word."""
    return said.startswith(used) or said.endswith(f"_{used}")


@pytest.mark.parametrize("name", SCRIPTS)
def test_first_and_last_lines(name):
    """A header begins with the script's name and effect, and states the return value once."""
    header, _ = split(FILES[name])
    assert re.fullmatch(rf"-- {name}: .+[.,;:]?", header[0])
    assert len([line for line in header if line.startswith("-- Returns ")]) == 1


@pytest.mark.parametrize("name", SCRIPTS)
def test_keys_named_are_keys_used(name):
    """Every named key becomes a local of that name and is used, and there are no other keys."""
    keys = read(name).keys
    line = rf"(?m)^ *local {', '.join(keys)} = unpack\(KEYS(, n \+ 1, n \+ {len(keys)})?\)$"
    assert 1 == len(re.findall(line, SCRIPTS[name]))
    assert not re.search(r"\bKEYS\b(?! - \d)", FILES[name])


def code_of(text: str) -> str:
    """Return Lua without comments and strings, but with the keys of first writes."""
    text = re.sub(r"-- begin: \w+", "", text)
    return re.sub(r"'[^'\n]*'|--.*", "", text)


@pytest.mark.parametrize("file", [*FILES, *map("shared/{}".format, SHARED)])
def test_a_file_names_what_it_uses_itself(file):
    """A file names the keys, limits and shared functions that it uses, and no others."""
    name = file.removeprefix("shared/")
    text = (FILES if file == name else SHARED)[name]
    code = code_of(text)
    words = set(re.findall(r"(?<![\w.])\w+\b", code))
    for key in set(named(text, "keys")) - {"guard"}:
        assert key in words, f"{key} is never used"
    assert set(named(text, "limits")) == set(_LIMIT.findall(code)) - {"KEYS", "ARGV"}
    called = set(re.findall(r"\b(\w+)\(", code)) - {name if file != name else ""}
    assert set(named(text, "use")) == called & set(SHARED)


@pytest.mark.parametrize("name", SCRIPTS)
def test_arguments_named_are_arguments_used(name):
    """Every argument in the header is read under that name, and there are no other arguments."""
    said = read(name)
    body = split(SCRIPTS[name])[1]
    assert {int(n) for n in re.findall(r"ARGV\[(\d+)\]", body)} == set(range(1, len(said.args) + 1))
    used = locals_of(body, "ARGV")
    for position, argument in enumerate(said.args, 1):
        assert same_name(argument, used[position]), (argument, used[position])
        assert len(re.findall(rf"\b{used[position]}\b", body)) > 1, f"{argument} is never used"
    takes_more = re.search(r"#ARGV|\(ARGV\)", body) is not None
    assert takes_more == bool(said.tail)


def functions(text: str) -> dict[str, str]:
    """Return name -> the text of each local function with its comment, at any depth."""
    lines = text.splitlines()
    found: dict[str, str] = {}
    for n, line in enumerate(lines):
        if not (head := _FUNCTION.match(line)):
            continue
        indent, name = head.groups()
        first, last = n, lines.index(f"{indent}end", n)
        while lines[first - 1].startswith(f"{indent}-- "):
            first -= 1
        text = "\n".join(lines[first : last + 1])
        before = found.setdefault(name, text)
        assert textwrap.dedent(text) == textwrap.dedent(before), f"{name} is defined twice"
    return found


UNGUARDED = {
    "renew": "all its keys are there as long as a lease is, and it removes none of them",
    "kombu_take": "Kombu's own transport works on no cluster",
    "kombu_take_unacked": "the same",
    "kombu_accept": "the same",
}
_READS = re.compile(
    r"GET|EXISTS|HLEN|HMGET|CARD|RANGE|RANK|SCORE|COUNT|SCAN|LEN|TIME|TTL|KEYS|VALS"
)


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_writes_has_a_guard(name):
    """Each writing script has a guard: during the move of a slot it is refused as a whole.

    Without one, a script could be cut off after its first write.
    """
    written = {command for command, _ in _CALL.findall(split(SCRIPTS[name])[1])}
    writes = any(not _READS.search(command) for command in written)
    assert ("guard" in read(name).keys) == (writes and name not in UNGUARDED)


def types_of(names: Sequence[str]) -> dict[str, str]:
    """Return the types of the keys of one script, which may be those of a queue or others too."""
    known = OF_QUEUE if set(names) <= set(OF_QUEUE) else OF_QUEUE | OTHERS
    return {name: known[name] for name in names}


@pytest.mark.parametrize("name", SCRIPTS)
def test_commands_fit_the_types(name):
    """A key is used only with commands of the type that keys.py gives it."""
    body = split(SCRIPTS[name])[1]
    types = types_of(read(name).keys)
    for alias, key in re.findall(r"\b(\w+) = (\w+)\n", body):
        if key in types:
            assert types.setdefault(alias, types[key]) == types[key]
    for hashes, zsets in _INTACT.findall(body):
        for kind, names in (("HASH", hashes), ("ZSET", zsets)):
            assert {kind} == {types[key] for key in names.split(", ")}, names
    for key in _ADD.findall(body):
        assert types[key] == "HASH", key
    for given_its_keys in {"add", "intact", "permitted"} & set(functions(body)):
        body = body.replace(functions(body)[given_its_keys], "")
    for command, key in _CALL.findall(body):
        if command in _KEYLESS:
            continue
        assert key in types, f"{command} {key}: not a key from KEYS"
        if command not in _ANY_TYPE:
            family = "STRING" if command in _STRING else _FAMILY[command[0]]
            assert types[key] == family, f"{command} {key}"


def named(text: str, kind: str) -> list[str]:
    """Return what a file lists under a word: the functions, keys or limits, in its order."""
    return [name for line in re.findall(_LIST.format(kind), text) for name in line.split(", ")]


def test_a_function_is_defined_in_one_file():
    """A function is defined once, in one script or in lua/shared."""
    defined = Counter(name for text in FILES.values() for name in functions(text))
    defined.update(list(SHARED))
    assert [] == [name for name, times in defined.items() if times > 1]


@pytest.mark.parametrize("name", SHARED)
def test_a_shared_function_is_short(name):
    """A shared function has a comment and at most thirty lines, and is used."""
    lines = SHARED[name].splitlines()
    first = lines.index(next(line for line in lines if not line.startswith("-- ")))
    assert lines[first].startswith(f"local function {name}(")
    assert ["end"] == [line for line in lines[first + 1 :] if not line.startswith("  ")]
    assert len(lines) - first <= 30
    assert any(name in named(text, "use") for text in [*FILES.values(), *SHARED.values()])


def used(text: str) -> list[str]:
    """Return the shared functions that a text needs, each after those that it needs itself."""
    found = [
        name for used_here in named(text, "use") for name in (*used(SHARED[used_here]), used_here)
    ]
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("name", FILES)
def test_a_script_gets_what_its_functions_need(name):
    """A script contains its shared functions and theirs, and gets all their keys after its own."""
    shared = used(FILES[name])
    assert set(shared) <= functions(SCRIPTS[name]).keys()
    texts = [FILES[name], *(SHARED[other] for other in shared)]
    wanted = [key for text in texts for key in named(text, "keys")]
    own = dict.fromkeys(named(FILES[name], "keys"))
    assert list(own) == list(read(name).keys[: len(own)])
    assert set(wanted) == set(read(name).keys)
    assert not re.search(r"-- (use|limits|keys|begin|clock):", SCRIPTS[name])


def names(code: str) -> tuple[set[str], set[str]]:
    """Return the names that a line of Lua defines, and all names in it."""
    defined = set()
    for group in re.findall(r"\blocal (?!function)([\w, ]+)|\bfor ([\w, ]+?) (?:in|=)", code):
        defined.update(re.findall(r"\w+", "".join(group)))
    for called, given in re.findall(r"\bfunction ?(\w*)\(([^)]*)\)", code):
        defined.update({called, *re.findall(r"\w+", given)})
    return defined, set(re.findall(r"(?<![\w.])[A-Za-z_]\w*\b", code))


@pytest.mark.parametrize("name", SCRIPTS)
def test_names_are_defined_before_they_are_used(name):
    """Names are defined before their use, also the keys and limits of shared functions.

    Those are locals of the script that includes the function.
    """
    known = set(_OF_LUA)
    code = re.sub(r"'[^'\n]*'|\"[^\"\n]*\"|--.*|\b0x\w+", "", split(SCRIPTS[name])[1])
    code = re.sub(r"(?<=[{ ])(?<!local )\w+ = (?=[^{}]*\})", "", re.sub(r", *\n +", ", ", code))
    for line in code.splitlines():
        defined, read = names(line)
        known |= defined
        assert set() == read - known, line


@pytest.mark.parametrize("name", FILES)
def test_what_a_script_defines_it_uses(name):
    """Each function is called."""
    code = code_of(SCRIPTS[name])
    for function in functions(SCRIPTS[name]):
        assert len(re.findall(rf"\b{function}\b", code)) > 1, f"{function} is never called"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_its_script(mutant):
    """The text that a mutant of tests/model replaces is in its script exactly once."""
    assert 1 == SCRIPTS[mutant.script].count(mutant.text)


def test_every_file_is_loaded():
    """Each file is a Script of scripts.py, and each Script is a file."""
    loaded = {item.name for item in vars(scripts).values() if isinstance(item, scripts.Script)}
    assert loaded == set(SCRIPTS)


class Sent(Exception):
    """Ends a call at the moment when it would write to the socket."""


class RecordingWire(Wire):
    """Captures the command of one script instead of writing it."""

    wanted = ""

    def call(self, command, script=None):
        """Raise the command of the wanted script; other scripts succeed."""
        if script is not None and script.name != self.wanted:
            return 1
        raise Sent(parts_of(command), script)

    call_in_order = call

    def post(self, command, on_reply=None, script=None, patience_s=0.0):
        """Raise the posted command of the wanted script."""
        if script.name == self.wanted:
            raise Sent(parts_of(command), script)

    def replies(self, commands, patience_s=0.0):
        """Raise the first of the commands."""
        (command, script), *_ = commands
        raise Sent(parts_of(command), script)


# One value for each field, by its type. The contract tests cover the meaning of the fields.
ITEM = Publication(
    **{
        name: {str: "x", bytes: b"x", int: 1, bool: False}[kind]
        for name, kind in get_type_hints(Publication).items()
    }
)
LEASES = [Lease("a", "1"), Lease("b", "2")]


def wake(store):
    """Let the notifier send the token that ends its wait."""
    store.notifier._commands, store.notifier._waits_at = store._wire, "q"
    store.notifier._post_token()


def nothing(_result):
    """Ignore a result that never arrives."""


CALLS = {
    "publish": lambda store: store.publish([ITEM]),
    "log": lambda store: store.publish([replace(ITEM, exchange="e", version=b"1", logged=True)]),
    "read_log": lambda store: store.post_read_log("e", "0", 1000, 5, nothing),
    "reserve": lambda store: store.reserve("q", 5, 1000, False),
    "hand_back": lambda store: store.hand_back("q", [Delivery("q", "a", "0", -1, b"")]),
    "ack": lambda store: store.post_ack("q", ["a", "b"], nothing),
    "release": lambda store: store.release("q", "nacked", LEASES),
    "end_leases": lambda store: store.post_end_leases("q", LEASES, nothing),
    "promote": lambda store: store.post_promote("q", nothing),
    "renew": lambda store: store.post_renew("q", 1000, LEASES, nothing),
    "dead_letter": lambda store: store.dead_letter("q", "rejected", "", LEASES),
    "restore_visible": lambda store: store.post_restore("q", 1000, nothing),
    "scan": lambda store: store.reads.scan("q", "dead", Position()),
    "locate": lambda store: store.reads.locate("q", "a"),
    "snapshot": lambda store: store.post_snapshots(["q"], nothing),
    "survey": lambda store: store.post_survey(["q"], nothing),
    "expire": lambda store: store.post_expire("q", nothing),
    "leases_of": lambda store: store.leases_of("q", "me"),
    "elect": lambda store: store.post_elect("me", 1000, nothing),
    "attach": lambda store: store.attach("q", "me", 1),
    "heartbeat": lambda store: store.post_heartbeat("me", 1000, 500, {"pid": "1"}, nothing),
    "report_running": lambda store: store.post_running("me", 1, {"q": 2}, nothing),
    "declare": lambda store: store.declare_queue("q", False, b"", {"expires": "1000"}),
    "delete_queue": lambda store: store.delete_queue("q"),
    "replay": lambda store: store.replay("q", ["a"]),
    "purge_dead": lambda store: store.purge_dead("q", ["a"]),
    "move": lambda store: store.begin_move("q", "queue:other", ["a"]),
    "move_out": lambda store: store.move_out("q", "broker:b"),
    "accept": lambda store: store.accept("q", "b", 1, [Move("05tag", 1, b"")]),
    "moved": lambda store: store.end_move("q", ["a"]),
    "purge": lambda store: store.purge("q"),
    "list_queue": lambda store: store.list_queue("q"),
    "bind": lambda store: store.bind("x", True, [b"binding"]),
    "note_bound": lambda store: store.bind("x", True, [b"binding"], "q"),
    "declare_exchange": lambda store: store.declare_exchange("x", b"declaration"),
    "unbound": lambda store: store.delete_exchange("x", if_unbound=True),
    "measure": lambda store: store.reads.measure(["q"]),
    "once": lambda store: store.claim("x", "t", 1000),
    "configure": lambda store: store.configure("q", {"max_length": "9"}),
    "layout": lambda store: store.lay_out("q", 4, 4),
    "pause": lambda store: store.pause("q", True),
    "whereabouts": lambda store: store.reads.whereabouts("q", ["a", "b"]),
    "list_batch": lambda store: store.batches.open_batch("b", "name", {"field": "x"}),
    "open_batch": lambda store: store.batches.open_batch("b", "name", {"field": "x"}),
    "change_jobs": lambda store: store.batches.change("b", [Change("enter", "j", "waiting")] * 2),
    "note_job": lambda store: store.batches.note("b", Note("j", progress=(1, 2, "x"))),
    "note_callback": lambda store: store.batches.note_published("b", "complete"),
    "next_batches": lambda store: store.batches.postpone({"b": 1000}),
    "wake": wake,
    # Kombu's own keys are named by its options, and its lists by the queue.
    "kombu_take": lambda store: store.take("waiting", "broker:b", 0),
    "kombu_take_unacked": lambda store: store.take_unacked("broker:b", 0.0, [("a", ["q"])]),
    "kombu_accept": lambda store: store.accept("waiting", "b", 1, [(1, 0, b"{}")]),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_caller_sends_what_the_header_names(name):
    """The Python caller sends each key and argument of the header in its position."""
    options = Options(global_keyprefix="p.")
    if name.startswith("kombu_"):
        store = KombuRedis(Address(), options, "me", KombuLayout())
    else:
        store = RedisStore(Address(), options, "me")
    store._wire = RecordingWire(Address(), Options(), "test")
    store._wire.wanted = name
    with pytest.raises(Sent) as caught:
        CALLS[name](store)
    command, script = caught.value.args
    assert script.name == name
    _, sha, count, *rest = command
    assert sha == script.sha
    said = read(name)
    sent_keys, sent_args = rest[:count], rest[count:]
    parts = [key.removeprefix("p.").removeprefix("reliq:").split(":") for key in sent_keys]
    # bindings:{exchange}, once:name, batch:{id}:part; all others begin with their tag.
    assert list(said.keys) == [
        part[1] if part[0].startswith("{") else part[-1] if part[0] == "batch" else part[0]
        for part in parts
    ]
    extra = len(sent_args) - len(said.args)
    assert extra >= 0
    assert extra % max(len(said.tail), 1) == 0
    assert bool(extra) == bool(said.tail)
