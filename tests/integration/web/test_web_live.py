"""Live pages: one reader for all viewers, no query without viewers, and a clean end."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from itertools import count

import httpx2 as httpx
import pytest
from click.testing import CliRunner

from reliq import BrokerUnavailable
from reliq.admin import Inspector
from reliq.cli import main
from reliq.web import live
from reliq.web.live import Hub
from tests.integration.web_client import fill, page, read
from tests.support.commands import RELIQ, environment
from tests.support.processes import Process
from tests.support.waiting import stays_true, wait_until
from tests.support.web import WebProcess
from tests.support.workers import app_environment


class Source:
    """A source of pages that counts its calls and can raise an error."""

    def __init__(self):
        self.made, self.text, self.error = [], "1", None

    def __call__(self, page):
        """Return the parts of a page."""
        self.made.append(page)
        if self.error:
            raise self.error
        return {"a": self.text, "b": "same"}


def event(raw):
    """Return the name and the data of an event."""
    name, data = raw.decode().strip().split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def following(hub, page, user=""):
    """Begin to follow a page; return its events."""
    stream = hub.follow(page, user)
    assert b"retry" in await anext(stream)
    return stream


async def soon(stream):
    """Return the next event."""
    return event(await asyncio.wait_for(anext(stream), 20))


def test_many_who_look_are_one_reader():
    """A page is made once for all its viewers, and not at all without viewers."""

    async def run():
        source = Source()
        hub = Hub(0.05, source)
        lookers = [await following(hub, "x") for _ in range(20)]
        first = [await soon(stream) for stream in lookers]
        assert [("parts", {"a": "1", "b": "same"})] * 20 == first
        made = len(source.made)
        source.text = "2"
        assert [("parts", {"a": "2"})] * 20 == [await soon(stream) for stream in lookers]
        assert len(source.made) - made < 20
        other = await following(hub, "y", "ann")
        assert ("parts", {"a": "2", "b": "same"}) == await soon(other)
        for stream in (*lookers, other):
            await stream.aclose()
        assert 0 == len(hub.lookers)
        await asyncio.wait_for(asyncio.gather(*hub._readers.values()), 20)
        made = len(source.made)
        await asyncio.sleep(0.3)
        assert made == len(source.made)
        again = await following(hub, "x")  # a new reader
        assert "parts" == (await soon(again))[0]
        await again.aclose()

    asyncio.run(run())


def test_what_cannot_be_made_is_said_and_the_rest_goes_on():
    """An error of a page is sent to its viewers only, and the whole page afterwards."""

    async def run():
        source = Source()
        hub = Hub(0.05, source)
        stream = await following(hub, "x")
        assert "parts" == (await soon(stream))[0]
        source.error = BrokerUnavailable("gone for lunch")
        assert ("away", {"text": "gone for lunch"}) == await soon(stream)
        source.error = ZeroDivisionError("secret")
        name, data = await soon(stream)
        while "lunch" in data["text"]:
            name, data = await soon(stream)
        assert ("away", False) == (name, "secret" in data["text"])
        source.error = None
        while name == "away":
            name, data = await soon(stream)
        assert ("parts", {"a": "1", "b": "same"}) == (name, data)
        hub.close()
        assert [] == [each async for each in stream if each.startswith(b"event: x")]

    asyncio.run(run())


def test_a_page_that_takes_long_holds_up_its_own_kind_only():
    """A page of a frozen broker does not delay the pages of other brokers."""

    async def run():
        go_on = threading.Event()

        def make(page):
            if page.startswith("frozen"):
                go_on.wait(30)
            return {"a": str(next(counted))}

        counted = count()
        hub = Hub(0.05, make, lambda page: page.partition(" ")[0])
        streams = [await following(hub, f"frozen {n}") for n in range(3)]
        healthy = await following(hub, "healthy 1")
        try:
            assert ["parts"] * 3 == [(await soon(healthy))[0] for _ in range(3)]
        finally:
            go_on.set()
        assert ["parts"] * 3 == [(await soon(stream))[0] for stream in streams]
        for stream in (*streams, healthy):
            await stream.aclose()

    asyncio.run(run())


def test_one_user_takes_no_place_of_another(monkeypatch):
    """Pages are limited per user and in total; one more gets a notice and ends."""
    monkeypatch.setattr(live, "_MOST_PAGES", 30)

    async def run():
        hub = Hub(0.05, Source())
        streams = [await following(hub, f"page {n}", "bob") for n in range(20)]
        refused = [each async for each in hub.follow("page 1", "bob")]
        name, data = event(refused[-1])
        assert ("away", True) == (name, "open" in data["text"])
        streams.append(await following(hub, "page 1", "ann"))
        streams += [await following(hub, f"other {n}", "ann") for n in range(10)]
        assert event([each async for each in hub.follow("a new one", "ann")][-1])[0] == "away"
        assert 31 == len(hub.lookers)
        streams.append(await following(hub, "page 2", "ann"))  # this page is already made
        await streams.pop().aclose()
        assert 31 == len(hub.lookers)
        for stream in streams:
            await stream.aclose()

    asyncio.run(run())


def test_what_a_page_does_not_read_makes_no_other_page(redis_url, monkeypatch):
    """Pages that differ only in unknown parameters are one page, and links omit them."""
    fill(redis_url, "q", 1)
    with page(redis_url) as browser:
        shown = browser.get("/queue?queue=q&junk=1&said=3")
        assert "junk" not in shown.text
        assert "said=" not in shown.text
        queries = ("queue=q", "queue=q&junk=1", "x=2&skip=0&queue=q&said=1&cursor=7&skip=3")
        seen = []

        async def follow(topic, user):
            seen.append((topic, user))
            yield b""

        monkeypatch.setattr(browser.app.hub, "follow", follow)
        for query in queries:
            browser.get("/events", params={"page": f"/queue?{query}"})
        (first, _), *others = seen
        assert ["local"] * 3 == [user for _, user in seen]
        assert [True, False] == [topic == first for topic, _ in others]  # skip is a known parameter


@contextmanager
def listening(served, path):
    """Yield a list to which the events of a page are added."""
    found = []

    def listen():
        try:
            with httpx.stream(
                "GET", f"{served.address}/events", params={"page": path}, timeout=None
            ) as response:
                name = ""
                for line in response.iter_lines():
                    if line.startswith("event: "):
                        name = line[7:]
                    elif line.startswith("data: "):
                        found.append((name, json.loads(line[6:])))
                    if stop.is_set():
                        return
        except httpx.HTTPError as exc:
            found.append(("ended", str(exc)))
        else:
            found.append(("ended", ""))

    stop = threading.Event()
    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join(30)  # at the next event, because each one has a new age


@pytest.fixture
def serve(tmp_path):
    """Return a function that starts `reliq web`."""
    running = []

    def start(url, **env):
        running.append(WebProcess(url, tmp_path, **env))
        return running[-1]

    yield start
    for process in running:
        process.kill_group()


def commands(client):
    """Return the number of commands that a server has run, without this one."""
    return client.info("stats")["total_commands_processed"]


@pytest.mark.slow
def test_a_page_follows_its_broker(serve, redis_factory):
    """A page shows changes of its broker, and reports an outage until the broker is back."""
    server = redis_factory(appendonly=True)
    url = server.url("reliq")
    fill(url, "orders", 1, 2)
    served = serve(url)
    assert "orders" in read(httpx.get(f"{served.address}/queue?queue=orders")).text
    client = server.client()
    before, asked = commands(client), count(1)
    # Without a viewer, this test sends the only commands.
    stays_true(lambda: commands(client) - before <= next(asked), for_s=1.5)
    with listening(served, "/queue?queue=orders") as found:
        wait_until(lambda: any(name == "parts" for name, _ in found))
        assert {"head", "messages", "history", "queue_consumers"} == {*found[0][1]}
        with Inspector(url) as inspector:
            inspector.pause("orders")
        wait_until(lambda: any("paused" in data.get("head", "") for _, data in found))
        client.close()
        server.kill()
        wait_until(lambda: found[-1][0] == "away")
        failed = httpx.get(f"{served.address}/queue", params={"queue": "orders"})
        assert "unreachable" in read(failed, 503).text
        seen = len(found)
        server.start()
        wait_until(lambda: any(name == "parts" for name, _ in found[seen:]))
        fill(url, "orders", 3)
    served.signal(signal.SIGTERM)
    assert 0 == served.wait(20)
    assert "Traceback" not in served.log()


# `reliq`, with 128 descriptors and six seconds for the header of a request.
_NARROW = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
import reliq.cli.web_server
reliq.cli.web_server._HEADER_S = 6.0
from reliq.cli import main
main()
"""


