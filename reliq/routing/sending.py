"""Sending: messages are routed, numbered and stored, each once in every queue it goes to.

Every publish that waits comes by here: one message of a channel, a batch of them, what a spool
held, a callback of a batch, dead letters on their way. What is posted is judged by the same rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import BrokerUnavailable, ReliqError
from ..errors import again as fresh
from ..message.queue_names import number_of, queue_of
from ..store.values import CREATED, STALE
from . import partitions
from .confirming import BY_STORING, together
from .routes import ROUTE_TRIES
from .spread import SPREAD, turned_away

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ..store.protocol import Store
    from ..store.values import Publication
    from .outgoing import Outgoing
    from .publish_ids import PublishTag
    from .routes import Routes

    Redeclare = Callable[[str, Store], bool]
    Copy = tuple[Outgoing, Publication]

_SENT_AT_ONCE = 100


def _is_not_ours(_queue: str, _store: Store) -> bool:
    return False


def send(
    store: Store,
    routes: Routes,
    messages: Sequence[Outgoing],
    redeclare: Redeclare = _is_not_ours,
) -> None:
    """Store every message, and wait for its confirmation; each notes what became of it.

    *redeclare* declares again over a store a queue that the broker has lost; False: it is not
    to. Raises ReliqError; sending again, over any connection to the same broker, stores each
    once. Atomic for each queue, not across queues.
    """
    waiting = [item.confirm for item in messages if item.confirm.level not in BY_STORING]
    wishes = together(waiting) if waiting else ()
    for wish in wishes:
        wish.require(store)
    for item in messages:
        item.stored, item.refused = {}, {}
    left = messages
    for _ in range(ROUTE_TRIES):
        left = _send_once(store, routes, left, redeclare)
        if not left:
            break
    for wish in wishes:
        wish.wait(store, [sent for item in messages for sent in item.stored.values()])


def _send_once(
    store: Store, routes: Routes, messages: Sequence[Outgoing], redeclare: Redeclare
) -> Sequence[Outgoing]:
    """Send by the routes as they are known; return the messages that are to be sent again."""
    tried = _tried(messages) if store.has_nodes else ()
    copies: list[Copy] = []
    nowhere: list[Outgoing] = []
    try:
        outcomes = _publish(store, _copies(store, routes, messages, nowhere), copies)
    except BrokerUnavailable as exc:
        divided = SPREAD.divided(store, {queue_of(sent.queue) for _, sent in copies})
        for tag, before in tried:
            SPREAD.refused(tag, exc.untouched - before, divided)
        raise
    astray: list[tuple[Copy, int]] = []
    for copy, outcome in zip(copies, outcomes, strict=True):
        item, sent = copy
        if outcome == CREATED:
            _see_to_created(store, sent.queue, redeclare)
        if not item.note(sent, outcome):
            astray.append((copy, outcome))
    if not (astray or nowhere):
        return ()
    again = _goes_again(store, astray, redeclare)
    for exchange in {item.exchange: None for item in again if item.exchange}:
        routes.refresh(exchange)
    return list(dict.fromkeys([*again, *_newly_bound(store, routes, nowhere)]))


def _tried(messages: Iterable[Outgoing]) -> list[tuple[PublishTag, frozenset[str]]]:
    """Return where each message was tried before."""
    tags = [item.tag for item in messages if item.tag is not None]
    return [(tag, frozenset(tag.numbers)) for tag in tags]


def _copies(
    store: Store, routes: Routes, messages: Iterable[Outgoing], nowhere: list[Outgoing]
) -> Iterator[Copy]:
    """Yield the copies of *messages* that are still to be stored; note which have no queue."""
    count = 0
    for item in messages:
        queues, version = item.route(routes)
        if not queues:
            nowhere.append(item)
        for queue in queues:
            if queue not in item.stored:
                stays = count % _SENT_AT_ONCE != 0  # one step stores those that go together
                count += 1
                yield item, item.publication(queue, store, version, stays=stays)


def _publish(store: Store, made: Iterator[Copy], copies: list[Copy]) -> list[int]:
    """Publish what is *made*, and note it in *copies*; return the outcomes.

    Some are stored while the next are made. Not over several nodes: there all are sent at the
    end, to all nodes at once, and an error says which of them had nothing.
    """
    posted: list[list[int] | ReliqError] = []
    left: list[Publication] = []
    for copy in made:
        copies.append(copy)
        left.append(copy[1])
        if len(left) >= _SENT_AT_ONCE and not store.has_nodes:
            store.post_publish(left, posted.append)
            left = []
    outcomes = store.publish(left) if left else []
    if len(copies) == len(left):
        return outcomes
    store.wait_for_replies()
    before: list[int] = []
    for result in posted:
        if isinstance(result, ReliqError):
            raise fresh(result)
        before += result
    return before + outcomes


def _goes_again(
    store: Store, astray: Iterable[tuple[Copy, int]], redeclare: Redeclare
) -> list[Outgoing]:
    """Return the messages of the copies that are sent again; the others have no queue."""
    again = []
    asked: dict[str, bool] = {}
    for (item, sent), outcome in astray:
        queue = queue_of(sent.queue)
        if turned_away(sent.queue, outcome):
            SPREAD.turn_away(store, item.tag, sent.queue)
        elif outcome != STALE:
            if queue not in asked:
                asked[queue] = redeclare(queue, store)
            if not asked[queue]:
                item.has_no_queue(queue)
                continue
        again.append(item)
    return again


def _see_to_created(store: Store, queue: str, redeclare: Redeclare) -> None:
    """Declare a queue that a publish has created as it was before, or make it visible."""
    if number_of(queue):
        partitions.adopt(store, queue)
    elif not redeclare(queue, store):
        store.list_queue(queue)


def _newly_bound(store: Store, routes: Routes, nowhere: Sequence[Outgoing]) -> list[Outgoing]:
    """Return those whose exchange has other bindings by now than those they failed by."""
    changed = set()
    for exchange in {item.exchange for item in nowhere}:
        known = routes.cached(exchange).version
        if known == store.bindings_version(exchange) is not None:
            continue
        if routes.refresh(exchange).version is not None:
            changed.add(exchange)
    return [item for item in nowhere if item.exchange in changed]
