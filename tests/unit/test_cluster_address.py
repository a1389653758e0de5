"""The nodes that a cluster's URL names, and the slot map that is queried from them."""

import pytest

from reliq.client.cluster.slots import SLOTS, Place, SlotMap, cluster_address
from reliq.client.connect import Address
from reliq.client.sentinel import sentinel_address
from reliq.errors import BrokerUnavailable
from reliq.options import parse


@pytest.mark.parametrize("first", ["a:7000", "a"])
def test_a_url_without_a_port(first):
    """A URL without a port means the default port, whatever the other URLs contain."""
    urls = [f"reliq-cluster://{place}" for place in (first, "b", "c:7001")]
    seeds = cluster_address(urls, parse({})).seeds
    assert [("b", 6379), ("c", 7001)] == [(seed.host, seed.port) for seed in seeds][1:]


def test_an_interrupted_question_is_no_answer(monkeypatch):
    """A query for the slots that was interrupted counts as no answer: the next one starts anew."""
    slots, place = SlotMap((Address(host="a", port=7000),), {}), Place("a", 7000)
    interrupts = [KeyboardInterrupt()]

    def ask(*_):
        if interrupts:
            raise interrupts.pop()
        return iter([(0, SLOTS - 1, [place])])

    monkeypatch.setattr(slots, "_ask", ask)
    with pytest.raises(KeyboardInterrupt):
        slots.refresh(parse({}), "test")
    slots.refresh(parse({}), "test")
    assert {place} == slots.masters


def test_a_node_that_is_away_is_asked_last(monkeypatch):
    """An unreachable node is queried for the slots last, as each such query costs a second."""
    urls = [f"reliq-cluster://{host}:7000" for host in "abc"]
    slots, asked = cluster_address(urls, parse({})).slots, []

    def ask(place, *_):
        asked.append(place.host)
        raise BrokerUnavailable("lost")

    monkeypatch.setattr(slots, "_ask", ask)
    slots.unreachable.add(Place("a", 7000))
    with pytest.raises(BrokerUnavailable, match="none of 3 known nodes"):
        slots.refresh(parse({}), "test")
    assert ["b", "c", "a"] == asked


@pytest.mark.parametrize("place", [0, 1])
def test_tls_that_one_of_the_urls_asks_for(place):
    """TLS in one URL applies to all nodes, whichever URL requests it."""
    urls = ["reliq-cluster://a:7000", "reliq-cluster://b:7001"]
    urls[place] += "?ssl=true"
    seeds = cluster_address(urls, parse({})).seeds
    assert [False, False] == [seed.tls is None for seed in seeds]
    urls = [url.replace("cluster", "sentinel") for url in urls]
    group = sentinel_address(urls, parse({"master_name": "m"}))
    assert [False] * 3 == [item.tls is None for item in (group.master, *group.sentinels)]


@pytest.mark.parametrize("query", ["", "?ssl=true", "?ssl_cert_reqs=none"])
def test_the_name_of_the_broker_is_a_url(query):
    """The name of the broker is a URL that leads to the same nodes and contains no secret."""
    urls = [f"reliq-cluster://u:hush@a:7000{query}", "reliq-cluster://[::1]:7001"]
    address = cluster_address(urls, parse({}))
    again = cluster_address(str(address).split(";"), parse({}))
    assert [(seed.host, seed.port) for seed in address.seeds] == [
        (seed.host, seed.port) for seed in again.seeds
    ]
    assert (address.seeds[0].tls is None) is (again.seeds[0].tls is None)
    assert not [word for word in ("u:", "hush", "none") if word in str(address)]