@pytest.mark.slow
def test_half_requests_take_the_page_from_nobody(redis_url, tmp_path):
    """Half requests from one address use at most half of the connections, and each ends in time.

    A connection after a complete request ends in time too.
    """
    served = WebProcess(redis_url, tmp_path, begin=[sys.executable, "-c", _NARROW])
    try:
        half = b"GET /log HTTP/1.1\r\nHost: localhost\r\nX-a: b"
        there = [socket.create_connection(("127.0.0.1", served.port), 20) for _ in range(300)]
        for one in there:
            with suppress(OSError):
                one.sendall(half)
        again = socket.create_connection(("127.0.0.1", served.port), 20, ("127.0.0.3", 0))
        again.sendall(half[: half.index(b"X-a")] + b"\r\n")
        assert again.recv(12) == b"HTTP/1.1 200"
        again.sendall(half)  # after a response, a connection has no more time for its next request
        other = httpx.HTTPTransport(local_address="127.0.0.2")
        with httpx.Client(transport=other, timeout=20) as client:
            assert 200 == client.get(f"{served.address}/log").status_code
        for one in (*there, again):
            one.settimeout(20)
            with suppress(ConnectionResetError):
                while one.recv(65_536):
                    pass
            one.close()
        assert 200 == httpx.get(f"{served.address}/log").status_code
        log = served.log()
        assert "refused" in log
        assert len(log.splitlines()) < 6, log
        assert "Traceback" not in log
    finally:
        served.kill_group()


