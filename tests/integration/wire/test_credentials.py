"""Logins whose credentials change: providers of redis-py, as Kombu takes them."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from threading import Event
from time import monotonic
from urllib.request import urlopen

import pytest
from kombu import Connection
from kombu.utils.imports import symbol_by_name
from redis.auth.token import SimpleToken
from redis.credentials import CredentialProvider, StreamingCredentialProvider

from reliq import BrokerUnavailable, ConfigurationError
from reliq.admin import Inspector
from reliq.errors import BrokerRefused
from reliq.login import login_of
from reliq.migration.kombu_url import connect_kombu
from reliq.options import Options, parse
from reliq.store.urls import address
from tests.integration.kombu_client import Taker, publish
from tests.support.audits import assert_balanced
from tests.support.cluster import RedisCluster
from tests.support.commands import RELIQ, environment, run
from tests.support.sentinels import MASTER_NAME, SentinelGroup
from tests.support.waiting import wait_until

PATH = f"{__name__}:Rotating"
FORKED = """
import os, sys
import reliq
from kombu import Connection
from redis import CredentialProvider

class Provider(CredentialProvider):
    def __init__(self):
        print(os.getpid(), flush=True)

    def get_credentials(self):
        return "rotating", "first-token"

options = {"credential_provider": "__main__:Provider"}
with Connection(sys.argv[1], transport_options=options) as connection:
    queue = connection.SimpleQueue("q")
    queue.put("parent")
    if not (child := os.fork()):
        queue.put("child")
        os._exit(0)
    os.waitpid(child, 0)
"""
RULES = {"keys": "*", "channels": "*", "categories": ["+@all"]}


class Rotating(CredentialProvider):
    """A provider whose password the tests change."""

    password = "first-token"
    asked = 0

    def get_credentials(self):
        """Return the current credentials."""
        type(self).asked += 1
        return "rotating", self.password


class Streaming(StreamingCredentialProvider):
    """A provider that hands out tokens when a test says so."""

    def __init__(self, user, password):
        self.current = (user, password)
        self.pass_on = self.report = None

    def get_credentials(self):
        """Return the current credentials."""
        return self.current

    def on_next(self, callback):
        """Keep the receiver of new tokens."""
        self.pass_on = callback

    def on_error(self, callback):
        """Keep the receiver of errors."""
        self.report = callback

    def is_streaming(self):
        """Whether tokens come."""
        return True

    def renew(self, user, password):
        """Hand out a new token."""
        self.current = (user, password)
        self.pass_on(SimpleToken(password, 9e12, 0, {"oid": user}))


def allow(admin, user, *passwords):
    """Let *user* log in with these passwords only."""
    admin.acl_setuser(
        user,
        enabled=True,
        reset_passwords=True,
        passwords=[f"+{one}" for one in passwords],
        **RULES,
    )


@pytest.fixture
def server(redis_factory):
    """Return a server with one user, who needs the provider's password."""
    server = redis_factory(unix_socket=True)
    Rotating.password = "first-token"
    allow(server.client(), "rotating", "first-token")
    server.client().acl_setuser("default", enabled=True, categories=["+@all"])
    return server


def users(server):
    """Return (user, id) of each connection of reliq."""
    found = server.client().client_list()
    return {(item["user"], item["id"]) for item in found if item["name"]}


@pytest.mark.parametrize("scheme", ["reliq", "reliq-unix"])
@pytest.mark.parametrize("place", ["object", "path", "argument", "url"])
def test_each_place_of_a_provider(server, scheme, place):
    """A provider logs in wherever Kombu accepts it: options, argument and URL; both kinds."""
    url, given = server.url(scheme), {}
    if place == "object":
        given = {"transport_options": {"credential_provider": Rotating()}}
    elif place == "path":
        given = {"transport_options": {"credential_provider": PATH}}
    elif place == "argument":
        given = {"credential_provider": Rotating()}
    else:
        url = f"{url}?credential_provider={PATH}"
    with Connection(url, **given) as connection:
        publish(connection, "q", "x")
        assert ["x"] == Taker(connection, "q").take_bodies(1)
        assert {"rotating"} == {user for user, _ in users(server)}
    with Inspector(server.url(scheme) + f"?credential_provider={PATH}") as inspector:
        assert ["q"] == inspector.queues()
    kombu = server.url("redis+socket" if scheme == "reliq-unix" else "redis")
    connect_kombu(kombu, {"credential_provider": PATH}, "x").close()


