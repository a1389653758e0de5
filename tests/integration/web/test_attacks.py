"""Attacks on the page, and mistakes of an operator at its start."""

from __future__ import annotations

import asyncio
import base64
import socket
import threading
from contextlib import suppress
from time import monotonic

import pytest
from starlette.requests import HTTPConnection

from reliq import ConfigurationError
from reliq.admin import Inspector
from reliq.errors import BrokerUnavailable
from reliq.web import access, app, brokers
from reliq.web.access import Passwords
from reliq.web.brokers import Broker, Counting, Watch
from reliq.web.settings import Settings, accounts, hashed
from tests.integration.web_client import HERE, OURS, fill, kill, page, read
from tests.support.waiting import wait_until


@pytest.fixture
def url(redis_url):
    """Return the URL of a broker with a queue that has one message."""
    fill(redis_url, "q", [1])
    return redis_url


def basic(name, password, peer="127.0.0.1"):
    """Return a request with a user's login."""
    word = base64.b64encode(f"{name}:{password}".encode())
    return HTTPConnection(
        {"type": "http", "headers": [(b"authorization", b"Basic " + word)], "client": (peer, 1)}
    )


# -- logins


@pytest.mark.parametrize(
    "header",
    [
        "X-Forwarded-User",
        "X-Forwarded-Host",
        "X-Forwarded-Proto",
        "X-Client-IP",
        "CF-Connecting-IP",
    ],
)
def test_what_came_through_a_proxy_is_not_from_here(url, header):
    """A request through a proxy is not local, even if the header only names a user.

    No header of a proxy is trusted without a setting.
    """
    with page(url) as browser:
        assert 200 == browser.get("/log").status_code
        assert 403 == browser.get("/log", headers={header: "ann"}).status_code


def test_a_login_that_is_no_text_is_refused(url):
    """A login that is not text is refused like any wrong one, with all headers."""
    users = f"ann operator {hashed('x')}"
    with page(url, users=users, base_url="http://ops.example") as browser:
        for word in (b"Basic \xe9", b"Basic =\xff=", b"Basic"):
            refused = browser.get("/", headers=[(b"authorization", word)])
            assert 401 == refused.status_code
            assert "no-store" == refused.headers["cache-control"]


@pytest.mark.slow
def test_guesses_do_not_pile_up(monkeypatch):
    """A limited number of logins may wait, and the login of many tabs is hashed once."""
    hashings = []
    fits = access.fits
    monkeypatch.setattr(access, "fits", lambda *given: hashings.append(given) or fits(*given))
    monkeypatch.setattr(access, "_MOST_EACH", 3)
    asked = Passwords(accounts(f"ann operator {hashed('right')}", "here"))

    async def together(*requests):
        return await asyncio.gather(*map(asked.who, requests))

    found = asyncio.run(together(*[basic("ann", "right")] * 3))
    assert ["ann"] * 3 == [user.name for user in found]
    assert 1 == len(hashings)
    refused = asyncio.run(together(*[basic("eve", str(n)) for n in range(5)]))
    assert [401, 401, 401, 503, 503] == [one.status for one in refused]
    assert "ann" == asyncio.run(together(basic("ann", "right")))[0].name


@pytest.mark.slow
def test_guesses_keep_nobody_else_out_and_are_in_the_log(caplog):
    """Guesses block no other address, and the log names address and user once a second."""
    asked = Passwords(accounts(f"ann operator {hashed('right')}", "here"))
    guesses = [basic("ann", str(n), "10.0.0.66") for n in range(150)]
    guesses += [basic("s3cret\n", "x", "10.0.0.66")]

    async def together():
        return await asyncio.gather(*map(asked.who, [*guesses, basic("ann", "right", "10.0.0.7")]))

    began = monotonic()
    *refused, user = asyncio.run(together())
    took = monotonic() - began
    assert "ann" == user.name
    assert {401, 503} == {one.status for one in refused}
    (first, *more) = [record.getMessage() for record in caplog.records]
    assert "10.0.0.66" in first
    assert len(more) <= took + 1
    assert not any("s3cret" in text for text in (first, *more))
    asyncio.run(asked.who(basic("ann", "right", "10.0.0.66")))
    assert not asked._waiting


@pytest.mark.parametrize(
    ("proxy", "peer", "status"),
    [
        ("10.0.0.0/24", "10.0.0.9", 200),
        ("10.0.0.0/24", "10.0.1.9", 403),
        ("10.0.0.9", "::ffff:10.0.0.9", 200),
        ("fd00:0::1", "fd00::1", 200),
        ("10.0.0.9", "", 403),
    ],
    ids=["network", "outside", "mapped", "written", "socket"],
)
def test_a_proxy_is_known_however_its_address_is_written(url, proxy, peer, status):
    """A proxy is recognized by its address or network, in any spelling."""
    with page(url, client=(peer, 1), user_header="X-User", proxies=[proxy]) as browser:
        assert status == browser.get("/log", headers={"x-user": "bob"}).status_code


