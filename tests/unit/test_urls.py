"""What is said of a URL that is wrong: what to do about it, and nothing of its password."""

import pytest

from reliq import ConfigurationError
from reliq.engines.redis.connect import Address, translate, translate_reply
from reliq.engines.redis.server_info import judge
from reliq.engines.urls import address, store_of
from reliq.failover.brokers import without_password
from reliq.migration.kombu_url import connect_kombu

# Passwords with a character that nobody has percent-encoded.
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
    """Neither the error nor the name of the broker has a part of it."""
    url = scheme + wrong
    with pytest.raises(ConfigurationError) as caught:
        store_of(url, {"master_name": "m"}, "me")
    assert "hush" not in str(caught.value)
    assert "hush" not in without_password(url) or "@" not in url


@pytest.mark.parametrize("wrong", ["://user:12/hush@localhost:6379/0", "://[hush"])
def test_a_wrong_url_of_kombus_shows_no_password(wrong):
    """The same where a migration reads it."""
    with pytest.raises(ConfigurationError) as caught:
        connect_kombu("redis" + wrong, None, "me")
    assert "hush" not in str(caught.value)


def test_what_helps_is_said():
    """The error names the characters; a wrong database without a password is shown."""
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
        ("reliq-sqlite:////home/me@here/x.db", "reliq-sqlite:////home/me@here/x.db"),
        ("reliq://:hush@a:1;reliq://b:2", "reliq://a:1;reliq://b:2"),
    ],
)
def test_a_url_as_it_may_be_shown(url, shown):
    """Scheme, host and path."""
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
    """In the words of each version of Redis, inside a script as outside."""
    assert "see the ACL rule in docs/operations.md" in str(translate_reply(reply, Address()))


def test_an_unknown_name_ends_without_a_period():
    """The library's error has one, and Celery adds another."""
    error = translate(
        OSError("Error -2 connecting to x:1. Name or service not known."), Address(), 1
    )
    assert str(error).endswith("not known")


def test_the_version_of_a_valkey_is_its_own():
    """It also says which Redis it is compatible with."""
    for info, version in (
        ({"redis_version": "7.2.4", "valkey_version": "9.1.2"}, "9.1.2"),
        ({"redis_version": "7.0.15"}, "7.0.15"),
    ):
        assert version == next(f for f in judge(info, "", {}) if f.check == "version").message
