"""Surveying over Redis: what there is to do in many queues, seen without writing anything."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ...store.chunks import chunks
from ...store.values import Layout, Work
from . import scripts
from .base import StoreBase, then

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...store.protocol import OnResult
    from .stream import Reply


# So many queues are looked at by one command: well under a ms, if there is nothing to do.
_SURVEYED = 100


def _work(names: Sequence[str], reply: Reply) -> dict[str, Work]:
    return {
        names[place]: Work(
            wait_ms,
            expired == 1,
            idle > 0,
            Layout(partitions or 1, end) if end else None,
            owed == 1,
            idle == 2,  # noqa: PLR2004 - see the script
        )
        for place, wait_ms, expired, idle, partitions, end, owed in reply
    }


class RedisSurveying(StoreBase):
    """Looking at many queues."""

    def post_survey(self, queues: Sequence[str], on_result: OnResult[dict[str, Work]]) -> None:
        """Ask what there is to do in *queues*: one command for each hundred of them.

        Of several nodes also those are named that others consume from, too: what they do there
        nobody else sees.
        """
        limits = (self.options.dead_letter_max, self._dead_letter_ttl_ms, int(self.has_nodes))
        for names in chunks(queues, _SURVEYED):
            places = [key for queue in names for key in scripts.SURVEY.of(self._keys(queue))]
            on_reply = then(partial(_work, names), on_result)
            self._wire.post_script(scripts.SURVEY, places, (self.consumer, *limits), on_reply)
