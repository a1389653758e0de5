"""Transport options: refusals before a connection, and the texts of their errors."""

from __future__ import annotations

import pytest
from kombu import Connection

from reliq import ConfigurationError
from reliq.admin import Inspector
from reliq.options import Options

from ..kombu_client import get, publish


def reason(options, url="reliq://127.0.0.1:1/0"):
    """Return the refusal of *options*; no server listens, so the check precedes the connection."""
    with (
        Connection(url, transport_options=options) as connection,
        pytest.raises(ConfigurationError) as caught,
    ):
        connection.connect()
    with pytest.raises(ConfigurationError):
        Inspector(url, transport_options=options)
    return str(caught.value)


def test_a_misspelled_option():
    """An unknown option is refused with the nearest known name."""
    assert "did you mean visibility_timeout?" in reason({"visibility_timout": 60})
    assert "did you mean global_keyprefix?" in reason({"global_key_prefix": "x"})


def test_an_unknown_option():
    """An unknown option without a similar name is refused with a list of all options."""
    text = reason({"zzz": 1})
    assert "'zzz'" in text
    assert "visibility_timeout" in text


def test_the_wrong_type_is_named():
    """A value of the wrong type is refused; the error names option, expectation and value."""
    text = reason({"visibility_timeout": "soon"})
    for part in ("visibility_timeout", "number of seconds", "'soon'"):
        assert part in text


WRONG = {
    "visibility_timeout": ["60", None, True, 0, -1, float("nan"), float("inf")],
    "restore_interval": ["5", 0, -1, None],
    "orphan_grace": [-1, "x"],
    "consumer_timeout": ["1", 0, True],
    "poll_interval": [0, "x", None],
    "delivery_limit": [0, 1.5, "20", True],
    "redelivery_backoff": [5, (1,), (2, 1), (-1, 5), ("1", "2"), (1, float("nan")), (True, 2)],
    "dead_letter_max": [0, None, "many"],
    "dead_letter_ttl": [0, "180 days"],
    "max_message_bytes": [0, "1M", 1.5],
    "queue_order_strategy": ["random", None, 1],
    "priority_order": ["up", None],
    "confirm": ["yes", True, None],
    "confirm_replicas": [0, "1", 1.5, None],
    "confirm_timeout": [0, "5", None, True],
    "probe_interval": [0, "5", None],
    "failback": ["yes", 1, None],
    "unroutable": ["raise", None],
    "partitions": [0, 65, "8", 1.5, True, None],
    "native_delay": ["yes", 1, None],
    "global_keyprefix": [None, 1, b"bytes"],
    "socket_timeout": [0, "10"],
    "socket_connect_timeout": [0, "x"],
    "socket_keepalive": ["yes", 1],
    "socket_keepalive_options": [5, {"idle": 60}, {4: "60"}, {4: -1}, {99999: 1}, {4: 2**70}],
    "health_check_interval": [0.5, "x"],
    "client_name": [1, "two words", "line\n"],
    "spool_max": ["much", 1000, None],
    "embedded_fsync": ["everysec", None, 1],
    "embedded_maxmemory": ["1kB", 10, "much"],
    "embedded_idle": [-1, 0.5, "x"],
    "embedded_server": [1, b"x"],
    "master_name": [1],
    "address_map": ["10.0.0.5:6379", {"10.0.0.5": "a:1"}, {"a:1": "b:65536"}, [1], 5],
    "sentinel_username": [1],
    "sentinel_password": [12345],
    "credential_provider": ["no.such:Thing", 12345],
    "sentinel_credential_provider": ["os:sep", 12345],
    "credential_interval": [-1, "x", None],
    "username": [1],
    "password": [12345],
}


def test_every_option_is_tried():
    """The table above names every option."""
    assert set(WRONG) == set(Options.__dataclass_fields__)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
def test_wrong_values(name, value):
    """An invalid value of any option is refused before a connection is made."""
    text = reason({name: value})
    assert f"expected {name} to be" in text
    secret = name.endswith(("password", "credential_provider"))
    assert (repr(value) in text) == (not secret)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"consumer_timeout": 10}, ["consumer_timeout", "visibility_timeout", "60", "10"]),
        ({"global_keyprefix": "a{b}"}, ["global_keyprefix", "braces", "a{b}"]),
    ],
)
def test_contradictions(options, words):
    """Options that contradict each other or the format of keys are refused."""
    text = reason(options)
    for word in words:
        assert word in text


@pytest.mark.parametrize("database", ["one", "-1", "0x1", "1/2"])
def test_a_wrong_database(database):
    """An invalid database is refused without its value, which may be part of a password."""
    text = reason({}, f"reliq://127.0.0.1:1/{database}")
    assert "expected the database in the URL to be a number" in text
    assert "percent-encode" in text


def test_what_kombu_puts_there_passes(client):
    """Retry options and options of other transports in the mapping are ignored."""
    options = {
        "max_retries": 3,
        "interval_start": 0,
        "interval_step": 0.2,
        "interval_max": 0.5,
        "errback": None,
        "callback": None,
        "polling_interval": 1,
        "body_encoding": "base64",
        "deadletter_queue": "dead",
        "connect_retries_timeout": 5,
    }
    connection = client.connect(**options)
    publish(connection, "q", "x")
    assert get(connection, "q").payload == "x"


def test_options_show_no_password():
    """The repr of the parsed options hides the password."""
    options = Options(password="geheim", username="worker")
    assert "geheim" not in repr(options)
    assert "worker" in repr(options)
