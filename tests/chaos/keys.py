"""Checks every key that remains at the end against the catalogue in reliq/lua/keys.py.

Called when the broker is idle and every process has ended. Any key without an explanation is a
finding: a key of no queue or of an unknown kind, a tag in two places or in none, or the record of
an ended consumer that never expires.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING

from reliq.lua import keys
from reliq.lua.keys import BatchKeys, QueueKeys, escape, queue_keys

if TYPE_CHECKING:
    from collections.abc import Collection

    import redis

GLOBAL = {
    "queues": "zset",
    "exchanges": "hash",
    "consumers": "zset",
    "dead_letter_routed": "zset",
    "broker_id": "string",
    "stored_format": "hash",
    "looking": "string",
    "batches": "zset",
    "batches_opened": "zset",
}
_OF_A_BATCH = re.compile(r"^reliq:batch:\{(?P<batch>[^{}]*)\}:(?P<part>.+)$")
_OF_A_QUEUE = re.compile(r"^reliq:\{(?P<queue>[^{}]*)\}:(?P<part>.+)$")


@dataclass
class Contents:
    """The tags in each key of one queue, as sets."""

    messages: set[bytes] = field(default_factory=set)
    ready: set[bytes] = field(default_factory=set)
    delayed: set[bytes] = field(default_factory=set)
    unacked_index: set[bytes] = field(default_factory=set)
    unacked: set[bytes] = field(default_factory=set)
    deliveries: set[bytes] = field(default_factory=set)
    expiry: set[bytes] = field(default_factory=set)
    dead: set[bytes] = field(default_factory=set)
    dead_info: set[bytes] = field(default_factory=set)
    moves: set[bytes] = field(default_factory=set)


def misplaced(queue: str, tags: Contents) -> list[str]:
    """Return wrong places of one queue's tags at rest."""
    places = {"ready": tags.ready, "delayed": tags.delayed, "unacked": tags.unacked}
    places["dead"] = tags.dead
    wrong = []
    for one, other in combinations(places, 2):
        if both := places[one] & places[other]:
            wrong.append(_tell(queue, f"in {one} and in {other}", both))
    everywhere = set().union(*places.values())
    for what, found in {
        "in messages, and in no place": tags.messages - everywhere,
        "in a place, and not in messages": everywhere - tags.messages,
        "unacked without an index entry": tags.unacked - tags.unacked_index,
        "in the index and not unacked": tags.unacked_index - tags.unacked,
        "dead without a reason": tags.dead - tags.dead_info,
        "a reason for what is not dead": tags.dead_info - tags.dead,
        "a delivery count of a message that is gone": tags.deliveries - tags.messages,
        "an expiry of what does not wait": tags.expiry - tags.ready - tags.delayed,
        "unacked, and nobody is left": tags.unacked,
        "on its way to another queue, for ever": tags.moves,
    }.items():
        if found:
            wrong.append(_tell(queue, what, found))
    return wrong


def _tell(queue: str, what: str, tags: Collection[bytes]) -> str:
    shown = ", ".join(tag.decode("ascii", "replace") for tag in sorted(tags)[:3])
    return f"queue {queue!r}: {len(tags)} tags {what} ({shown})"


def unexplained(client: redis.Redis, prefix: str = "") -> list[str]:
    """Return descriptions of keys that the catalogue does not explain."""
    shared = keys.broker_keys(prefix)
    queues = {name.decode() for name in client.zrange(shared.queues, 0, -1)}
    batches = {escape(name.decode()) for name in client.zrange(shared.batches, 0, -1)}
    escaped = {escape(name): name for name in queues}
    exchanges = {escape(name.decode()) for name in client.hkeys(shared.exchanges)}
    wrong: list[str] = []
    for raw in sorted(client.scan_iter(count=1000)):
        key, kind = raw.decode(), client.type(raw).decode()
        name = key.removeprefix(prefix)
        if name.startswith("reliq:{%}:"):
            wrong += _odd_global(client, raw, key, name.removeprefix("reliq:{%}:"))
        elif of_queue := _OF_A_QUEUE.match(name):
            queue, part = of_queue["queue"], of_queue["part"]
            # Publish numbers outlive a deleted queue until they expire.
            if queue not in escaped and not _is_of_publishers(part):
                wrong.append(f"{key}: of a queue that is not listed ({kind})")
            wrong += _odd_part(client, raw, key, part)
        elif of_batch := _OF_A_BATCH.match(name):
            if of_batch["batch"] not in batches:
                wrong.append(f"{key}: of a batch that is not listed ({kind})")
            if of_batch["part"] not in BatchKeys._fields:
                wrong.append(f"{key}: no such part in the catalogue")
        else:
            wrong += _odd_other(client, raw, key, name, exchanges)
    for queue in sorted(queues):
        wrong += misplaced(queue, _contents(client, prefix, queue))
        wrong += _odd_meta(client, prefix, queue)
    return wrong


