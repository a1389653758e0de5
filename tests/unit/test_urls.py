"""The error for a wrong URL states a remedy and shows no part of its password."""

import pytest
from kombu import Connection

from reliq import ConfigurationError
from reliq.client.connect import Address, translate, translate_reply
from reliq.doctor.server_info import judge
from reliq.failover.brokers import without_password
from reliq.migration.kombu_url import connect_kombu
from reliq.store.urls import address, store_of

# Passwords with a character that should be percent-encoded.
WRONG = [
    "://user:12/hush@localhost:6379/0",
    "://user:hush/hush@localhost:6379/0",
    "://user:hu#hush@localhost:6379/0",
    "://user:hu?hush@localhost:6379/0",
    "://user:hu[hush@localhost:6379/0",
    "://[hush",
]


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("scheme", ["reliq", "reliqs", "reliq-sentinel"])
def test_a_wrong_url_shows_no_password(scheme, wrong):
    """Neither the error nor the broker's name contains a part of the password."""
    url = scheme + wrong
    with pytest.raises(ConfigurationError) as caught:
        store_of(url, {"master_name": "m"}, "me")
    assert "hush" not in str(caught.value)
    assert "hush" not in without_password(url) or "@" not in url


@pytest.mark.parametrize("wrong", ["://user:12/hush@localhost:6379/0", "://[hush"])
def test_a_wrong_url_of_kombus_shows_no_password(wrong):
    """The error of a migration for a wrong Kombu URL contains no part of the password."""
    with pytest.raises(ConfigurationError) as caught:
        connect_kombu("redis" + wrong, None, "me")
    assert "hush" not in str(caught.value)


def test_what_helps_is_said():
    """The error names the characters to encode; a wrong database without a password is shown."""
    with pytest.raises(ConfigurationError, match="percent-encode"):
        address("reliq://:12/hush@localhost:6379/0")
    with pytest.raises(ConfigurationError, match="number, got: 'orders'"):
        address("reliq://localhost:6379/orders")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("reliq://user:hush@a:1/0?x=1", "reliq://a:1/0"),
        ("reliq://a:1/0?ssl_ca_certs=/x.pem", "reliq://a:1/0"),
        ("reliq://:12/hush@a:1/0", "reliq://a:1/0"),
        ("reliq://:hush?hush@a:1/0", "reliq://..."),
        ("reliq-unix:///run/me@here.sock", "reliq-unix:///run/me@here.sock"),
        ("reliq-spool:////home/me@here/x.db", "reliq-spool:////home/me@here/x.db"),
        ("reliq://:hush@a:1;reliq://b:2", "reliq://a:1;reliq://b:2"),
    ],
)
def test_a_url_as_it_may_be_shown(url, shown):
    """A URL is shown as its scheme, host and path."""
    assert shown == without_password(url)


@pytest.mark.parametrize(
    "reply",
    [
        "NOPERM User me has no permissions to run the 'time' command",
        "ERR ACL failure in script: User me has no permissions to run the 'time' command",
        "ERR The user executing the script can't run this command or subcommand script: x",
        "ERR The user executing the script can't access at least one of the keys mentioned",
    ],
)
def test_a_missing_right_is_told_with_the_rule(reply):
    """The error for a missing right refers to the ACL rule, inside and outside scripts.

    Each version of Redis has its own text for it.
    """
    assert "see the ACL rule in docs/operations.md" in str(translate_reply(reply, Address()))


def test_an_unknown_name_ends_without_a_period():
    """An error about an unknown host ends without a period, as Celery adds one."""
    error = translate(
        OSError("Error -2 connecting to x:1. Name or service not known."), Address(), 1
    )
    assert str(error).endswith("not known")


def test_the_version_of_a_valkey_is_its_own():
    """The version of a Valkey server is its own, not that of the compatible Redis."""
    for info, version in (
        ({"redis_version": "7.2.4", "valkey_version": "9.1.2"}, "9.1.2"),
        ({"redis_version": "7.0.15"}, "7.0.15"),
    ):
        assert version == next(f for f in judge(info, "", {}) if f.check == "version").message


@pytest.mark.parametrize(
    ("url", "ours"),
    [
        ("rediss://:hush@a/0", "reliqs"),
        ("redis+socket:///x", "reliq-unix"),
        ("reliq+socket:///x?password=hush", "reliq-unix"),
        ("reliq+unix:///x", "reliq-unix"),
        ("reliq+rediss://:hush@a/0", "reliqs"),
        ("reliq://socket:///run/x.sock", "reliq-unix"),
    ],
)
def test_a_url_of_another_scheme_is_answered_with_ours(url, ours):
    """A URL of another scheme is refused with reliq's scheme and without its password.

    This holds in Python and at the command line.
    """
    with pytest.raises(ConfigurationError, match=f"expected a URL of {ours}://") as caught:
        address(url)
    assert "hush" not in str(caught.value)
    if url.startswith("reliq"):
        with pytest.raises(ConfigurationError, match=f"of {ours}://"), Connection(url) as kombu:
            kombu.connect()


def test_the_url_of_a_socket():
    """The URL of a socket has a database and a login in Kombu's form, and shows no password."""
    url = "reliq-unix:///run/x.sock?virtual_host=2&username=me&password=hu%2Fsh"
    expected = Address(path="/run/x.sock", db=2, username="me", password="hu/sh")
    assert expected == address(url)
    with Connection(url) as kombu:
        assert expected == kombu.transport.address
        assert expected == kombu.clone().transport.address
        info = kombu.info()
        assert "hu/sh" == info.pop("password")
        assert "hu" not in str((info, kombu, kombu.as_uri()))
        assert expected == address(kombu.as_uri(include_password=True))
    with pytest.raises(ConfigurationError, match="foo: only virtual_host"):
        address("reliq-unix:///x?foo=1")
    with Connection("reliq-unix:///a;reliq-unix://:p@/b") as kombu:
        assert "/a" == kombu.transport.address.path
        kombu.switch(kombu.alt[1])
        assert ("/b", "p") == (kombu.transport.address.path, kombu.transport.address.password)
        assert "reliq-unix://:**@/b" == kombu.as_uri()
