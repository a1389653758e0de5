"""Lists of URLs of several schemes: the URL in use is the one that Kombu has switched to."""

from functools import partial

import pytest
from celery import Celery
from kombu import Connection

from reliq import ConfigurationError
from reliq.admin import Inspector
from reliq.transports.broker_urls import reset_inherited_url, urls_of

SPOOL = "reliq-spool:////var/spool/reliq.db"


def switched(*urls):
    """Return a connection over *urls* that was switched through all of them."""
    connection = Connection(list(urls))
    for url in urls[1:]:
        connection.switch(url)
    return connection


@pytest.mark.parametrize(
    "urls",
    [
        ("reliq://a:7000/1", SPOOL),
        ("reliq://a", SPOOL),
        (SPOOL, "reliq://a"),
        ("reliq://a:7000/1", "reliq://b"),
        ("reliq://a:7000/1", SPOOL, "reliq://b"),
        ("reliqs://a:7000", "reliq://a"),
        ("reliq://a", "reliq-spool:///spool.db", SPOOL),
    ],
)
def test_the_last_one_switched_to(urls):
    """The URL in use is the last one, even if Kombu keeps a port, database or path of another."""
    assert (urls, urls[-1]) == urls_of(switched(*urls))
    assert (urls, urls[0]) == urls_of(Connection(list(urls)))


def test_what_sticks_is_taken_off():
    """A URL without a port and a database gets none from another URL."""
    connection = switched("reliq://a:7000/1", SPOOL, "reliq://b")
    assert (7000, "/var/spool/reliq.db") == (connection.port, connection.virtual_host)
    reset_inherited_url(connection)
    assert (None, "/") == (connection.port, connection.virtual_host)
    assert "reliq://b" == urls_of(connection)[1]


def test_what_was_said_apart_stays():
    """A port that was given beside the list, and is in no URL of it, is kept."""
    connection = Connection(["reliq://a", "reliq://b"], port=7000)
    reset_inherited_url(connection)
    assert 7000 == connection.port


@pytest.mark.parametrize(
    "use",
    [
        Connection,
        Inspector,
        lambda url: Connection(["reliq://localhost:1", url]).transport,
        lambda url: Celery(broker=url, set_as_current=False).connection_for_write(),
    ],
)
def test_a_file_is_no_broker(use):
    """A file as a broker is refused at the start, also in a list.

    The error names the available alternatives.
    """
    with pytest.raises(ConfigurationError, match=r"reliq-embedded:////folder .*reliq-spool:////"):
        use("reliq-sqlite:////tmp/broker.db")


def test_sentinels_are_one_broker():
    """All Sentinels of a list are one broker; without others, the list has no alternative."""
    one, two = "reliq-sentinel://s1:26379/0", "reliq-sentinel://s2:26379"
    assert ((), "") == urls_of(Connection([one, two]))
    group = f"{one};{two}"
    for urls in ((one, two), (two, SPOOL), (one, SPOOL, two)):
        connection = switched(*urls, SPOOL) if SPOOL not in urls else switched(*urls)
        expected = ";".join(url for url in urls if url != SPOOL)
        assert {expected, SPOOL} == set(urls_of(connection)[0])
    connection = switched(one, two, SPOOL)
    assert ((group, SPOOL), SPOOL) == urls_of(connection)
    connection.switch(two)
    assert ((group, SPOOL), group) == urls_of(connection)


@pytest.mark.parametrize("scheme", ["reliq-cluster", "reliq-sentinel"])
def test_a_list_of_one_string(scheme):
    """A list's item may contain several URLs with semicolons, as Celery's do."""
    one, two = f"{scheme}://a:7000/0", f"{scheme}://b:7001/0"
    options = {"master_name": "m"}
    for urls, others in (([f"{one};{two}"], []), (["reliq://c", f"{one};{two}"], ["reliq://c"])):
        app = Celery(broker=urls, broker_transport_options=options, set_as_current=False)
        for make in (partial(Connection, urls, transport_options=options), app.connection):
            connection = make()
            assert connection.transport.address
            assert [*others, one, two] == connection.alt
            assert {one, two, *others} >= {next(connection.cycle) for _ in range(9)}


def test_nodes_of_a_cluster_are_one_broker():
    """All nodes of a cluster in a list are one broker, also with a spool behind them."""
    one, two = "reliq-cluster://a:7000", "reliq-cluster://b:7001"
    assert ((), "") == urls_of(Connection([one, two]))
    group = f"{one};{two}"
    connection = switched(one, two, SPOOL)
    assert ((group, SPOOL), SPOOL) == urls_of(connection)
    connection.switch(two)
    assert ((group, SPOOL), group) == urls_of(connection)
