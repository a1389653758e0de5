import re
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliq.engines.redis import keys
from reliq.engines.redis.keys import QueueKeys, batch_keys, escape, queue_key, queue_keys

NAMES = st.text(st.sampled_from("{}%257BDab:") | st.characters(codec="utf-8"), max_size=12)


def test_the_keys_are_as_documented():
    """An operator finds a queue's keys by its name."""
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
    """Without it all between the braces would be empty, which is no hash tag."""
    assert "%0" == escape("")


@given(NAMES.filter(bool))
def test_a_name_can_be_read_back(name):
    """Escaping takes the braces out of a name and loses nothing."""
    assert not set("{}") & set(escape(name))
    assert name == unquote(escape(name), errors="surrogatepass")


def test_a_plain_name_is_not_escaped():
    """The names that people use look in Redis as they look in their code."""
    assert "my-queue.9@host:x/y" == escape("my-queue.9@host:x/y")


@given(NAMES.filter(bool), st.sampled_from(["", "app:", "a.b/"]))
def test_all_keys_of_a_queue_share_a_slot(name, prefix):
    """The first pair of braces holds the queue's name, alone: a cluster hashes what is in it."""
    everything = [*queue_keys(prefix, name), keys.publisher(prefix, name, "id")]
    tags = {re.match(r"[^{]*\{(.*?)\}", key, re.DOTALL)[1] for key in everything}
    assert {escape(name)} == tags


@given(NAMES.filter(bool), st.sampled_from(["", "app:", "a.b/"]))
def test_all_keys_of_a_batch_share_a_slot(name, prefix):
    """That of its id."""
    tags = {re.match(r"[^{]*\{(.*?)\}", key, re.DOTALL)[1] for key in batch_keys(prefix, name)}
    assert {escape(name)} == tags


@given(NAMES, NAMES)
def test_two_batches_have_no_key_in_common(one, other):
    """Nor has a batch one with a queue, an exchange or a claim."""
    assert (one == other) == bool({*batch_keys("", one)} & {*batch_keys("", other)})
    others = {*queue_keys("", other), *keys_of_all(""), keys.once("", other)}
    assert not {*batch_keys("", one)} & {*others, keys.bindings("", other)}


@given(NAMES, st.sampled_from(["", "app:", "a.b/"]))
def test_what_is_ours(name, prefix):
    """The doctor looks for who wrote other keys."""
    ours = {*queue_keys(prefix, name), *batch_keys(prefix, name), *keys_of_all(prefix)}
    assert all(keys.is_ours(key, prefix) for key in ours)
    assert not keys.is_ours(f"{prefix}reliq:{{%}}:batched", prefix)


@given(NAMES, NAMES, st.sampled_from(QueueKeys._fields), st.sampled_from(QueueKeys._fields))
def test_two_queues_have_no_key_in_common(one, other, part, its_part):
    """Whatever their names, keys are the same only for the same part of the same queue."""
    same = (one, part) == (other, its_part)
    assert same == (queue_key("", one, part) == queue_key("", other, its_part))


@given(NAMES)
def test_no_queue_takes_a_global_key(name):
    """The keys of the broker as a whole are no queue's."""
    shared = {*keys_of_all(""), keys.bindings("", name), keys.once("", name)}
    assert not shared & set(queue_keys("", name))


def keys_of_all(prefix):
    """Return every key that belongs to no queue and no exchange."""
    return [*keys.broker_keys(prefix), keys.consumer(prefix, "host:1:ab")]


@given(NAMES)
def test_all_global_keys_share_a_slot(name):
    """Their tag is one that no queue and no exchange can have."""
    assert {"%"} == {re.match(r"[^{]*\{(.*?)\}", key)[1] for key in keys_of_all("app:")}
    assert "%" != escape(name)


@pytest.mark.parametrize("part", QueueKeys._fields)
def test_each_part_has_its_own_key(part):
    """The field's name is the key's last word."""
    assert getattr(queue_keys("", "q"), part).endswith(f":{part}")