def haunted(client: redis.Redis, living: Collection[int]) -> str:
    """Return a listed consumer of a process that is not *living*; "" if there is none.

    The living consumers must detect the dead ones.
    """
    for raw in client.scan_iter("reliq:{*}:consumers", _type="hash"):
        for name in client.hkeys(raw):
            if int(name.split(b":")[1]) not in living:
                return f"{name.decode()} in {raw.decode()}"
    return ""


def _odd_global(client: redis.Redis, raw: bytes, key: str, part: str) -> list[str]:
    if part.startswith("consumer:"):
        forgotten = client.ttl(raw) != -1
        return [] if forgotten else [f"{key}: a consumer's record that nobody will forget"]
    kind = client.type(raw).decode()
    return [] if GLOBAL.get(part) == kind else [f"{key}: not in the catalogue ({kind})"]


def _odd_other(
    client: redis.Redis, raw: bytes, key: str, name: str, exchanges: Collection[str]
) -> list[str]:
    if name.startswith("reliq:bindings:{"):
        known = name[len("reliq:bindings:{") : -1] in exchanges
        return [] if known else [f"{key}: bindings of an exchange that was not declared"]
    # The claim of a process that changes partitions, and the log of transient messages.
    if name.startswith(("reliq:once:{", "reliq:log:{")):
        return [f"{key}: never expires"] if client.ttl(raw) == -1 else []
    return [f"{key}: not in the catalogue ({client.type(raw).decode()})"]


def _is_of_publishers(part: str) -> bool:
    return part == "publishers" or part.startswith("publisher:")


def _odd_part(client: redis.Redis, raw: bytes, key: str, part: str) -> list[str]:
    if _is_of_publishers(part) or part == "unacked_mutex":
        return [f"{key}: never expires"] if client.ttl(raw) == -1 else []
    if part not in QueueKeys._fields:
        return [f"{key}: no such part in the catalogue"]
    if part == "notification" and (to_notify := client.llen(raw)) > 1:
        return [f"{key}: {to_notify} tokens, not at most one"]
    if part == "job_events":
        return [f"{key}: {client.zcard(raw)} ends of jobs that no batch was told"]
    if part == "consumers":
        left = [name.decode() for name in client.hkeys(raw)]
        return [f"{key}: lists a consumer that has ended: {name}" for name in left]
    return []


def _contents(client: redis.Redis, prefix: str, queue: str) -> Contents:
    parts = queue_keys(prefix, queue)
    tags = Contents()
    for part in ("messages", "unacked", "deliveries", "dead_info", "moves"):
        setattr(tags, part, set(client.hkeys(getattr(parts, part))))
    for part in ("ready", "delayed", "unacked_index", "expiry", "dead"):
        setattr(tags, part, set(client.zrange(getattr(parts, part), 0, -1)))
    return tags


def _odd_meta(client: redis.Redis, prefix: str, queue: str) -> list[str]:
    fields = [name.decode() for name in client.hkeys(queue_keys(prefix, queue).meta)]
    marks = [name for name in fields if name.startswith("candidate:")]
    if not marks:
        return []
    return [
        f"queue {queue!r}: {len(marks)} marks of candidates in meta that nobody holds ({marks[0]})"
    ]
