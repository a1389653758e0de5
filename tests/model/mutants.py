"""Mutants: bugs planted one at a time in a script, each of which the model must find.

Each mutant is one replacement in one script, made in memory. The replaced text must occur there
exactly once, so that a rewrite of the script is noticed here.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from reliq.lua import scripts
from reliq.values import limits
from tests.support.lua import with_text

if TYPE_CHECKING:
    from collections.abc import Iterator


class Mutant(NamedTuple):
    """One bug."""

    name: str
    script: str
    text: str
    instead: str
    found_by: str = ""
    """The contract test that finds it, if the model reaches it too rarely."""

    @property
    def machine(self) -> str:
        """Return the name of the state machine that finds it."""
        if self.name.startswith("limits:"):
            return "limits"
        return "batches" if self.script in _OF_BATCHES else "queues"


_OF_BATCHES = {
    "change_jobs",
    "note_job",
    "note_callback",
    "open_batch",
    "list_batch",
    "next_batches",
}


MUTANTS = (
    Mutant("a late ack leaves it ready", "ack", "redis.pcall('ZREM', ready, unpack(tags))", "0"),
    Mutant("an ack counts twice", "ack", "counter, removed)", "counter, 2 * removed)"),
    Mutant("an ack leaves the count", "ack", "redis.pcall('EXISTS', deliveries) ~= 0", "false"),
    Mutant(
        "release: any token will do", "release", "lease.token == tokens[i] and", "lease.token and"
    ),
    Mutant("release: to the end", "release", "due or old_place(", "due or 1000 + old_place("),
    Mutant("release: TTL forgotten", "release", "if whole(lease.expires)", "if false"),
    Mutant(
        "requeue is not counted",
        "release",
        "lease.failed = (lease.failed or 0) + 1",
        "lease.failed = lease.failed or 0",
    ),
    Mutant(
        "dead_letter: any token will do",
        "dead_letter",
        "lease.token == tokens[i] and",
        "lease.token and",
    ),
    Mutant(
        "dead_letter: one too many is kept",
        "dead_letter",
        "- dead_letter_max,",
        "- dead_letter_max - 1,",
    ),
    Mutant("dead_letter: still unacked", "dead_letter", "end_leases(tags_of(held))", ""),
    Mutant("renew: any token will do", "renew", "== token then", "~= nil"),
    Mutant("end_leases: any token will do", "end_leases", "== token then", "then"),
    Mutant(
        "end_leases: the end is a time like others",
        "end_leases",
        "[#ended + 1] = 0",
        "[#ended + 1] = 1",
    ),
    Mutant(
        "promote: to the end",
        "promote",
        "+ sequence + i",
        "+ sequence + i + 1000",
        found_by="test_expiry.py::test_a_due_message_queues_behind_what_is_ready",
    ),
    Mutant(
        "promote: rings while paused",
        "promote",
        " and redis.call('HEXISTS', meta, 'paused') == 0",
        "",
    ),
    Mutant(
        "reserve: tokens repeat",
        "reserve",
        "add(stats, 'token', gap + n)",
        "add(stats, 'token', gap + 1)",
    ),
    Mutant(
        "reserve: two candidates at a time",
        "reserve",
        "if may_be_poison and candidate then",
        "if false then",
        found_by="test_poison_candidates.py::test_a_consumer_is_given_one_candidate_at_a_time",
    ),
    Mutant("reserve: promoted out of turn", "reserve", "+ sequence + i", "+ i"),
    Mutant(
        "reserve: expired too late by a ms",
        "reserve",
        "expiry, '-inf', now, ",
        "expiry, '-inf', '(' .. now, ",
    ),
    Mutant(
        "reserve: a paused queue gives",
        "reserve",
        "elseif not paused and n > 0 then",
        "else",
    ),
    Mutant(
        "reserve: the last delivery has company",
        "reserve",
        "if occupancy == 2 and not candidate and #taken == 0 then",
        "if not candidate and #taken == 0 then",
    ),
    Mutant(
        "reserve: more is given beside an isolated delivery",
        "reserve",
        "not paused and shut then",
        "false then",
    ),
    Mutant(
        "reserve: a claim does not lapse",
        "reserve",
        "tonumber(claim_ends) > now and ",
        "",
        found_by="test_isolation.py::test_a_claim_lapses",
    ),
    Mutant(
        "reserve: a claim is of no use",
        "reserve",
        "and own and occupancy < 2 then",
        "and false then",
        found_by="test_isolation.py::test_who_has_waited_in_vain_goes_on",
    ),
    Mutant(
        "reserve: claims are taken over by who holds others",
        "reserve",
        "waits and (occupancy > 0 or (occupancy == 0 and not claimed_at)) then",
        "waits then",
    ),
    Mutant(
        "reserve: who has waited in vain waits on",
        "reserve",
        "claimer == consumer and occupancy >= 0",
        "claimer == consumer",
        found_by="test_isolation.py::test_who_has_waited_in_vain_goes_on",
    ),
    Mutant(
        "reserve: no_ack is not counted", "reserve", "leave(tags, 'acked')", "leave(tags, 'purged')"
    ),
    Mutant("hand_back: not counted", "hand_back", "'acked', -#back", "'acked', 0"),
    Mutant(
        "hand_back: to the end",
        "hand_back",
        "score = ARGV[i + 1]",
        "score = string.format('%d', ARGV[i + 1] + 1000)",
        found_by="test_reserve.py::test_what_was_not_handed_out_goes_back_to_its_place",
    ),
    Mutant("hand_back: TTL forgotten", "hand_back", "expires = ARGV[i + 2]", "expires = nil"),
    Mutant(
        "hand_back: failures forgotten",
        "hand_back",
        "failed = whole(ARGV[i + 3])",
        "failed = nil",
        found_by="test_reserve.py::test_what_was_not_handed_out_goes_back_to_its_place",
    ),
    Mutant(
        "publish: a retry is stored again",
        "publish",
        "(place > 0 and number <= ranges[place + 1])",
        "false",
    ),
    Mutant(
        "publish: the delay is not part of the TTL", "publish", "now + delay + ttl", "now + ttl"
    ),
    Mutant(
        "publish: a reply makes a queue",
        "publish",
        "not queue[1] and must_exist == '1'",
        "not queue[1] and false",
    ),
    Mutant("publish: a stale route is taken", "publish", "version ~= ''", "false"),
    Mutant(
        "publish: forgets one number too many",
        "publish",
        "math.max(ranges[i], settled)",
        "math.max(ranges[i], settled + 1)",
    ),
    Mutant(
        "publish: two ranges do not become one",
        "publish",
        "ranges[i + 3]\n",
        "ranges[i + 1]\n",
        found_by="test_publish.py::test_numbers_come_in_any_order",
    ),
    Mutant("restore: not counted", "restore_visible", "failed = before + 1", "failed = before"),
    Mutant(
        "restore: company brings it to its limit",
        "restore_visible",
        "if last and not alone then",
        "if false then",
        found_by="test_isolation.py::test_the_last_delivery_after_the_limit_was_lowered",
    ),
    Mutant(
        "restore: company starts it anew",
        "restore_visible",
        "math.max(before, delivery_limit - 1)",
        "0",
        found_by="test_isolation.py::test_the_last_delivery_after_the_limit_was_lowered",
    ),
    Mutant(
        "restore: the limit is one more",
        "restore_visible",
        "failed >= delivery_limit",
        "failed > delivery_limit",
    ),
    Mutant(
        "restore: in two places",
        "restore_visible",
        "end_leases(ended)",
        "",
    ),
    Mutant(
        "restore: what stood still is not seen",
        "restore_visible",
        "now > (whole(pass_due)",
        "now < (whole(pass_due)",
    ),
    Mutant(
        "restore: a pass is never overdue again",
        "restore_visible",
        "'spared_from', from, 'spared_until', till)",
        "'spared_from', 0, 'spared_until', 0)",
    ),
    Mutant("restore: no mutex", "restore_visible", "'NX', 'PX'", "'PX'"),
    Mutant(
        "release: the limit is one more",
        "release",
        "failed >= delivery_limit",
        "failed > delivery_limit",
    ),
    Mutant("release: no backoff", "release", "wait > 0 and now", "false and now"),
    Mutant("restore: backoff of one more", "restore_visible", "2 ^ (failed - 1)", "2 ^ failed"),
    Mutant("publish: one too many", "publish", "waiting + 1 > max_length", "waiting > max_length"),
    Mutant("publish: what has expired is counted", "publish", "waiting - #overdue", "waiting"),
    Mutant("survey: a late one is unheard", "survey", "due and tonumber(due) <= now", "false"),
    Mutant("survey: rings while paused", "survey", "not about[3] and ", ""),
    Mutant("survey: the pass of another", "survey", "and holder ~= consumer", "and holder == ''"),
    Mutant("survey: expired by a ms", "survey", "tonumber(ends) <= now", "tonumber(ends) < now"),
    Mutant("expire: not counted", "expire", "stats, counter, removed", "stats, counter, 0"),
    Mutant(
        "expire: too soon by a ms", "expire", "expiry, '-inf', now, ", "expiry, '-inf', now + 1, "
    ),
    Mutant("expire: none is kept", "expire", "if kept", "if false"),
    Mutant(
        "publish: the youngest gives way",
        "publish",
        "'+inf', 'LIMIT', 0, 1)[1]",
        "'+inf', 'LIMIT', 0, 9)[2] or last[1]",
    ),
    Mutant(
        "bytes are not given back",
        "ack",
        "sign * bytes",
        "0 * bytes",
    ),
    Mutant("replay keeps the count", "replay", "redis.pcall('HDEL', deliveries, unpack(tags))", ""),
    Mutant("replay of what is moving", "replay", "not (begun and clock", "not (false and clock"),
    Mutant("move: a number is given again", "move", "number or redis.call", "redis.call"),
    Mutant("resume wakes nobody", "pause", "redis.call('EXISTS', ready, delayed) > 0", "false"),
    Mutant("restore: rings while paused", "restore_visible", "waiting and not paused", "waiting"),
    Mutant("purge leaves the TTL", "purge", "redis.pcall('ZREM', expiry, unpack(tags))", ""),
    Mutant(
        "jobs: a requeue that is the last is not told",
        "release",
        "keep_events(tags_of(leases), 'dead', reason, err)",
        "",
        found_by="test_job_events.py::test_a_requeue_that_is_the_last",
    ),
    Mutant(
        "jobs: a lost lease that is the last is not told",
        "restore_visible",
        "keep_events(tags_of(leases), 'dead', reason, err)",
        "",
    ),
    Mutant(
        "jobs: a reject is not told",
        "dead_letter",
        "keep_events(tags_of(leases), 'dead', reason, err)",
        "",
    ),
    Mutant("jobs: a purge is not told", "purge", "keep_events(tags, 'gone', 'purged', '')", ""),
    Mutant("jobs: a replay is not told", "replay", "keep_events(replayed, 'waits', '', '')", ""),
    Mutant(
        "jobs: one that gives way is not told",
        "publish",
        "bury(failures_of(victims)",
        "record_dead(failures_of(victims)",
    ),
    Mutant(
        "jobs: all that expires is told",
        "expire",
        f"string.byte(tag, -1) == {limits.JOB_MARK}",
        "true",
    ),
    Mutant(
        "jobs: an expiry is told as another",
        "reserve",
        "keep_events(tags, 'gone', 'expired', '')",
        "keep_events(tags, 'dead', 'expired', '')",
    ),
    Mutant(
        "jobs: a survey does not name what is to be told",
        "survey",
        "redis.call('EXISTS', job_events) == 1",
        "false",
    ),
    Mutant(
        "jobs: a deleted queue keeps what was to be told",
        "delete_queue",
        "moves, job_events, history,",
        "moves, history,",
    ),
    Mutant(
        "a deleted queue keeps its dead",
        "delete_queue",
        "    dead, dead_info, notification, stats",
        "    notification, stats",
    ),
    # A change of a key is left out of each shared function that moves messages.
    Mutant(
        "left out of store: the expiry",
        "publish",
        "done = redis.pcall('ZADD', expiry, expires, tag)",
        "done = 1",
    ),
    Mutant(
        "left out of take: what is delayed",
        "expire",
        "redis.pcall('ZREM', delayed, unpack(tags))",
        "0",
    ),
    Mutant(
        "left out of promote: what is delayed",
        "promote",
        "redis.call('ZREM', delayed, unpack(tags))",
        "",
    ),
    Mutant(
        "left out of lease: the record",
        "reserve",
        "redis.call('HSET', unacked, unpack(records))",
        "",
    ),
    Mutant(
        "left out of end_leases: the record",
        "release",
        "redis.pcall('HDEL', unacked, unpack(tags))",
        "",
    ),
    Mutant(
        "left out of wait: the bytes",
        "restore_visible",
        "count_bytes(tags, 1)",
        "",
    ),
    Mutant(
        "left out of count_failures: the count",
        "restore_visible",
        "redis.call('HSET', deliveries, unpack(counts))",
        "",
    ),
    Mutant(
        "left out of record_dead: the reason",
        "dead_letter",
        "redis.call('HSET', dead_info, unpack(infos))",
        "",
    ),
    Mutant(
        "left out of bury: the cap",
        "release",
        "err)\n    trim_dead()",
        "err)",
        found_by="test_delivery_limit.py::test_a_requeue_keeps_to_the_cap",
    ),
    Mutant(
        "left out of unbury: the reason",
        "purge_dead",
        "redis.pcall('HDEL', dead_info, unpack(tags))",
        "",
    ),
    Mutant(
        "left out of leave: the envelope",
        "purge",
        "redis.call('HDEL', messages, unpack(tags))",
        "#tags",
    ),
    Mutant(
        "left out of wipe: the TTLs",
        "delete_queue",
        "deliveries, expiry,\n",
        "deliveries,\n",
    ),
    Mutant(
        "limits: reserve ignores the slots",
        "reserve",
        "- redis.call('ZCOUNT', unacked_index, '-inf', '(inf')",
        "- 0",
    ),
    Mutant(
        "limits: an expired lease is no slot",
        "reserve",
        "redis.call('ZCOUNT', unacked_index, '-inf', '(inf')",
        "redis.call('ZCOUNT', unacked_index, now, '(inf')",
    ),
    Mutant(
        "limits: what was asked for is charged",
        "reserve",
        "keep_rate(rate, token, #tags)",
        "keep_rate(rate, token, n)",
    ),
    Mutant("limits: no start is charged", "reserve", "keep_rate(rate, token, #tags)", ""),
    Mutant(
        "limits: a closed queue has messages left", "reserve", "left == 1 and open < 1", "false"
    ),
    Mutant(
        "limits: the next start is not reported",
        "reserve",
        "next_due = next_due < 0 and wait or math.min(next_due, wait)",
        "",
    ),
    Mutant(
        "limits: the next start comes before a due message",
        "reserve",
        "next_due < 0 and wait or math.min(next_due, wait)",
        "wait",
    ),
    Mutant(
        "limits: no_ack needs no slot", "reserve", "if limited and no_ack then", "if false then"
    ),
    Mutant(
        "limits: a start of a second burst",
        "reserve",
        "math.min(open, (starts_left(rate)))",
        "math.min(open, starts_left(rate) + 1)",
    ),
    Mutant(
        "limits: a clock that was set back closes the queue",
        "reserve",
        "if ahead > 0 then",
        "if false then",
        found_by="test_limits.py::test_a_clock_that_was_set_back",
    ),
    Mutant(
        "limits: an earlier rate is still counted",
        "configure",
        "math.min(spent, new.burst) * new.every",
        "spent * old.every",
        found_by="test_limits.py::test_another_rate_applies_at_once",
    ),
    Mutant(
        "limits: a removed rate is still counted",
        "configure",
        "redis.call('HDEL', meta, 'rate_state')",
        "redis.call('HLEN', meta)",
        found_by="test_limits.py::test_a_removed_rate_is_forgotten",
    ),
    Mutant(
        "limits: a token is not given back",
        "release",
        "math.max(start[4] - 1, 0)",
        "start[4]",
        found_by="test_limits.py::test_a_message_handed_back_unstarted_gives_its_token_back",
    ),
    Mutant(
        "limits: a started message gives its token back",
        "release",
        "how == 'undelivered' and own_rate and",
        "own_rate and",
    ),
    Mutant(
        "limits: any lease gives a token back",
        "release",
        "start[2] <= token and token < start[2] + start[3]",
        "true",
    ),
    Mutant(
        "limits: a begun message is restored",
        "restore_visible",
        "(all or lease.score == 'begun')",
        "all",
    ),
    Mutant(
        "limits: a begun message is released",
        "release",
        "(all or lease.score == 'begun')",
        "all",
    ),
    Mutant("limits: a begin leaves no mark", "renew", "begun == '|begun' and", "false and"),
    Mutant("limits: any token begins a task", "renew", "== token then", "~= nil then"),
    Mutant(
        "limits: an ack wakes nobody",
        "ack",
        "if limited and redis.pcall('EXISTS', ready) == 1 then",
        "if false then",
    ),
    *(
        Mutant(
            f"limits: {script} wakes nobody",
            script,
            "redis.pcall('HEXISTS', meta, 'concurrency') == 1 and",
            "false and",
        )
        for script in ("dead_letter", "release")
    ),
    Mutant(
        "limits: another limit wakes nobody",
        "configure",
        "(field == 'rate' or field == 'concurrency') and",
        "false and",
    ),
    Mutant(
        "batches: a retry is an earlier try",
        "change_jobs",
        "elseif new.retries < job.retries then\n    return 0\n  elseif",
        "elseif false then\n    return 0\n  elseif",
    ),
    Mutant(
        "batches: a cancelled one takes jobs",
        "change_jobs",
        "if is.cancelled and not (job and is_open[job.state]) then",
        "if false then",
    ),
    Mutant(
        "batches: a sealed one takes jobs of any",
        "change_jobs",
        "if is.sealed and not (by ~= '' and works(by)) then",
        "if false then",
    ),
    Mutant(
        "batches: a job that has ended adds others",
        "change_jobs",
        "return job and job.state == 'k'",
        "return job",
    ),
    Mutant(
        "batches: what is worked on is withdrawn",
        "change_jobs",
        "or job.token > 0 or job.state == 'k'\n",
        "or false\n",
    ),
    Mutant(
        "batches: a withdrawn retry is no job",
        "change_jobs",
        "if job.state == 'r' then\n    -- The try",
        "if false then\n    -- The try",
    ),
    Mutant(
        "batches: a retry forgets the try before",
        "change_jobs",
        "new.state, new.worker = 'r', job.tag",
        "new.state = 'r'",
    ),
    Mutant(
        "batches: a withdrawn retry has no message",
        "change_jobs",
        "tag = job.worker, queue = job.queue",
        "tag = '', queue = job.queue",
    ),
    Mutant(
        "batches: an earlier delivery begins",
        "change_jobs",
        "elseif older(job, new) then",
        "elseif false then",
    ),
    Mutant(
        "batches: an earlier delivery begins alone",
        "change_jobs",
        "begins and (retries < tried or retries == tried and (was == 'k' or token <= known))",
        "false",
    ),
    Mutant(
        "batches: the last one's success is one of many",
        "change_jobs",
        "not begins and is[9] and is[1] + is[2] + is[3] + is[4] < 2",
        "false",
        found_by="test_batch_changes.py::test_a_group_is_what_its_changes_are[redis-begin]",
    ),
    Mutant(
        "batches: a begin that is said again",
        "change_jobs",
        "elseif same(job, new) and (",
        "elseif false and (",
    ),
    Mutant(
        "batches: a cancelled one begins",
        "change_jobs",
        "  if is.cancelled then\n    new.state = 'c'",
        "  if false then\n    new.state = 'c'",
    ),
    Mutant(
        "batches: another delivery's return",
        "change_jobs",
        "job.state ~= 'k' or not same(job, new) then",
        "job.state ~= 'k' then",
    ),
    Mutant(
        "batches: revoked is cancelled",
        "change_jobs",
        "if new.state == 'c' and not is.cancelled then",
        "if false then",
    ),
    Mutant(
        "batches: the broker ends what was replayed",
        "change_jobs",
        "job.tag ~= '' and job.tag ~= new.tag or before(job, new) then",
        "job.tag ~= '' and job.tag ~= new.tag then",
        found_by="test_job_events.py::test_told_in_another_order",
    ),
    Mutant(
        "batches: the broker ends by another message",
        "change_jobs",
        "or job.tag ~= '' and job.tag ~= new.tag or before",
        "or before",
    ),
    Mutant(
        "batches: a second end counts",
        "change_jobs",
        "elseif not is_open[job.state] and job.state ~= 'x' then\n    return 0\n",
        "elseif false then\n    return 0\n",
    ),
    Mutant(
        "batches: an earlier delivery fails a job",
        "change_jobs",
        "(new.state == 'e' or new.state == 'c') and older(job, new)",
        "false and older(job, new)",
    ),
    Mutant(
        "batches: what has changed since is lost",
        "change_jobs",
        "    or string.format('%.0f', job.since) ~= new.text then",
        "    then",
    ),
    Mutant(
        "batches: what was stored is taken out",
        "change_jobs",
        " and job.since == is[heard(job.tag)] then",
        " then",
        found_by="test_batches.py::test_what_was_never_stored_is_taken_out",
    ),
    Mutant(
        "batches: a late replay",
        "change_jobs",
        "job.state == 's' or job.state == 'c' or before(job, new) then",
        "job.state == 's' or job.state == 'c' then",
    ),
    Mutant(
        "batches: a replay of what has succeeded",
        "change_jobs",
        "if not job or job.state == 's' or job.state == 'c' or before",
        "if not job or before",
    ),
    Mutant(
        "batches: a replay of a retry waits",
        "change_jobs",
        "job.state == 'r' and 'r' or 'w', job.retries",
        "'w', job.retries",
    ),
    Mutant(
        "batches: tokens of two queues are compared",
        "change_jobs",
        "or job.queue == '' or new.queue == job.queue",
        "or true",
    ),
    Mutant(
        "batches: a callback before the seal",
        "change_jobs",
        "  if not is.sealed then\n    return\n  end\n",
        "\n",
    ),
    Mutant(
        "batches: success of what was cancelled",
        "change_jobs",
        "if bad + is.dropped == 0 and not is.cancelled then",
        "if bad == 0 then",
    ),
    Mutant(
        "batches: a callback is due again",
        "change_jobs",
        "is[name] or not is['said_' .. callback] and now",
        "is[name] or now",
    ),
    Mutant("batches: one that goes on has ended", "change_jobs", "    is.ended = false\n", "\n"),
    Mutant(
        "batches: one that has ended is cancelled",
        "change_jobs",
        "if is.cancelled or is.ended then",
        "if is.cancelled then",
    ),
    Mutant(
        "batches: a cancelled one is open",
        "change_jobs",
        "  is.cancelled = now\n  does.seal()",
        "  is.cancelled = now",
    ),
    Mutant(
        "batches: what is mended stays a failure",
        "change_jobs",
        "if before and bad[before.state] and not (job and bad[job.state]) then",
        "if false then",
    ),
    Mutant(
        "batches: two changes at one time",
        "change_jobs",
        "before and math.max(now, before.since + 1) or now",
        "now",
    ),
    Mutant(
        "batches: where it was is forgotten too late",
        "change_jobs",
        "local done = job.state == 's'",
        "local done = false",
    ),
    Mutant(
        "batches: a withdrawn job is counted",
        "change_jobs",
        "else\n    current[id] = nil\n    count(job.state, -1)",
        "else\n    current[id] = nil",
    ),
    Mutant(
        "notes: of what has ended",
        "note_job",
        "if not is_open[state or ''] or retries",
        "if not state or retries",
    ),
    Mutant(
        "notes: of an earlier delivery",
        "note_job",
        "  and token < tonumber(known_token) then",
        "  and false then",
    ),
    Mutant(
        "notes: of an earlier try",
        "note_job",
        "retries < tonumber(known_retries) then",
        "false then",
    ),
    Mutant(
        "notes: a report too many",
        "note_job",
        f"reported < {limits.REPORTS_OF_A_JOB} then",
        f"reported <= {limits.REPORTS_OF_A_JOB} then",
    ),
    Mutant("notes: a report is how far it is", "note_job", "rest or '0||0|'", "'0||0|'"),
    Mutant(
        "said: what is not due is said",
        "note_callback",
        "if not since then\n  return 0\nend",
        "since = since or '1'",
    ),
    Mutant(
        "said: it is due again",
        "note_callback",
        "redis.call('HDEL', batch, 'due_' .. callback)",
        "",
    ),
    Mutant(
        "open_batch: again", "open_batch", "redis.call('HEXISTS', batch, 'created') == 1", "false"
    ),
    Mutant(
        "next_batches: to several",
        "next_batches",
        "redis.call('ZADD', batches, 'XX', now + again, id)",
        "",
    ),
    Mutant(
        "next_batches: before it is due",
        "next_batches",
        "'-inf', now, 'LIMIT'",
        "'-inf', '+inf', 'LIMIT'",
    ),
)


@contextlib.contextmanager
def broken(mutant: Mutant) -> Iterator[None]:
    """Plant this bug in the package."""
    attribute = mutant.script.upper()
    whole: scripts.Script = getattr(scripts, attribute)
    times = whole.text.count(mutant.text)
    assert times == 1, f"{mutant.text!r} stands {times} times in {mutant.script}.lua"
    text = whole.text.replace(mutant.text, mutant.instead)
    setattr(scripts, attribute, with_text(whole, text))
    try:
        yield
    finally:
        setattr(scripts, attribute, whole)