def test_a_provider_over_tls(redis_factory, certificates):
    """A provider logs in over TLS."""
    server = redis_factory(tls=certificates)
    Rotating.password = "first-token"
    allow(server.client(), "rotating", "first-token")
    options = {"credential_provider": PATH}
    with Connection(server.url("reliqs"), transport_options=options) as connection:
        publish(connection, "q", "x")
        assert {"rotating"} == {user for user, _ in users(server)}


def test_a_password_that_changes(server):
    """After a cut, each connection is opened with a new token, and nothing is lost."""
    admin, url = server.client(), server.url("reliq")
    with Connection(url, transport_options={"credential_provider": PATH}) as connection:
        publish(connection, "q", 1)
        before = Rotating.asked
        Rotating.password = "second-token"
        allow(admin, "rotating", "second-token")
        admin.client_kill_filter(user="rotating")
        policy = {"max_retries": 3, "interval_start": 0}
        publish(connection, "q", 2, retry=True, retry_policy=policy)
    with Connection(url, transport_options={"credential_provider": PATH}) as connection:
        assert [1, 2] == Taker(connection, "q").take_bodies(2)
    assert Rotating.asked > before


def test_each_provider_is_asked_again_after_a_cut(server, caplog):
    """A cut while messages are held loses no ack, and logs at most one warning."""
    admin, url = server.client(), server.url("reliq")
    options = {"credential_provider": PATH}
    with Connection(url, transport_options=options) as connection:
        publish(connection, "q", *range(6))
        messages = Taker(connection, "q").take(6)
        messages[0].ack()
        Rotating.password = "second-token"
        allow(admin, "rotating", "second-token")
        admin.client_kill_filter(user="rotating")
        with pytest.raises(connection.connection_errors):
            connection.drain_events(timeout=5)
        connection.collect()
        connection.ensure_connection()
        for message in messages[1:]:
            message.ack()
        publish(connection, "q", "later")
        assert ["later"] == Taker(connection, "q").take_bodies(1)
    with Inspector(f"{url}?credential_provider={PATH}") as inspector:
        wait_until(lambda: not inspector.status("q").unacked, what="the acks")
        assert 0 == inspector.status("q").ready
    warned = [text for _, level, text in caplog.record_tuples if level >= logging.WARNING]
    assert len([text for text in warned if f":{server.port}" in text]) <= 1
    assert "-token" not in caplog.text
    assert_balanced(url)


def test_a_token_that_comes_while_a_connection_opens(server):
    """The connection logs in with the newer token at its next use."""
    allow(server.client(), "other", "other-token")

    class Hasty(Streaming):
        def get_credentials(self):
            found = self.current
            if found[0] == "rotating":
                self.renew("other", "other-token")
            return found

    options = {"credential_provider": Hasty("rotating", "first-token")}
    with Connection(server.url("reliq"), transport_options=options) as connection:
        publish(connection, "q", "x")
        assert ["x"] == Taker(connection, "q").take_bodies(1)
        assert {"other"} == {user for user, _ in users(server)}


def test_a_forked_child_makes_its_own_provider(server):
    """The provider of a path is made in each process: its threads do not survive a fork."""
    url = server.url("reliq")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORKED, url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    assert 2 == len(set(done.stdout.split()))
    with Inspector(f"{url}?credential_provider={PATH}") as inspector:
        assert 2 == inspector.status("q").ready


class TimeIsUp(Exception):
    """An exception that a signal handler raises."""


def test_a_time_limit_while_a_provider_is_asked(server, monkeypatch):
    """The exception of a signal handler within a provider is raised as it is."""

    def handle(number, frame):
        raise TimeIsUp

    class Slow(Rotating):
        def get_credentials(self):
            signal.raise_signal(signal.SIGUSR1)
            return super().get_credentials()

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        found = address(server.url("reliq"), password=login_of(Slow()))
        with pytest.raises(TimeIsUp):
            found.connect(Options(), "x")
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_no_token_is_shown(server, redis_factory):
    """Neither the doctor nor an error, a repr or a URL shows a token."""
    for scheme in ("reliq", "reliq-unix"):
        url = f"{server.url(scheme)}?credential_provider={PATH}"
        done = run(url, "doctor")
        assert "clock" in done.stdout, done.stderr
        assert "first-token" not in done.stdout + done.stderr
        assert "there is no password" not in done.stdout
        with Connection(url) as connection:
            publish(connection, "q", "x")
            store = connection.transport.link.store
            shown = [connection.as_uri(include_password=True), repr(connection.info())]
            shown += map(repr, (connection, connection.transport.address, store))
            assert "first-token" not in "".join(shown)
    without_auth = redis_factory(extra=["--rename-command", "AUTH", ""])
    found = address(without_auth.url("reliq"), password=login_of(PATH))
    with pytest.raises(BrokerRefused, match="unknown command") as caught:
        found.connect(Options(), "x")
    assert "first-token" not in "".join(traceback.format_exception(caught.value))