@pytest.mark.parametrize(
    "given",
    [
        {"redact": "password"},
        {"redact": [""]},
        {"redact": ["password,token"]},
        {"hosts": "shop"},
        {"user_header": "X-User", "operators": "ann"},
        {"user_header": "X-User", "proxies": ["nginx"]},
        {"user_header": "X-User", "proxies": ["10.0.0.7/24"]},
    ],
    ids=["letters", "empty", "comma", "host", "operator", "name", "bits"],
)
def test_what_would_silently_protect_nothing_is_refused(given):
    """A setting that would silently protect nothing is refused.

    A text in place of a list, for example, would hide the keys ``p``, ``a`` and ``s``.
    """
    with pytest.raises(ConfigurationError):
        app("reliq://x", **given)


# -- hidden values


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value", "seen"),
    [
        ("kwargsrepr", "{b'password': 's3cret'}", True),
        ("kwargsrepr", "{'user[password]': 's3cret'}", True),
        ("later", {"options": {"kwargsrepr": "{'password': 's3cret'}"}}, True),
        ("argsrepr", "[0x" + "f" * 5000 + ", 's3cret']", False),
        ("kwargsrepr", "{0x" + "f" * 5000 + ": 's3cret'}", False),
        ("kwargsrepr", "{'a': '" + "s3cret" * 20_000 + "'}", False),
    ],
    ids=["bytes", "brackets", "nested", "number", "key", "long"],
)
def test_what_is_hidden_stays_hidden_and_stops_no_page(url, name, value, seen):
    """Hidden values stay hidden in any notation, and no message keeps a page from being shown."""
    fill(url, "h", [[], {}, {}], headers={"task": "pay", "id": "1", name: value})
    with page(url, redact=["password", "user[password]"]) as browser:
        shown = read(browser.get("/queue?queue=h"))
        (link,) = {link for link in shown.links if "tag=" in link}
        for text in (shown.text, read(browser.get(link)).text):
            assert "s3cret" not in text
        assert seen is ("[hidden]" in read(browser.get(link)).text)


# -- requests


def test_a_search_for_what_is_no_text_finds_nothing(url):
    """A search for an invalid text, such as half a character in a URL, finds nothing."""
    with page(url) as browser:
        assert "No message with" in read(browser.get("/search?text=%ff")).text


def test_a_value_that_is_no_number_is_refused(url):
    """A value that is not a number is refused, and the page states the reason."""
    with page(url, allow_actions=True) as browser:
        form = {"name": "x-max-length", "value": "--5"}
        done = browser.post("/actions/set?queue=q", data=form, headers=OURS)
        assert 303 == done.status_code
        assert "whole number" in read(browser.get(done.headers["location"])).text


def test_an_operation_that_could_not_be_stopped_is_not_begun(url):
    """An operation with an extreme rate is refused, because it could not be stopped.

    It would wait for days before it checks for a stop.
    """
    with page(url, allow_actions=True) as browser:
        for rate in ("0.00001", "1e-300", "nan", "inf"):
            done = browser.post("/actions/replay?queue=q", data={"rate": rate}, headers=OURS)
            assert "expected rate" in read(browser.get(done.headers["location"])).text
        assert [] == browser.app.site.operations.all()


def test_an_action_that_fails_of_something_unknown_is_in_the_log(url, monkeypatch):
    """The log names the user of an action with an unknown error, because a part may be done."""
    monkeypatch.setattr(Inspector, "pause", lambda *_: 1 / 0)
    with page(url, allow_actions=True) as browser:
        assert 500 == browser.post("/actions/pause?queue=q", headers=OURS).status_code
        assert "done in part" in read(browser.get("/log")).text


@pytest.mark.parametrize("root_path", ["/queue", "/dead", "/static", "/dead/group/"])
def test_a_path_that_is_one_of_a_page_is_refused(root_path):
    """A root path that equals a page's path is refused.

    Behind a proxy that removes the path, that page would be the overview.
    """
    with pytest.raises(ConfigurationError, match="root_path"):
        app("reliq://x", root_path=root_path)


