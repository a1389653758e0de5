"""Surveying: what there is to do in many queues, seen without writing anything."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from ...store.batches import batches
from ...store.values import Work
from .base import StoreBase
from .restoring import JUMP_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...store.protocol import OnResult

# As in survey.lua: what is unacked, dead letters that are too old or too many or to be routed,
# and messages that nobody was told of; what has expired; and the queue's own x-expires.
_SURVEY = """
SELECT name, unacked OR (routed AND (dead OR overdue)) OR (dead AND old)
    OR (unheard AND (ready OR due)), overdue, idle, owner, until, ahead, owed
FROM (
    SELECT q.name AS name, q.dead_letter_exchange IS NOT NULL AS routed,
        NOT q.paused AND NOT q.notification AS unheard,
        EXISTS (SELECT 1 FROM messages WHERE queue = q.id AND state = 0) AS ready,
        EXISTS (SELECT 1 FROM messages WHERE queue = q.id AND state = 1
            AND position <= :now) AS due,
        EXISTS (SELECT 1 FROM messages WHERE queue = q.id AND state = 2) AS unacked,
        EXISTS (SELECT 1 FROM messages WHERE queue = q.id AND state = 3) AS dead,
        EXISTS (SELECT 1 FROM messages WHERE queue = q.id AND state = 3
                AND position <= :old)
            OR EXISTS (SELECT 1 FROM messages WHERE queue = q.id AND state = 3
                LIMIT 1 OFFSET :most) AS old,
        EXISTS (SELECT 1 FROM messages INDEXED BY expiries WHERE queue = q.id
            AND expires <= :now AND expires IS NOT NULL AND state < 2) AS overdue,
        q.expires IS NOT NULL AND :now - ifnull(q.used_at, :now) >= q.expires AS idle,
        EXISTS (SELECT 1 FROM job_events WHERE queue = q.id) AS owed,
        p.owner AS owner, p.until AS until, p.ahead AS ahead
    FROM queues q LEFT JOIN passes p ON p.prefix = q.prefix AND p.queue = q.name
    WHERE q.prefix = :prefix AND q.name IN ({})
)
"""


class SqliteSurveying(StoreBase):
    """Looking at many queues."""

    def post_survey(self, queues: Sequence[str], on_result: OnResult[dict[str, Work]]) -> None:
        """Look now, some hundred queues at a time; what there is to do comes when asked for."""
        for names in batches(queues):
            self.post(partial(self._survey, names), on_result)

    def _survey(self, names: Sequence[str]) -> dict[str, Work]:
        places = {f"name{place}": name for place, name in enumerate(names)}
        with self.read() as transaction:
            values = {
                **places,
                "prefix": transaction.prefix,
                "now": transaction.now,
                "old": transaction.now - self._dead_letter_ttl_ms,
                "most": self.options.dead_letter_max,
            }
            among = ", ".join(f":{place}" for place in places)
            rows = transaction.execute(_SURVEY.format(among), values).fetchall()
        # The pass of another does not count by a clock that was set since.
        ahead = transaction.now - time.monotonic_ns() // 1_000_000
        gone = {*names} - {row[0] for row in rows}
        found = dict.fromkeys(gone, Work(-1, False, True, gone=True))
        for name, needed, expired, idle, owner, until, known, owed in rows:
            wait_ms = 0 if needed else -1
            if needed and owner not in (None, self.consumer) and abs(ahead - known) <= JUMP_MS:
                wait_ms = max(until - transaction.now, 0)
            if needed or expired or idle or owed:
                found[name] = Work(wait_ms, expired == 1, idle == 1, job_events=owed == 1)
        return found
