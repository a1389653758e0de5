"""Bugs, one at a time: what the model must find in a script that is broken on purpose.

Each is one replacement in one script, made in memory. The text that it replaces must
stand there exactly once, so that a script that was rewritten is noticed here.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, NamedTuple

from reliq.engines.redis import scripts

if TYPE_CHECKING:
    from collections.abc import Iterator


class Mutant(NamedTuple):
    """One bug."""

    name: str
    script: str
    text: str
    instead: str


MUTANTS = (
    Mutant("a late ack leaves it ready", "ack", "redis.call('ZREM', ready, tag) + ", ""),
    Mutant("an ack counts twice", "ack", "'acked', found)", "'acked', 2 * found)"),
    Mutant("an ack leaves the count", "ack", "redis.call('HDEL', deliveries, unpack(ARGV))", ""),
    Mutant("release: any token will do", "release", "held == token", "held"),
    Mutant("release: to the end", "release", "ZADD', ready, score,", "ZADD', ready, score + 1000,"),
    Mutant("release: TTL forgotten", "release", "expires ~= ''", "false"),
    Mutant(
        "requeue is not counted",
        "release",
        "'HINCRBY', deliveries, tag, 1",
        "'HGET', deliveries, tag",
    ),
    Mutant("dead_letter: any token will do", "dead_letter", "held == token", "held"),
    Mutant(
        "dead_letter: one too many is kept",
        "dead_letter",
        "- dead_letter_max,",
        "- dead_letter_max - 1,",
    ),
    Mutant(
        "dead_letter: still unacked", "dead_letter", "redis.call('ZREM', unacked_index, tag)", ""
    ),
    Mutant("renew: any token will do", "renew", "== ARGV[2 * i + 1]", "~= nil"),
    Mutant(
        "renew: the end is a time like others",
        "renew",
        "lease > 0 and now + lease or 0",
        "now + lease",
    ),
    Mutant(
        "reserve: tokens repeat",
        "reserve",
        "'token', #tags) - #tags + 1",
        "'token', #tags - 1) - #tags + 2",
    ),
    Mutant("reserve: two suspects at a time", "reserve", "elseif not suspect then", "else"),
    Mutant("reserve: promoted out of turn", "reserve", "+ sequence + i", "+ i"),
    Mutant(
        "reserve: expired too late by a ms",
        "reserve",
        "expiry, '-inf', now, ",
        "expiry, '-inf', '(' .. now, ",
    ),
    Mutant("reserve: a paused queue gives", "reserve", "n > 0 and not flags[1]", "n > 0"),
    Mutant("reserve: no_ack is not counted", "reserve", "'acked', #tags", "'acked', 0"),
    Mutant(
        "publish: a retry is stored again",
        "publish",
        "redis.call('ZADD', publisher, 'NX', number, number) == 0",
        "false",
    ),
    Mutant(
        "publish: the delay is not part of the TTL", "publish", "now + delay + ttl", "now + ttl"
    ),
    Mutant("publish: a stale route is taken", "publish", "version ~= ''", "false"),
    Mutant("publish: forgets one number too many", "publish", "'(' .. low", "low"),
    Mutant("restore: not counted", "restore_visible", "(blamed and 1 or 0)", "0"),
    Mutant(
        "restore: all are blamed",
        "restore_visible",
        "not suspects[owner] or suspects[owner] == tag",
        "true",
    ),
    Mutant(
        "restore: the limit is one more",
        "restore_visible",
        "count >= delivery_limit",
        "count > delivery_limit",
    ),
    Mutant(
        "restore: in two places",
        "restore_visible",
        "redis.call('ZREM', unacked_index, unpack(ended))",
        "",
    ),
    Mutant(
        "restore: what stood still is not seen",
        "restore_visible",
        "now > tonumber(own[9]",
        "now < tonumber(own[9]",
    ),
    Mutant(
        "restore: a pass is never overdue again",
        "restore_visible",
        "'spared_from', spared_from, 'spared_until', spared_until)",
        "'spared_from', 0, 'spared_until', 0)",
    ),
    Mutant("restore: no mutex", "restore_visible", "'NX', 'PX'", "'PX'"),
    Mutant(
        "release: the limit is one more",
        "release",
        "count >= delivery_limit",
        "count > delivery_limit",
    ),
    Mutant("release: no backoff", "release", "if wait > 0", "if false"),
    Mutant("restore: backoff of one more", "restore_visible", "2 ^ (count - 1)", "2 ^ count"),
    Mutant("publish: one too many", "publish", "waiting + 1 > max_length", "waiting > max_length"),
    Mutant(
        "publish: the youngest gives way",
        "publish",
        "'+inf', 'LIMIT', 0, 1)[1]",
        "'+inf', 'LIMIT', 0, 9)[2] or last[1]",
    ),
    Mutant(
        "bytes are not given back",
        "ack",
        "'waiting_bytes', -redis.call",
        "'waiting_bytes', 0 * redis.call",
    ),
    Mutant(
        "replay keeps the count", "replay", "redis.call('HDEL', deliveries, unpack(replayed))", ""
    ),
    Mutant("replay of what is moving", "replay", "not begun or clock", "true or clock"),
    Mutant("move: a number is given again", "move", "if not move and", "if"),
    Mutant("resume wakes nobody", "pause", "redis.call('EXISTS', ready, delayed) > 0", "false"),
    Mutant("restore: rings while paused", "restore_visible", "waiting and not own[5]", "waiting"),
    Mutant("purge leaves the TTL", "purge", "redis.call('ZREM', expiry, unpack(tags))", ""),
    Mutant(
        "a deleted queue keeps its dead",
        "delete_queue",
        "dead, dead_info, bell, stats",
        "bell, stats",
    ),
)


@contextlib.contextmanager
def broken(mutant: Mutant) -> Iterator[None]:
    """Let the package have this bug."""
    attribute = mutant.script.upper()
    whole: scripts.Script = getattr(scripts, attribute)
    times = whole.text.count(mutant.text)
    assert times == 1, f"{mutant.text!r} stands {times} times in {mutant.script}.lua"
    text = whole.text.replace(mutant.text, mutant.instead)
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    setattr(scripts, attribute, scripts.Script(whole.name, text, sha))
    try:
        yield
    finally:
        setattr(scripts, attribute, whole)