def test_a_group_for_each_dead_letter_ends_the_count(url, monkeypatch):
    """The count of groups ends at a limit and reports that.

    Without a limit, errors with an id in their text would make one group per dead letter.
    """
    monkeypatch.setattr(brokers, "_MOST_GROUPS", 4)
    for n in range(12):
        fill(url, "d", n, headers={"task": f"task-{n}", "id": str(n)})
    kill(url, "d", 12)
    counted = Counting()
    with Inspector(url) as inspector:
        found = [counted.groups(inspector, "d", 2) for _ in range(10)]
    assert 4 == max(len(one.groups) for one in found)
    assert (4, 12) == (found[-1].counted, found[-1].total)
    assert found[-1].cursor is not None


async def _ask(application, path):
    """Request a page; return its status."""
    scope = {
        "type": "http", "method": "GET", "path": path, "query_string": b"", "root_path": "",
        "headers": [(b"host", b"localhost")], "client": HERE, "scheme": "http",
        "server": ("localhost", 80),
    }  # fmt: skip
    found = []

    async def send(message):
        found.append(message)

    async def receive():
        await asyncio.sleep(60)

    await application(scope, receive, send)
    return found[0]["status"]


def test_pages_that_take_seconds_keep_no_other_waiting(url, monkeypatch):
    """Pages that take seconds block no other page, however many requests there are."""
    go_on = threading.Event()
    doctor = Inspector.doctor
    monkeypatch.setattr(Inspector, "doctor", lambda one: go_on.wait(30) and doctor(one))
    application = app(url)

    async def ask():
        slow = [asyncio.create_task(_ask(application, "/health")) for _ in range(6)]
        await asyncio.sleep(0)
        try:
            return await asyncio.wait_for(_ask(application, "/log"), 15)
        finally:
            go_on.set()
            assert [200] * 6 == await asyncio.gather(*slow)

    assert 200 == asyncio.run(ask())
    application.close()


def test_exports_take_no_place_from_replays(url, monkeypatch):
    """Exports take no place from replays: a viewer may export, and operators can continue."""
    go_on = threading.Event()

    def exporting(*_, **__):
        go_on.wait(30)
        yield 0

    monkeypatch.setattr(Inspector, "export_dead_letters", exporting)
    with page(url, allow_actions=True) as browser:
        try:
            for _ in range(5):
                done = browser.post("/actions/export?queue=q", headers=OURS)
            assert "too many operations" in read(browser.get(done.headers["location"])).text
            done = browser.post("/actions/replay?queue=q", headers=OURS)
            assert done.headers["location"].startswith("/operation?")
        finally:
            go_on.set()


# -- pages that are not open, and silent brokers


def test_rates_are_not_those_of_the_hours_in_which_nobody_looked(url, monkeypatch):
    """After hours without a viewer, rates are unknown instead of means of that time."""
    watch = Watch(Broker(0, url, Settings(urls=(url,))))
    with Inspector(url) as inspector:
        watch.report(inspector)
        monkeypatch.setattr("reliq.web.brokers._YOUNG_S", -1.0)
        assert 0 == watch.report(inspector).queues[0].rate_in
        later = monotonic() + 3 * 3600
        monkeypatch.setattr("reliq.web.brokers.monotonic", lambda: later)
        monkeypatch.setattr("reliq.admin.reporting.monotonic", lambda: later)
        assert watch.report(inspector).queues[0].rate_in is None


def test_a_silent_broker_is_waited_for_once():
    """The timeout of a silent broker is spent once, not by each viewer in turn."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"reliq://127.0.0.1:{silent.getsockname()[1]}/0"
        broker = Broker(0, url, Settings(urls=(url,), transport_options={"socket_timeout": 1.5}))
        took = []
        for _ in range(4):
            began = monotonic()
            with pytest.raises(BrokerUnavailable), broker.inspector() as inspector:
                inspector.report()
            took.append(monotonic() - began)
    assert sum(took[1:]) < took[0] / 3, took


@pytest.mark.slow
def test_a_broker_that_freezes_is_known_to_be_away_until_it_answers(redis_factory):
    """A broker that freezes while in use is known as unreachable until it replies.

    No further viewer waits for the timeout.
    """
    server = redis_factory()
    options = {"socket_timeout": 1.5}
    url = server.url("reliq")
    broker = Broker(0, url, Settings(urls=(url,), transport_options=options))

    def ask():
        began = monotonic()
        with suppress(BrokerUnavailable), broker.inspector() as inspector:
            inspector.report()
            return True
        return monotonic() - began

    assert ask() is True
    server.freeze()
    try:
        assert ask() > 1
        assert max(ask() for _ in range(20)) < 1
    finally:
        server.thaw()
    wait_until(lambda: ask() is True)
    broker.close()