@pytest.mark.slow
def test_it_stops_at_once_while_somebody_looks(serve, redis_url):
    """The server stops at once while a page is open, although a stream of events never ends."""
    fill(redis_url, "q", 1)
    served = serve(redis_url)
    with listening(served, "/") as found:
        wait_until(lambda: found)
        served.signal(signal.SIGTERM)
        assert 0 == served.wait(20)
        wait_until(lambda: found[-1][0] == "ended")
    assert "Traceback" not in served.log()
    assert "ERROR" not in served.log()


@pytest.mark.slow
def test_an_application_knows_its_brokers(redis_url, journal, tmp_path):
    """`celery -A proj reliq web` uses the application's brokers without a URL."""
    fill(redis_url, "q", 1)
    command = [sys.executable, "-m", "celery", "-A", "tests.integration.apps.tasks", "reliq"]
    process = Process(
        [*command, "web", "--port", "0"],
        log_path=tmp_path / "log",
        env=app_environment(redis_url, journal),
    )
    try:
        wait_until(lambda: "serving" in process.log(), timeout_s=40, what=process.log)
        address = process.log().split("serving reliq on ")[1].split()[0]
        assert "queue=q" in httpx.get(address).text
        process.signal(signal.SIGINT)
        assert 0 == process.wait(20)
    finally:
        process.kill_group()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--host", "0.0.0.0"), "--users"),
        (("--users", "/nowhere"), "/nowhere"),
        (("--operator", "ann"), "header"),
        (("--action-log", "/nowhere/x"), "/nowhere"),
    ],
    ids=["open", "users", "operator", "log"],
)
def test_it_does_not_begin_without_what_it_needs(arguments, said):
    """A start with missing or wrong settings is refused with the remedy."""
    given = ["web", "--port", "0", "--url", "reliq://127.0.0.1:1/0", *arguments]
    done = CliRunner().invoke(main, given, env={"RELIQ_WEB_USERS": ""})
    assert 2 == done.exit_code, done.output
    assert said in done.output


@pytest.mark.slow
def test_a_password_is_hashed_by_the_command(serve, redis_url):
    """The output of --hash-password in the environment admits the user."""
    fill(redis_url, "q", 1)
    done = subprocess.run(
        [*RELIQ, "web", "--hash-password"],
        input="pass word\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=environment(None),
    )
    printed = done.stdout.strip()
    assert printed.startswith("scrypt$")
    served = serve(redis_url, RELIQ_WEB_USERS=f"ann viewer {printed}")
    assert 401 == httpx.get(served.address).status_code
    assert "ann" in read(httpx.get(served.address, auth=("ann", "pass word"))).text
