"""A password in a URL, in any notation, appears in no error, log, repr or traceback."""

from __future__ import annotations

import logging
import re
import traceback
from contextlib import ExitStack
from urllib.parse import quote

import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st
from kombu import Connection

import reliq
from reliq.admin import Inspector
from reliq.cli import main
from reliq.failover.brokers import without_password
from reliq.metrics import Collector
from reliq.migration.kombu_url import connect_kombu, is_kombu
from reliq.store.urls import store_of

# A password consists of pieces with characters between them that have a meaning in a URL. The host
# is unusable and there is no network: a URL that can be read is refused, or fails at once.
PIECES = ["hushone", "hushtwo", "hush\u00fc", "73519", "7351", "hush%41"]
BETWEEN = ["/", "?", "#", "[", "]", "@", ":", ";", "%", "&", "=", "://", "\u2100", "\u212a", " "]
HOST = "127.0.0.1:1"
OPTIONS = {"master_name": "m", "socket_connect_timeout": 0.2, "socket_timeout": 0.2}

passwords = st.lists(st.sampled_from(PIECES + BETWEEN), min_size=1, max_size=6).map("".join)
schemes = st.sampled_from(["reliq", "reliqs", "reliq-sentinel", "redis", "rediss", "amqp"])


def pieces_in(password, text):
    """Return the pieces of a password that a text shows, also percent-encoded ones."""
    return [piece for piece in PIECES if piece in password and piece in text]


def texts_of(work):
    """Run *work*; return its result or errors, and its log records, as text without addresses.

    The address of an object has the digits of a password now and then.
    """
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record):
            records.append(record)

    keep = Keep()
    logging.getLogger().addHandler(keep)
    try:
        seen = work()
    except reliq.ReliqError as exc:  # any other exception ends the test
        seen = "".join(traceback.format_exception(exc)) + repr(exc)
        while (exc := exc.__cause__ or exc.__context__) is not None:
            seen += repr(exc)
    finally:
        logging.getLogger().removeHandler(keep)
    logged = "".join(logging.Formatter().format(record) for record in records)
    return re.sub(r"\b0x[0-9a-f]+", "", f"{seen}{logged}")


def shown_by_python(url):
    """Return the texts that each reader of a URL shows about it."""
    with ExitStack() as stack:

        def metrics():
            collector = Collector(url, transport_options=OPTIONS)
            stack.callback(collector.close)
            return [*collector.collect()]

        works = (
            lambda: Inspector(url, OPTIONS),
            lambda: repr(store_of(url, OPTIONS, "me")),
            metrics,
            lambda: connect_kombu(url, {"master_name": "m"}, "me") if is_kombu(url) else "",
            lambda: without_password(url) if "@" in url else "",
        )
        return "".join(texts_of(work) for work in works)


@given(schemes, passwords, st.booleans())
@example("reliq", "@hushone?", False)  # it looks like a host
def test_who_takes_a_url(scheme, password, encoded):
    """A URL shows no part of its password, whether the URL is valid or not."""
    written = quote(password, safe="") if encoded else password
    url = f"{scheme}://me:{written}@{HOST}/0"
    assert [] == pieces_in(password, shown_by_python(url))


@pytest.mark.slow
@given(schemes, passwords, st.booleans())
@example("reliq", ";hushone://", False)  # it looks like a list of URLs
def test_commands(scheme, password, encoded):
    """The output of a command shows no part of the password in its URL."""
    written = quote(password, safe="") if encoded else password
    url = f"{scheme}://me:{written}@{HOST}/0"
    for words in (
        ["status", "--url", url, "--master-name", "m"],
        ["move", "orders", "--from", url, "--to", "reliq://127.0.0.1:1/0"],
        ["migrate", url, "reliq://127.0.0.1:1/0"],
        ["migrate", "redis://127.0.0.1:1/0", url],
    ):
        done = CliRunner().invoke(main, words, env={"RELIQ_URL": ""})
        assert 2 == done.exit_code, (done.output, done.exception)
        assert [] == pieces_in(password, done.output)


@given(st.sampled_from(["reliq", "reliqs"]), passwords.filter(lambda text: "%" not in text))
def test_transports(scheme, password):
    """A transport shows no part of a password, even if Kombu has misread the URL."""
    try:
        connection = Connection(f"{scheme}://me:{password}@{HOST}/0", transport_options=OPTIONS)
    except (ValueError, TypeError):  # Kombu's own error
        return
    with connection:
        if connection.port != 1:  # Kombu takes the rest of the password for the broker's name
            return
        seen = texts_of(lambda: connection.transport.establish_connection())  # noqa: PLW0108
        assert [] == pieces_in(password, seen)


@pytest.mark.parametrize("virtual_host", ["hush@localhost:6379/0", "hush"])
def test_a_database_that_is_the_rest_of_a_password(virtual_host):
    """A database that is the rest of a password, as Kombu read it, is not shown."""
    connection = Connection("reliq://me@localhost", virtual_host=virtual_host, port=12)
    with connection, pytest.raises(reliq.ConfigurationError, match="percent-encode") as caught:
        connection.transport.establish_connection()
    assert "hush" not in str(caught.value)


def test_the_next_url_speaks_for_itself():
    """The next URL has neither the TLS, which Kombu keeps, nor the login of the previous URL."""
    connection = Connection(["reliq://me:hush@a:1/0?ssl_cert_reqs=none", "reliq://b:2/0"])
    connection.switch("reliq://b:2/0")
    address = connection.transport.address
    assert ("b", 2) == (address.host, address.port)
    assert (None, None, None) == (address.username, address.password, address.tls)


def test_tls_that_was_given_beside_the_urls_stays():
    """TLS that was given beside the URLs applies to all of them."""
    urls = ["reliq://a:1/0", "reliq://b:2/0"]
    connection = Connection(urls, ssl={"cert_reqs": "none"})
    connection.switch(urls[1])
    assert connection.transport.address.tls
    assert {"cert_reqs": "none"} == connection.transport.failback.arguments["ssl"]
