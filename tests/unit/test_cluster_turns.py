"""The turns of slots to be waited for, if a cluster's queues are in more slots than connections.

Every slot has its turn within a bounded time, for any number of nodes.
"""

from __future__ import annotations

import pytest

from reliq.engines.redis.cluster.slots import Place
from reliq.engines.redis.cluster.turns import MOST, Turns


class Shape:
    """A cluster with the given number of slots at each node."""

    def __init__(self, spread):
        self._places = [
            Place(f"node{number}", 6379)
            for number, count in enumerate(spread)
            for _ in range(count)
        ]
        self.place_of = self._places.__getitem__
        self.all = range(len(self._places))


def even(nodes, each):
    """Return a shape with the same number of slots at each node."""
    return pytest.param([each] * nodes, id=f"{nodes} nodes of {each}")


SHAPES = [
    *(
        even(nodes, each)
        for nodes in (1, 2, 3, 7, 8, 9, 10, 12, 16, 17, 33)
        for each in (1, 2, 3, 5, 8)
    ),
    pytest.param([1, 40], id="few at one"),
    pytest.param([40, 1, 1, 1, 1, 1, 1, 1, 1, 1], id="most at the first"),
    pytest.param([7, 3, 5, 2, 2, 9, 1, 4, 6, 8, 2], id="uneven"),
]


@pytest.mark.parametrize("spread", SHAPES)
def test_every_slot_has_its_turn(spread):
    """Every slot has its turn within a bound, from any turn on.

    The bound is the number of turns that one slot per turn for each of eight nodes would take.
    """
    shape = Shape(spread)
    turns_of = Turns(shape, 1.0)
    rounds = -(-len(spread) // MOST)
    bound = max(spread) * rounds + 1
    turns = []
    for _ in range(1, 4 * bound):
        now = turns_of.next(shape.all)
        assert len(now) <= MOST
        turns.append(set(now))
    for first in range(len(turns) - bound):
        assert set(shape.all) == set().union(*turns[first : first + bound])


@pytest.mark.parametrize("nodes", range(1, MOST + 1))
def test_turns_need_as_many_connections_to_each_node(nodes):
    """If every node has many slots, all turns use the same connections, so none opens any."""
    shape = Shape([16] * nodes)
    turns_of = Turns(shape, 1.0)
    found = set()
    for _ in range(1, 50):
        places = [shape.place_of(slot) for slot in turns_of.next(shape.all)]
        found.add(tuple(sorted(places)))
    assert 1 == len(found)
