"""Every Redis key that reliq uses, its type beside it. Pure functions.

Keys of one queue carry the hash tag ``{queue}``, so a script touches one slot of a cluster.
A brace in a queue name would end the hash tag early and is percent-escaped. Keys that belong to no
queue and no exchange carry the tag ``{%}``, which no escaped name can equal: they share one slot.

messages        tag -> envelope, in every state
ready           tag -> rank * 2**45 + sequence: strict priority, FIFO inside it
delayed         tag -> due, server ms
unacked_index   tag -> lease deadline, server ms
unacked         tag -> lease record "token|score|expires|consumer"; score "begun": it is acked,
                and its task runs
deliveries      tag -> failed deliveries; 0: was returned in order; absent: never delivered
expiry          tag -> expires, server ms; only ready or delayed messages with a TTL
dead, dead_info tag -> died, server ms; tag -> "reason|count|consumer|error"
notification    at most one token, which wakes a consumer
stats           the ledger's counters, and the sequence of lease tokens
meta            the queue's arguments (msgpack), and the fields that scripts use
consumers       consumer id -> "subscriptions connection": the consumers of the queue
unacked_mutex   holder of the current restore_visible pass; expires
moves           tag -> "number|target": messages on their way to another queue or broker
bound           msgpack of exchange and binding: the bindings to remove with the queue
publishers      publisher -> "until low_water known": publish numbers that may be retried; expires
job_events      event of a job -> number: events to report to their batches
history         block -> snapshots of counts and ledger, in the format of snapshot.lua
failed_deliveries  "tag|when|how it ended|failed deliveries|consumer": the last ones, newest first
guard           never stored, and in KEYS of every script that writes: while the slot moves to
                another node, a script is refused as a whole instead of interrupted half way
wakeup:<id>     a token that ends one notifier's wait if CLIENT UNBLOCK is refused; expires
publisher:<id>  numbers of a move from another broker, which may be resumed; expires
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from ..message.queue_names import escape

_ESCAPED = re.compile("%(25|7B|7D)")
_OF_QUEUE = re.compile(r"reliq:\{([^{}]*)\}:")


class QueueKeys(NamedTuple):
    """The keys of one queue."""

    messages: str  # HASH
    ready: str  # ZSET
    delayed: str  # ZSET
    unacked_index: str  # ZSET
    unacked: str  # HASH
    deliveries: str  # HASH
    expiry: str  # ZSET
    dead: str  # ZSET
    dead_info: str  # HASH
    notification: str  # LIST
    stats: str  # HASH
    meta: str  # HASH
    consumers: str  # HASH
    unacked_mutex: str  # STRING
    moves: str  # HASH
    publishers: str  # HASH
    job_events: str  # ZSET
    history: str  # HASH
    failed_deliveries: str  # LIST
    bound: str  # SET
    guard: str  # STRING


class BatchKeys(NamedTuple):
    """The keys of one batch, in a slot of their own.

    Measured with 500,000 jobs (ids of 36 characters, queue names of 10, workers' of 32): 175
    bytes for a waiting job, 215 for a running one, 145 for a successful one, 450 for a failed
    one with its reason. A step of 200 changes: 0.9 to 2.1 ms of the server's processor.
    """

    batch: str  # HASH name, times, the number of jobs in each state, pending callbacks
    jobs: str  # HASH job -> "state|retries|token|since|tag|worker|queue"
    failures: str  # ZSET job -> when it failed, server ms
    errors: str  # HASH job -> reason of the failure
    progress: str  # HASH job -> "number of reports|when|done|total|text"
    progressed: str  # ZSET job -> its last progress, server ms; the last 1,000 jobs
    reports: str  # LIST "when|length of job|job" + text, newest first; the last 10,000
    guard: str  # STRING never stored


class BrokerKeys(NamedTuple):
    """The keys that belong to no queue, no exchange and no batch: all in one slot."""

    queues: str  # ZSET queue name -> time of the next check
    dead_letter_routed: str  # ZSET queue name -> 0: queues with a dead-letter exchange
    exchanges: str  # HASH name -> msgpack of its declaration
    consumers: str  # ZSET consumer id -> last heartbeat, server ms
    looking: str  # STRING id of the process that handles dead consumers; expires
    batches: str  # ZSET batch -> time of the next check
    batches_opened: str  # ZSET batch -> when it was opened, server ms
    broker_id: str  # STRING the name by which other brokers know this one
    stored_format: str  # HASH "version" -> limits.FORMAT, of everything under the prefix
    kombu_held: str  # HASH number -> "target|length of queue|queue" + message: see kombu_take.lua
    kombu_last: str  # STRING the last number that a migration has given; expires
    probe: str  # STRING never stored: deleted to check that a server accepts writes
    guard: str  # STRING never stored


def literal(text: str) -> str:
    """Return the pattern that matches exactly *text*."""
    return "".join(f"\\{char}" if char in "*?[]^\\" else char for char in text)


def metas(prefix: str) -> str:
    """Return the pattern of the keys that mark existing queues."""
    return f"{literal(prefix)}reliq:{{*}}:meta"


def queue_of_meta(key: str, prefix: str) -> str:
    """Return the name of the queue whose "meta" key (:func:`queue_key`) is *key*."""
    return _unescaped(key[len(f"{prefix}reliq:{{") : -len("}:meta")])


def queue_named_in(key: str) -> str | None:
    """Return the queue to which *key* belongs, whatever its prefix, or None."""
    matched = _OF_QUEUE.search(key)
    return None if matched is None or matched[1] == "%" else _unescaped(matched[1])


def _unescaped(name: str) -> str:
    return "" if name == "%0" else _ESCAPED.sub(lambda matched: chr(int(matched[1], 16)), name)


def queue_key(prefix: str, queue: str, part: str) -> str:
    """Return the key of one *part* of *queue*."""
    return f"{prefix}reliq:{{{escape(queue)}}}:{part}"


@lru_cache(maxsize=64)
def broker_keys(prefix: str) -> BrokerKeys:
    """Return all keys that belong to no queue, no exchange and no batch."""
    return BrokerKeys._make(f"{prefix}reliq:{{%}}:{part}" for part in BrokerKeys._fields)


@lru_cache(maxsize=4096)
def queue_keys(prefix: str, queue: str) -> QueueKeys:
    """Return all keys of *queue*."""
    return QueueKeys._make(queue_key(prefix, queue, part) for part in QueueKeys._fields)


@lru_cache(maxsize=4096)
def publisher(prefix: str, queue: str, publisher_id: str) -> str:  # ZSET
    """Return the key of the numbers that a move into *queue* has stored."""
    return queue_key(prefix, queue, f"publisher:{publisher_id}")


def wakeup(prefix: str, queue: str, notifier_id: str) -> str:  # LIST
    """Return the key of the token that ends the wait of one notifier."""
    return queue_key(prefix, queue, f"wakeup:{notifier_id}")


def guard(prefix: str, name: str) -> str:  # never stored
    """Return the guard in the slot of the exchange or claim *name*."""
    return queue_key(prefix, name, "guard")


def older_layout(prefix: str) -> tuple[str, str]:  # ZSET, HASH
    """Return the keys of all queues and all exchanges in the oldest layout."""
    return f"{prefix}reliq:queues", f"{prefix}reliq:exchanges"


def probe(prefix: str, number: int) -> str:
    """Return a key like ``BrokerKeys.probe`` in another slot, perhaps at another node."""
    return f"{prefix}reliq:{{%{number}}}:probe"


@lru_cache(maxsize=4096)
def bindings(prefix: str, exchange: str) -> str:  # HASH binding -> "", and "version"
    """Return the key of the bindings of *exchange*, with the table's version."""
    return f"{prefix}reliq:bindings:{{{escape(exchange)}}}"


def log(prefix: str, exchange: str) -> str:  # ZSET "tag|envelope" -> server us; expires
    """Return the key of the last transient messages of a fanout *exchange*."""
    return f"{prefix}reliq:log:{{{escape(exchange)}}}"


def once(prefix: str, name: str) -> str:  # STRING token; "+token" when it is finished; TTL
    """Return the key of a claim for ``reliq.once``; each is in a slot of its own."""
    return f"{prefix}reliq:once:{{{escape(name)}}}"


@lru_cache(maxsize=4096)
def batch_keys(prefix: str, batch: str) -> BatchKeys:
    """Return all keys of *batch*."""
    tagged = f"{prefix}reliq:batch:{{{escape(batch)}}}"
    return BatchKeys._make(f"{tagged}:{part}" for part in BatchKeys._fields)


def consumer(prefix: str, consumer_id: str) -> str:  # HASH with a TTL
    """Return the key of one consumer's record."""
    return f"{prefix}reliq:{{%}}:consumer:{consumer_id}"


# -- keys of Kombu's own transport; kombu/transport/redis.py has these names and options


def waiting(prefix: str, queue: str, priority: int, sep: str) -> str:  # LIST newest first
    """Return the key of Kombu's list of one priority of *queue*."""
    return f"{prefix}{queue}{sep}{priority}" if priority else f"{prefix}{queue}"


def kombu_bindings(prefix: str, exchange: str) -> str:  # SET key, pattern and queue, joined
    """Return the key of Kombu's bindings of *exchange*."""
    return f"{prefix}_kombu.binding.{exchange}"


def kombu_permanent_bindings(prefix: str, exchange: str) -> str:  # SET, since Kombu 5.7
    """Return the key of the bindings whose queues do not expire."""
    return f"{prefix}_kombu.binding_permanent.{exchange}"


def kombu_deadlines(prefix: str) -> str:  # ZSET exchange -> ms, since Kombu 5.7
    """Return the key of the exchanges with bindings of queues that expire."""
    return f"{prefix}_kombu.binding_deadlines"


# -- keys of other programs

_PARTS = frozenset({*QueueKeys._fields, "publisher", "wakeup"})
_FAMILIES = frozenset({"batch", "bindings", "log", "once"})


def is_ours(key: str, prefix: str) -> bool:
    """Whether *key*, which begins with our prefix, is one that reliq creates."""
    rest = key.removeprefix(f"{prefix}reliq:")
    if rest.startswith("{%}:"):
        part, colon, _ = rest.removeprefix("{%}:").partition(":")
        return part == "consumer" if colon else part in BrokerKeys._fields
    if rest.startswith("{"):
        name, brace, part = rest.rpartition("}:")
        return bool(brace) and "}" not in name and part.split(":")[0] in _PARTS
    return ":" in rest and rest.split(":")[0] in _FAMILIES
