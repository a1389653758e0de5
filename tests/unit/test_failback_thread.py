"""The failback thread goes on while transports come and go."""

from __future__ import annotations

import time

from reliq.transports.failback_rounds import FailbackRounds
from tests.support.waiting import wait_until


class Watched:
    """What the thread reads of a transport at its primary broker."""

    url, urls, homes, spool, consumed = "a", ("a",), (), "", ("q",)
    visits = 0

    @property
    def probe_interval(self):
        """Return the interval, and let another thread run."""
        self.visits += 1
        time.sleep(0)
        return 0.0


def test_transports_come_and_go():
    """Others are watched and left while the thread reads the intervals of all."""
    rounds, stays = FailbackRounds(), [Watched() for _ in range(5)]
    for one in stays:
        rounds.watch(one)

    def turned():
        other = Watched()
        rounds.watch(other)
        rounds.leave(other)
        return stays[0].visits > 500

    wait_until(turned, timeout_s=30, interval_s=0, what="the next round")
    for one in stays:
        rounds.leave(one)
    wait_until(lambda: not rounds._loop.threaded, timeout_s=10, what="the end of the thread")
