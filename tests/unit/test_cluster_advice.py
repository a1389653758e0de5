"""The advice to an operator about a slot that is not served."""

import pytest

from reliq.client.cluster.requests import for_node, for_reply, named
from reliq.client.cluster.slots import Place
from reliq.lua.keys import bindings, broker_keys, queue_key
from reliq.message.queue_names import partition_name

FIX = "redis-cli --cluster fix"


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("ASK 5 a:1", FIX),
        ("TRYAGAIN Multiple keys request during rehashing of slot", FIX),
        ("CLUSTERDOWN Hash slot not served", FIX),
        ("CLUSTERDOWN The cluster is down", "cluster-require-full-coverage no"),
        ("LOADING Redis is loading the dataset in memory", "when it has loaded"),
        ("MASTERDOWN Link with MASTER is down", "master is down: start the master"),
        ("MOVED 5 a:1", "compare CLUSTER NODES"),
    ],
)
def test_a_reply_by_which_a_node_refuses(reply, said):
    """The fix is advised only for a slot that moves between two nodes or belongs to none."""
    found = for_reply(reply)
    assert said in found
    assert (said == FIX) is (FIX in found)


@pytest.mark.parametrize("replica", [True, False])
def test_a_node_that_cannot_be_reached(replica):
    """The advice for an unreachable node is to start or replace it; there is nothing to fix."""
    found = for_node(Place("a", 7000), replica=replica)
    assert ("start a:7000 again" in found, "FAILOVER" in found) == (replica, replica)
    assert replica or "if a:7000 is down, start it again" in found
    assert FIX not in found


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (queue_key("", "a{b}%c", "meta"), " of queue 'a{b}%c'"),
        (queue_key("shop:", "q", "ready"), " of queue 'q'"),
        (queue_key("", partition_name("q", 3), "meta"), " of partition 3 of queue 'q'"),
        (broker_keys("shop:").queues, ""),
        (bindings("", "exchange"), ""),
    ],
)
def test_what_a_key_is_of(key, said):
    """The name of a key includes its queue and partition, with any prefix."""
    assert f"{key!r}{said}" == named(key)
