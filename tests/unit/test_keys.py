import re
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliq.lua import keys
from reliq.lua.keys import QueueKeys, batch_keys, escape, queue_key, queue_keys

NAMES = st.text(st.sampled_from("{}%257BDab:") | st.characters(codec="utf-8"), max_size=12)


def test_the_keys_are_as_documented():
    """An operator finds a queue's keys by its name, in the documented form."""
    found = queue_keys("app:", "celery")
    assert "app:reliq:{celery}:messages" == found.messages
    assert "app:reliq:{celery}:unacked_mutex" == found.unacked_mutex
    assert "app:reliq:{celery}:publisher:ab12" == keys.publisher("app:", "celery", "ab12")
    assert "app:reliq:{%}:queues" == keys.broker_keys("app:").queues
    assert "app:reliq:{%}:exchanges" == keys.broker_keys("app:").exchanges
    assert "app:reliq:bindings:{celeryev}" == keys.bindings("app:", "celeryev")
    assert "app:reliq:{%}:consumers" == keys.broker_keys("app:").consumers
    assert "app:reliq:{%}:consumer:host:1" == keys.consumer("app:", "host:1")
    assert "app:reliq:batch:{b}:jobs" == keys.batch_keys("app:", "b").jobs
    assert "app:reliq:{%}:batches" == keys.broker_keys("app:").batches
    assert "app:reliq:{%}:batches_opened" == keys.broker_keys("app:").batches_opened


def test_an_empty_name_has_a_slot_too():
    """An empty name has a slot too: empty braces would be no hash tag."""
    assert "%0" == escape("")


@given(NAMES.filter(bool))
def test_a_name_can_be_read_back(name):
    """Escaping removes the braces from a name, and the name can be read back."""
    assert not set("{}") & set(escape(name))
    assert name == unquote(escape(name), errors="surrogatepass")


def test_a_plain_name_is_not_escaped():
    """Ordinary names look the same in Redis as in code."""
    assert "my-queue.9@host:x/y" == escape("my-queue.9@host:x/y")


@given(NAMES.filter(bool), st.sampled_from(["", "app:", "a.b/"]))
def test_all_keys_of_a_queue_share_a_slot(name, prefix):
    """The first pair of braces contains only the queue's name, which a cluster hashes."""
    everything = [*queue_keys(prefix, name), keys.publisher(prefix, name, "id")]
    tags = {re.match(r"[^{]*\{(.*?)\}", key, re.DOTALL)[1] for key in everything}
    assert {escape(name)} == tags


@given(NAMES.filter(bool), st.sampled_from(["", "app:", "a.b/"]))
def test_all_keys_of_a_batch_share_a_slot(name, prefix):
    """All keys of a batch share the slot of its id."""
    tags = {re.match(r"[^{]*\{(.*?)\}", key, re.DOTALL)[1] for key in batch_keys(prefix, name)}
    assert {escape(name)} == tags


@given(NAMES, NAMES)
def test_two_batches_have_no_key_in_common(one, other):
    """Two batches have no key in common, and a batch shares none with a queue or exchange.

    The same holds for a claim.
    """
    assert (one == other) == bool({*batch_keys("", one)} & {*batch_keys("", other)})
    others = {*queue_keys("", other), *keys_of_all(""), keys.once("", other)}
    assert not {*batch_keys("", one)} & {*others, keys.bindings("", other)}


@given(NAMES, st.sampled_from(["", "app:", "a.b/"]))
def test_what_is_ours(name, prefix):
    """Every key of reliq is recognized as such: the doctor looks for the writers of other keys."""
    ours = {*queue_keys(prefix, name), *batch_keys(prefix, name), *keys_of_all(prefix)}
    assert all(keys.is_ours(key, prefix) for key in ours)
    assert not keys.is_ours(f"{prefix}reliq:{{%}}:batched", prefix)


@given(NAMES, NAMES, st.sampled_from(QueueKeys._fields), st.sampled_from(QueueKeys._fields))
def test_two_queues_have_no_key_in_common(one, other, part, its_part):
    """Keys are equal only for the same part of the same queue, whatever the names."""
    same = (one, part) == (other, its_part)
    assert same == (queue_key("", one, part) == queue_key("", other, its_part))


@given(NAMES)
def test_no_queue_takes_a_global_key(name):
    """The keys of the broker as a whole are keys of no queue."""
    shared = {*keys_of_all(""), keys.bindings("", name), keys.once("", name)}
    assert not shared & set(queue_keys("", name))


def keys_of_all(prefix):
    """Return every key that belongs to no queue and no exchange."""
    return [*keys.broker_keys(prefix), keys.consumer(prefix, "host:1:ab")]


@given(NAMES)
def test_all_global_keys_share_a_slot(name):
    """All global keys share a hash tag that no queue and no exchange can have."""
    assert {"%"} == {re.match(r"[^{]*\{(.*?)\}", key)[1] for key in keys_of_all("app:")}
    assert "%" != escape(name)


@pytest.mark.parametrize("part", QueueKeys._fields)
def test_each_part_has_its_own_key(part):
    """The last word of a key is the name of its field."""
    assert getattr(queue_keys("", "q"), part).endswith(f":{part}")