def shown(error):
    """Return what a tracker of errors reports: each error of the chain, with all variables."""
    texts, seen = [], set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        texts.append(repr(error))
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if "/reliq/" in frame.f_code.co_filename or "/redis/" in frame.f_code.co_filename:
                texts += [repr(value) for value in frame.f_locals.values()]
        error = error.__cause__ or error.__context__
    return "".join(texts)


@pytest.mark.parametrize("way", ["refused", "closed"])
def test_no_variable_of_an_error_has_a_token(server, way):
    """The frames of an error, which trackers of errors report, have no token and no password."""
    password = login_of(PATH)
    if way == "refused":
        allow(server.client(), "rotating", "other")
    else:
        server.client().config_set("maxclients", 1)
    for given in ({"password": password}, {"username": "rotating", "password": "first-token"}):
        with pytest.raises((BrokerUnavailable, BrokerRefused)) as caught:
            address(server.url("reliq"), **given).connect(Options(), "x")
        assert "first-token" not in shown(caught.value)


def test_a_renewal_over_a_lost_connection(server, monkeypatch):
    """If the server closes a connection as its login is renewed, the command takes another one."""
    admin = server.client()
    allow(admin, "other", "other-token")
    provider = Streaming("rotating", "first-token")
    options = {"credential_provider": provider, "poll_interval": 0.2}
    with Connection(server.url("reliq"), transport_options=options) as connection:
        publish(connection, "q", "x")
        (message,) = Taker(connection, "q").take(1)
        provider.renew("other", "other-token")
        admin.client_kill_filter(user="rotating")
        message.ack()
        publish(connection, "q", "y")
    assert_balanced(server.url("reliq"))


