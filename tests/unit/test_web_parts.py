"""The small parts of the page: passwords, users, settings, redaction, text and charts."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from xml.etree import ElementTree as ET

import pytest
from starlette.datastructures import Headers

from reliq import ConfigurationError
from reliq.hosts import host_of, is_loopback
from reliq.web.action_log import ActionLog
from reliq.web.charts import MINUTE_MS, History, series, short, top_of
from reliq.web.guard import is_same_origin
from reliq.web.page_request import PageRequest, link, query_of
from reliq.web.pages import templates
from reliq.web.redaction import HIDDEN, UNREADABLE, Redaction
from reliq.web.settings import Settings, User, accounts, accounts_in, fits, hashed
from reliq.web.texts import clock, lines, rate, shown, when

# The result of hashed("right"), stored because each process that collects these tests would compute
# it again.
HASH = "scrypt$16384$8$5$Dbn_uTQpmysqqs5gDA5lfQ==$g4ETtfHIYO9o_aGWr1vx4PBC5AFnjcRSSVRy1ME8LhA="
HOSTILE = "<script>alert(1)</script>\"'&\n\x1b[2J\u202e\udc80/../?#%00"


# -- users


def test_a_password_is_known_by_its_hash():
    """A hash has its own salt and matches only its password."""
    one = hashed("right")
    assert one != hashed("right")
    assert one.split("$")[:4] == HASH.split("$")[:4]
    for known in (one, HASH):
        assert fits("right", known)
        assert not fits("wrong", known)
        assert "right" not in known


@pytest.mark.parametrize(
    "stored",
    ["right", "scrypt$16384$8$5$AA", HASH.replace("16384", "2"), HASH.replace("16384", "99999999")],
    ids=["plain", "cut", "cheap", "dear"],
)
def test_what_is_no_hash_is_refused_and_not_repeated(stored):
    """An invalid hash is refused and not repeated in the error, as it may be a plain password.

    A hash whose parameters would cost too much work is refused too.
    """
    with pytest.raises(ConfigurationError) as caught:
        accounts(f"ann operator {stored}", "users.txt")
    assert stored not in str(caught.value)
    assert "users.txt" in str(caught.value)


def test_users_are_lines(tmp_path):
    """A users file has lines of name, role and hash; comments and semicolons; each name once.

    The file must be private.
    """
    text = f"# ours\nann operator {HASH} # admin\n\nbob viewer {HASH}; eve viewer {HASH}"
    path = tmp_path / "users"
    path.write_text(text)
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        accounts_in(path)
    path.chmod(0o600)
    found = accounts_in(path)
    assert {"ann": "operator", "bob": "viewer", "eve": "viewer"} == {
        name: account.user.role for name, account in found.items()
    }
    for wrong in (f"ann admin {HASH}", f"a:b viewer {HASH}", text + f"\nann viewer {HASH}", " "):
        with pytest.raises(ConfigurationError):
            accounts(wrong, "x")
    with pytest.raises(ConfigurationError, match="cannot read"):
        accounts_in(tmp_path / "none")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "same-site", "origin": "http://a:1", "host": "a:1"}, False),
        ({"sec-fetch-site": "cross-site", "origin": "http://a:1", "host": "a:1"}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"origin": "http://a:1", "host": "a:1"}, True),
        ({"origin": "https://A:1", "host": "a:1"}, True),
        ({"origin": "https://localhost:1", "host": "localhost:1"}, False),
        ({"origin": "http://a:2", "host": "a:1"}, False),
        ({"origin": "http://a:1.evil", "host": "a:1"}, False),
        ({"origin": "http://evil/a:1", "host": "a:1"}, False),
        ({"origin": "http://a:1@evil", "host": "a:1"}, False),
        ({"origin": "null", "host": "a:1"}, False),
        ({"host": "a:1"}, False),
        ({}, False),
    ],
)
def test_only_our_own_pages_may_ask(given, expected):
    """A request is accepted by Sec-Fetch-Site or else by its Origin; without both it is refused."""
    assert expected is is_same_origin(Headers(given), "http")


def test_this_machine_has_few_names():
    """Only loopback addresses and localhost are this machine; a port is not part of the name."""
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "[::1]", "LocalHost")))
    assert not any(map(is_loopback, ("0.0.0.0", "10.0.0.1", "localhost.evil.example", "", "::")))
    assert ["[::1]", "a.b", "[::1]", ""] == [*map(host_of, ("[::1]:80", "a.b:80", "[::1]", ":80"))]


@pytest.mark.parametrize(
    "wrong",
    [
        {"urls": ()},
        {"operators": frozenset({"ann"})},
        {"proxies": frozenset({"10.0.0.1"})},
        {"user_header": "x-user", "proxies": frozenset()},
        {"user_header": "x-user", "users": accounts(f"a viewer {HASH}", "x")},
        {"interval_s": 0.0},
        {"interval_s": float("nan")},
        {"root_path": "/a?b"},
        {"root_path": "/a\nb"},
    ],
    ids="-".join,
)
def test_settings_that_contradict_each_other_are_refused(wrong):
    """Contradicting settings are refused at the start."""
    with pytest.raises(ConfigurationError):
        Settings(**{"urls": ("reliq://x",), **wrong})


def test_a_root_path_is_normalised():
    """A root path is normalised from any notation."""
    assert ["", "", "/a/b"] == [
        Settings(urls=("reliq://x",), root_path=path).root_path for path in ("", "/", "a/b/")
    ]


# -- requests


def test_any_name_survives_a_link():
    """A link to the page of a queue requests that queue, whatever its name."""
    url = link("/under", "/queue", {"queue": HOSTILE, "skip": None})
    assert url.isascii()
    path, _, query = url.partition("?")
    assert "/under/queue" == path
    assert [("queue", HOSTILE)] == query_of(query.encode())
    asked = PageRequest(
        User("ann", "viewer"), False, (("tag", "1"), ("tag", "2"), ("queue", HOSTILE))
    )
    again = asked.again("/x", asked.query).partition("?")[2]
    assert list(asked.query) == query_of(again.encode())


@pytest.mark.parametrize("text", ["-1", "1e9", "\u0664", "", "0x10", "1" * 5000, "1 "])
def test_what_is_no_number_is_none(text):
    """A number in a query is 0 unless it consists of digits."""
    asked = PageRequest(User("ann", "viewer"), False, (("skip", text),))
    assert 0 == asked.number("skip")


def test_a_query_of_too_much_is_left_out():
    """A query with too many fields is ignored."""
    assert [] == query_of(b"&".join(b"a=1" for _ in range(400)))


def test_two_who_may_do_the_same_share_a_page():
    """Users with the same rights share a page; their names make no difference."""
    ann = PageRequest(User("ann", "operator"), True)
    assert ann == replace(ann, user=User("bob", "operator"))
    assert hash(ann) == hash(replace(ann, user=User("bob", "operator")))
    assert ann != replace(ann, may_act=False)


# -- redaction


def test_keys_are_hidden_wherever_they_stand():
    """Hidden values are redacted at any depth of maps and lists, by key pattern, in any case."""
    hide = Redaction(("password", "*token*"))
    value = {"user": "ann", "Password": "x", "in": [{"api_TOKEN_2": {"a": 1}, "n": 1}]}
    expected = {"user": "ann", "Password": HIDDEN, "in": [{"api_TOKEN_2": HIDDEN, "n": 1}]}
    assert expected == hide.value(value)
    assert repr((1, {"password": HIDDEN})) == hide.written("(1, {'password': 'secret'})")
    assert '[[], {"token": "[hidden]"}, {}]' == hide.json('[[], {"token": "secret"}, {}]')
    assert HIDDEN == hide.header("x-token", "secret")
    assert "{'password': '[hidden]'}" == hide.header("kwargsrepr", "{'password': 'secret'}")


@pytest.mark.parametrize("text", ["{'password': 'secr...", "<Object password=secret>", "(" * 9000])
def test_what_cannot_be_read_for_keys_is_hidden_as_a_whole(text):
    """Text that cannot be searched for keys is hidden as a whole.

    Celery truncates arguments and writes objects in any form.
    """
    assert UNREADABLE == Redaction(("password",)).written(text)
    assert UNREADABLE == Redaction(("password",)).json(text)


def test_without_keys_nothing_is_hidden():
    """Without hidden keys, nothing is hidden or parsed."""
    assert "{'password': 'secr..." == Redaction().written("{'password': 'secr...")
    assert not Redaction()


def test_a_pattern_means_what_it_meant_and_no_key_makes_it_slow():
    """A pattern matches like its regular expression, and no key makes the match slow.

    The parts match in order without overlap. A very long key is hidden without a match.
    """
    names = ["".join(chosen) for n in range(6) for chosen in product("ab", repeat=n)]
    patterns = ["".join(chosen) for n in range(1, 6) for chosen in product("ab*", repeat=n)]
    for pattern in patterns:
        hides = Redaction((pattern,)).hides
        wanted = re.compile(pattern.replace("*", ".*"))
        assert [bool(wanted.fullmatch(name)) for name in names] == [*map(hides, names)], pattern
    long = "api" * 30_000
    assert Redaction(("*api*key*",)).hides(long)
    assert not Redaction().hides(long)


# -- text


def test_text_of_others_is_one_line_of_text():
    """Foreign text is one printable line, and None is a dash."""
    assert shown(HOSTILE).isprintable()
    assert "\N{EN DASH}" == shown(None)
    assert "a\nb&lt;i&gt;\\x1b" == str(lines("a\r\nb<i>\x1b"))


@pytest.mark.parametrize("ms", [None, 0, -5, 10**18, 253_402_300_800_000])
def test_a_time_that_is_none_is_a_dash(ms):
    """An invalid time is shown as a dash, whatever value is stored."""
    assert "\N{EN DASH}" == str(when(ms)) == str(clock(ms))


def test_rates_are_short():
    """Small rates have one more digit than large ones."""
    assert ["0", "0.3", "9.9", "12", "1,200", "\N{EN DASH}"] == [
        *map(rate, (0, 0.3, 9.94, 12.3, 1200, None))
    ]


# -- charts


@pytest.mark.parametrize("values", [[], [1], [0, 0], [1, None, 3], [None, None], [1e15, 2.5, 0]])
def test_charts_are_drawn_of_anything(values):
    """Charts of any values are well-formed XML without style, script or invalid numbers."""
    times = ((0.0, "then"), (1.0, "now"))
    draw = templates().globals["draw"]
    for svg in (
        draw.spark(values, HOSTILE),
        draw.history(History([("second", values)], top_of(values), times, HOSTILE)),
        draw.bars([int(value or 0) for value in values], [(0.5, "<b>")], "bars"),
        draw.meter([("done", 0.25), ("bad", 0.0)], "a meter"),
    ):
        if not str(svg).strip():
            continue
        root = ET.fromstring(str(svg))
        assert "img" == root.get("role")
        for element in root.iter():
            assert not any(name == "style" or name.startswith("on") for name in element.attrib)
            assert not element.tag.endswith("script")
            assert not re.search(r"\b(nan|inf)\b", " ".join(element.attrib.values()))


def test_numbers_of_an_axis_are_short():
    """Numbers of an axis are abbreviated from 1,000 on."""
    assert ["0", "12", "1.5k", "2M", "3G"] == [*map(short, (0, 12, 1500, 2_000_000, 3e9))]


def test_a_series_has_a_gap_where_nobody_counted():
    """A series has a gap for each minute without a snapshot, and ignores other times."""
    from reliq.admin import Snapshot

    now_ms = 1_000 * MINUTE_MS + 5
    found = [
        Snapshot(at_ms=minute * MINUTE_MS, span_ms=MINUTE_MS, ready=minute, acked=120)
        for minute in (900, 941, 943, 1_000)
    ]
    made = series(found, now_ms, 60)
    assert [941.0, None, 943.0] == made.gauge("ready")[:3]
    assert 1000.0 == made.gauge("ready")[-1]
    assert 2.0 == made.per_second("acked")[-1]
    assert 60 == len(made.parts)


# -- the log


def test_actions_are_kept_in_a_file_too(tmp_path):
    """The log file has one line of JSON per action, which no text can split.

    The process lists the last action first.
    """
    import json

    path = tmp_path / "actions.jsonl"
    log = ActionLog(path)
    log.note("ann\n", "purge", "reliq://x", "a\nb", "3 removed")
    log.note("bob", "pause", "reliq://x", "q", "no", failed=True)
    assert 0o600 == path.stat().st_mode & 0o777
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [("ann\\n", "a\\nb", False), ("bob", "q", True)] == [
        (row["user"], row["target"], row["failed"]) for row in rows
    ]
    assert ["bob", "ann\\n"] == [entry.user for entry in log.entries(10)]
    assert log.entry(1).user == "ann\\n"
    with pytest.raises(ConfigurationError):
        ActionLog(tmp_path / "none" / "x")
