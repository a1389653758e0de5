"""The claims of ``reliq.once`` over SQLite."""

from __future__ import annotations

from ...store.limits import BATCH
from ...store.values import CLAIMED, FINISHED
from .base import StoreBase
from .disk_reserve import essential


class SqliteClaims(StoreBase):
    """Who may do something, while it is being done and for a time afterwards."""

    @essential
    def claim(self, name: str, token: str, keep_ms: int, *, finished: bool = False) -> int:
        """Take the claim on *name*, or extend, finish or (0 ms) give up one's own. Atomic."""
        key = (self._prefix, name)
        with self.write() as transaction:
            # Those of long ago; nobody else clears them away.
            transaction.execute(
                "DELETE FROM claims WHERE (prefix, name) IN "
                "(SELECT prefix, name FROM claims WHERE until <= ? LIMIT ?)",
                (transaction.now, BATCH),
            )
            row = transaction.execute(
                "SELECT token, finished, until FROM claims WHERE prefix = ? AND name = ? "
                "AND until > ?",
                (*key, transaction.now),
            ).fetchone()
            if row is not None:
                holder, done, until = row
                if done:  # one's own: the reply to an earlier try was lost
                    return CLAIMED if holder == token else FINISHED
                if holder != token:
                    return max(int(until) - transaction.now, 1)
            if not keep_ms:
                transaction.execute("DELETE FROM claims WHERE prefix = ? AND name = ?", key)
                return CLAIMED
            transaction.execute(
                "INSERT INTO claims VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT (prefix, name) DO UPDATE SET "
                "token = excluded.token, finished = excluded.finished, until = excluded.until",
                (*key, token, int(finished), transaction.now + keep_ms),
            )
            return CLAIMED
