"""After any sequence of steps, each message is in one place and the ledger balances."""

import random
import threading
from collections import Counter

import pytest

from reliq.values.values import Lease
from tests.contract.steps import LONG_MS, audit, lease_of, message


class Model:
    """The expected contents of a queue in plain Python: tag -> place, and the holders."""

    def __init__(self, stores, seed):
        self.stores = stores
        self.random = random.Random(seed)
        self.place = {}
        self.held = [{} for _ in stores]
        self.token = {}
        self.published = self.acked = self.purged = 0

    def places(self):
        """Return the expected number of messages per place."""
        return dict(Counter(self.place.values()))

    def some(self, deliveries):
        """Return some of the deliveries in any order, occasionally none."""
        known = list(deliveries)
        return self.random.sample(known, self.random.randint(0, min(4, len(known))))

    def step(self):
        """Make one random step as a random consumer."""
        verbs = (self.publish, self.reserve, self.reserve, self.finish, self.end)
        who = self.random.randrange(len(self.stores))
        verb = self.random.choices((*verbs, self.purge, self.again), (6, 6, 3, 6, 4, 0.3, 2))[0]
        verb(who)

    def publish(self, who):
        """Publish some messages, ready or delayed."""
        choice = self.random.choice
        sent = [
            message(rank=choice((0, 5, 9)), delay_ms=choice((0, 0, LONG_MS)))
            for _ in range(self.random.randint(1, 4))
        ]
        self.stores[who].publish(*sent)
        self.published += len(sent)
        for item in sent:
            self.place[item.tag] = "delayed" if item.delay_ms else "ready"

    def reserve(self, who):
        """Reserve some messages, each of which must have been ready."""
        no_ack = self.random.random() < 0.1
        taken = self.stores[who].reserve(self.random.randint(0, 5), no_ack=no_ack).deliveries
        for delivery in taken:
            assert "ready" == self.place[delivery.tag]
            if no_ack:
                del self.place[delivery.tag]
                self.acked += 1
            else:
                self.place[delivery.tag] = "unacked"
                self.held[who][delivery.tag] = delivery
                self.token[delivery.tag] = delivery.token

    def finish(self, who):
        """Ack, return or dead-letter some messages that this consumer holds or held before."""
        store, mine = self.stores[who], self.held[who]
        chosen = self.some(mine.values())
        verb = self.random.choice(("ack", "undelivered", "released", "nacked", "dead"))
        if not chosen:
            return
        if verb == "ack":
            there = [item for item in chosen if item.tag in self.place]
            assert len(there) == store.ack(*(item.tag for item in chosen))
            self.acked += len(there)
            for item in chosen:
                self.place.pop(item.tag, None)
                mine.pop(item.tag)
            return
        valid, lost = self.judge(chosen)
        if verb == "dead":
            assert lost == store.dead_letter(*chosen)
        else:
            assert lost == store.release(verb, *chosen)
        for tag in valid:
            self.place[tag] = "dead" if verb == "dead" else "ready"
        for item in chosen:
            mine.pop(item.tag)

    def end(self, who):
        """End leases of any consumers, as after their deaths; the consumers keep their records."""
        chosen = [item for mine in self.held for item in self.some(mine.values())]
        if not chosen:
            return
        valid, lost = self.judge(chosen)
        assert lost == self.stores[who].end(*chosen)
        assert len(valid) == sum(self.stores[who].restore(force=True).by_consumer.values())
        for tag in valid:
            self.place[tag] = "ready"

    def judge(self, chosen):
        """Return the tags of the valid leases and of the lost ones."""
        held = [
            self.place.get(item.tag) == "unacked" and self.token[item.tag] == item.token
            for item in chosen
        ]
        valid = [item.tag for item, holds in zip(chosen, held, strict=True) if holds]
        lost = [item.tag for item, holds in zip(chosen, held, strict=True) if not holds]
        return valid, lost

    def purge(self, who):
        """Remove the waiting messages."""
        waiting = [tag for tag, place in self.place.items() if place in {"ready", "delayed"}]
        assert len(waiting) == self.stores[who].purge()
        self.purged += len(waiting)
        for tag in waiting:
            del self.place[tag]

    def again(self, who):
        """Ack messages by tag, wherever they are."""
        tags = self.some(self.place)
        if tags:
            assert len(tags) == self.stores[who].ack(*tags)
            self.acked += len(tags)
            for tag in tags:
                del self.place[tag]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_any_sequence_of_steps(connect, seed):
    """After each step, the counts equal those of a plain model and the ledger balances."""
    stores = [connect(f"s/{n}", delivery_limit=None) for n in range(3)]
    model = Model(stores, seed)
    stores[0].declare()
    for _ in range(100):
        model.step()
        assert model.places() == stores[0].places()
    assert model.published == stores[0].ledger("published")
    assert model.acked == stores[0].ledger("acked")
    assert model.purged == stores[0].ledger("purged")
    # All messages that are left can be acked: none is stuck in an unreachable place.
    assert len(model.place) == stores[0].ack(*model.place, "gone")
    assert {} == stores[0].places()


def test_balanced_at_any_instant(connect, engine):
    """At any moment of concurrent work, a status shows a ledger that balances."""
    failures = []

    def note(result):
        if isinstance(result, Exception):
            failures.append(result)

    def work(number):
        store = engine.connect(f"s/{number + 1}", delivery_limit=3, dead_letter_max=5)
        chance = random.Random(number)
        try:
            for _ in range(20):
                store.publish([message(ttl_ms=chance.choice((-1, 0, 5))) for _ in range(3)])
                leases = list(map(lease_of, store.reserve("q", 4, LONG_MS, False).deliveries))
                store.post_ack("q", ["gone", *(lease.tag for lease in leases[:2])], note)
                store.release("q", "nacked", leases[2:3])
                store.post_end_leases("q", leases[3:] or [Lease("gone", "1")], note)
                store.post_restore("q", LONG_MS, note, True)
                store.wait_for_replies()
        except Exception as exc:  # noqa: BLE001 - shown below: a thread cannot fail a test
            failures.append(exc)
        finally:
            store.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    looker = connect("s/9").store
    looks = 0
    while any(thread.is_alive() for thread in threads):
        balance(looker.reads.status("q"))
        looks += 1
    assert [] == failures
    assert looks > 10
    audit(looker, ["q"])


def balance(status):
    """Fail unless this status balances."""
    if status is not None:
        here = status.ready + status.delayed + status.unacked + status.dead
        left = sum(status.ledger.get(name, 0) for name in ("acked", "expired", "dropped"))
        assert status.ledger["published"] == here + left
        assert status.stored == here