def test_no_token_in_the_command_line_and_environment(server):
    """`reliq exporter` shows its token neither in its arguments nor in its environment."""
    command = [*RELIQ, "exporter", "--port", "0"]
    url = f"{server.url('reliq')}?credential_provider={PATH}"
    with subprocess.Popen(
        command, env=environment(url), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            with urlopen(process.stdout.readline().split()[-1], timeout=30) as reply:
                assert "reliq_up" in reply.read().decode()
            wait_until(lambda: {"rotating"} == {user for user, _ in users(server)}, what="login")
            for name in ("cmdline", "environ"):
                assert b"first-token" not in Path(f"/proc/{process.pid}/{name}").read_bytes()
        finally:
            process.terminate()
            process.wait(30)


def test_a_new_token_logs_in_each_connection(server, caplog):
    """A streamed token logs in the posts and the notifier in place; no connection is lost."""
    admin = server.client()
    allow(admin, "other", "other-token")
    provider = Streaming("rotating", "first-token")
    options = {"credential_provider": provider, "poll_interval": 0.2}
    with Connection(server.url("reliq"), transport_options=options) as connection:
        publish(connection, "q", "x")
        taker = Taker(connection, "q")
        taker.take_bodies(1)
        posted = {number for _, number in users(server)}
        provider.renew("other", "other-token")
        publish(connection, "q", "y")
        assert ["y"] == taker.take_bodies(1)

        def renewed():
            with suppress(TimeoutError):
                connection.drain_events(timeout=0.1)
            return {"other"} == {user for user, _ in users(server)}

        wait_until(renewed, what="the new user on all connections")
        assert posted & {number for _, number in users(server)}
        provider.report(ValueError("first-token"))
    assert "no new token (ValueError)" in caplog.text
    assert "token (" in caplog.text
    assert "-token" not in caplog.text
    assert_balanced(server.url("reliq"))


class Plain(CredentialProvider):
    """A provider that does not stream, whose answer a test changes; it may raise or wait."""

    def __init__(self):
        self.answer, self.error, self.open = ("rotating", "first-token"), None, Event()
        self.open.set()

    def get_credentials(self):
        """Return the current credentials."""
        self.open.wait(30)
        if self.error is not None:
            raise self.error
        return self.answer


class Worker:
    """A process that publishes and consumes until it sees what a test waits for."""

    def __init__(self, connection):
        self.connection, self.number = connection, 0
        self.taker = Taker(connection, "q")
        with suppress(TimeoutError):
            connection.drain_events(timeout=0.05)  # opens the notifier's connection
        self.works_until(lambda: True, what="a message")

    def works_until(self, done, what):
        """Publish and take a message again and again, until *done*."""

        def work():
            self.number += 1
            publish(self.connection, "q", self.number)
            assert [self.number] == self.taker.take_bodies(1)
            return done()

        wait_until(work, timeout_s=20, what=what)


@pytest.fixture
def renewed(server):
    """Return a worker whose provider does not stream and is asked each second, and the provider."""
    allow(server.client(), "other", "other-token")
    provider = Plain()
    options = {"credential_provider": provider, "credential_interval": 1, "poll_interval": 0.2}
    with Connection(server.url("reliq"), transport_options=options) as connection:
        yield Worker(connection), provider


def test_a_provider_that_does_not_stream_is_asked_again(server, renewed):
    """After the interval, each connection logs in with the new answer in place; none is lost."""
    worker, provider = renewed
    before = {number for _, number in users(server)}
    provider.answer = ("other", "other-token")
    worker.works_until(
        lambda: {"other"} == {user for user, _ in users(server)}, what="the new user everywhere"
    )
    assert before <= {number for _, number in users(server)}
    assert_balanced(server.url("reliq"))


def test_an_answer_that_stays_logs_in_once(server, renewed):
    """The same answer logs in no connection again."""
    worker, provider = renewed
    asked = []
    provider.open.wait = lambda _: asked.append(1)
    worker.works_until(lambda: len(asked) > 2, what="questions")
    before = server.client().info("commandstats")["cmdstat_auth"]["calls"]
    worker.works_until(lambda: len(asked) > 4, what="questions")
    assert before == server.client().info("commandstats")["cmdstat_auth"]["calls"]


def test_a_renewal_that_fails_is_retried(server, renewed, caplog):
    """An error of the provider is logged once, without its text; the connections stay."""
    worker, provider = renewed
    before = {number for _, number in users(server)}
    provider.error = ValueError("first-token")
    worker.works_until(lambda: "no new token (ValueError)" in caplog.text, what="the warning")
    tried = monotonic()
    worker.works_until(lambda: monotonic() > tried + 0.5, what="more failures")
    provider.answer, provider.error = ("other", "other-token"), None
    worker.works_until(
        lambda: {"other"} == {user for user, _ in users(server)}, what="the new user everywhere"
    )
    assert before <= {number for _, number in users(server)}
    assert 1 == caplog.text.count("no new token")
    assert "-token" not in caplog.text


def test_a_refused_renewal_is_retried(server, renewed, caplog):
    """A token that the server accepts only later is sent again; the refusal is logged once."""
    worker, provider = renewed
    provider.answer = ("other", "later-token")
    worker.works_until(lambda: "no new token (WRONGPASS)" in caplog.text, what="the warning")
    allow(server.client(), "other", "later-token")
    worker.works_until(
        lambda: {"other"} == {user for user, _ in users(server)}, what="the new user everywhere"
    )
    assert 1 == caplog.text.count("no new token")


def test_a_provider_that_hangs_holds_nothing_up(server, renewed):
    """While a provider does not answer a renewal, messages go on over the old login."""
    worker, provider = renewed
    provider.open.clear()
    hangs_since = monotonic()
    worker.works_until(lambda: monotonic() > hangs_since + 1.5, what="an interval")
    provider.answer = ("other", "other-token")
    provider.open.set()
    worker.works_until(
        lambda: {"other"} == {user for user, _ in users(server)}, what="the new user everywhere"
    )


def test_a_stream_that_has_ended_is_asked(server, caplog):
    """After an error, redis-py's streams pass nothing on: the provider is asked instead."""
    allow(server.client(), "other", "other-token")
    provider = Streaming("rotating", "first-token")
    options = {"credential_provider": provider, "credential_interval": 1, "poll_interval": 0.2}
    with Connection(server.url("reliq"), transport_options=options) as connection:
        worker = Worker(connection)
        provider.report(OSError("first-token"))
        provider.current = ("other", "other-token")
        worker.works_until(
            lambda: {"other"} == {user for user, _ in users(server)}, what="the new user"
        )
    assert 1 == caplog.text.count("no new token (OSError)")


def test_a_refused_token_leaves_the_old_login(server, caplog):
    """A refused token is logged once, without the token, and no connection is lost."""
    caplog.set_level(logging.DEBUG)
    provider = Streaming("rotating", "first-token")
    options = {"credential_provider": provider}
    with Connection(server.url("reliq"), transport_options=options) as connection:
        publish(connection, "q", "x")
        taker = Taker(connection, "q")
        assert ["x"] == taker.take_bodies(1)
        provider.renew("rotating", "wrong-token")
        provider.current = ("rotating", "first-token")
        for body in ("y", "z"):
            publish(connection, "q", body)
            assert [body] == taker.take_bodies(1)
        assert 1 == caplog.text.count("no new token (WRONGPASS)")
    assert "-token" not in caplog.text
    assert_balanced(server.url("reliq"))


def test_a_provider_that_fails(server):
    """An error of a provider is an outage, and its text, which may hold a token, is not shown."""

    class Failing(Rotating):
        def get_credentials(self):
            raise ValueError("first-token")

    options = {"credential_provider": Failing()}
    with (
        Connection(server.url("reliq"), transport_options=options) as connection,
        pytest.raises(
            BrokerUnavailable, match=r"credential_provider failed \(ValueError\)"
        ) as caught,
    ):
        connection.transport.establish_connection()
    assert caught.value.__cause__ is None or "first-token" not in str(caught.value.__cause__)


def test_a_wrong_provider():
    """What is no provider is refused at once; a path says what cannot be imported."""
    for wrong in ("hush", "os:sep", "hush-hush", 55555, object()):
        with pytest.raises(ConfigurationError, match="CredentialProvider") as caught:
            parse({"credential_provider": wrong})
        assert str(wrong) not in str(caught.value)
    for wrong, text in {
        "no_such.login:Provider": "No module named 'no_such'",
        "reliq.login:Nothing": "module 'reliq.login' has no attribute 'Nothing'",
    }.items():
        with pytest.raises(ConfigurationError, match=f"got: {text}: correct the path, or install"):
            parse({"credential_provider": wrong})
    assert "Rotating" not in repr(parse({"credential_provider": Rotating()}))
    assert symbol_by_name(PATH) is Rotating
    kept = login_of(PATH)
    assert kept is login_of(PATH)


@pytest.mark.slow
def test_a_provider_of_the_sentinels():
    """The master and the Sentinels have providers of their own."""
    group = SentinelGroup(replicas=0, sentinels=1, sentinel_password="theirs").start()
    try:
        Rotating.password = "first-token"
        allow(group.master().client(), "rotating", "first-token")
        theirs = Streaming("default", "theirs")
        for given in (
            {"sentinel_credential_provider": theirs},
            {"sentinel_kwargs": {"credential_provider": theirs}},
        ):
            options = {"master_name": MASTER_NAME, "credential_provider": PATH, **given}
            with Connection(group.url(), transport_options=options) as connection:
                publish(connection, "q", "x")
                assert {"rotating"} <= {user for user, _ in users(group.master())}
    finally:
        group.destroy()


@pytest.mark.slow
def test_a_provider_of_a_cluster():
    """Each node is logged in by the provider, streaming or not, and new tokens reach each."""
    with RedisCluster() as cluster:
        for node in cluster.nodes:
            allow(node.client(), "rotating", "first-token")
            allow(node.client(), "other", "other-token")
        provider = Streaming("rotating", "first-token")
        options = {"credential_provider": provider}
        with Connection(cluster.url("reliq-cluster"), transport_options=options) as connection:
            for number in range(12):
                publish(connection, f"q{number}", "x")
            provider.renew("other", "other-token")
            for number in range(12):
                publish(connection, f"q{number}", "y")
                assert ["x", "y"] == Taker(connection, f"q{number}").take_bodies(2)
        plain = Plain()
        options = {"credential_provider": plain, "credential_interval": 1}
        with Connection(cluster.url("reliq-cluster"), transport_options=options) as connection:

            def renewed():
                for number in range(12):
                    publish(connection, f"q{number}", "z")
                found = {user for node in cluster.nodes for user, _ in users(node)}
                return {"other"} == found

            assert not renewed()
            plain.answer = ("other", "other-token")
            wait_until(renewed, what="the new user at each node")
