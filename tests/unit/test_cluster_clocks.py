"""The doctor's comparison of the clocks of a cluster's nodes."""

import pytest

from reliq.client.cluster.slots import Place
from reliq.doctor.cluster_findings import judge_clocks

A, B, C = (Place(name, 7000) for name in "abc")


@pytest.mark.parametrize(
    ("ahead_s", "severity", "words"),
    [
        ((0.0, 0.1, -0.2), "ok", "3 nodes within 0.20 s"),
        ((0.0, 2.5, 0.1), "warning", "the clock of b:7000 is 2.5 s ahead of that of a:7000"),
        ((-0.8, 0.8, 0.0), "warning", "the clock of b:7000 is 1.6 s ahead of that of a:7000"),
        ((90.0, 90.1, 90.2), "warning", "the clock of c:7000 is 90.2 s ahead of this machine's"),
        ((-9.2, -9.0, -9.0), "warning", "the clock of a:7000 is 9.2 s behind this machine's"),
    ],
)
def test_how_far_clocks_are_apart(ahead_s, severity, words):
    """The nodes' clocks are compared with each other first, then with this machine's.

    A delay runs by the clock of the node that has the queue.
    """
    clocks = {place: (ahead, 0.01) for place, ahead in zip((A, B, C), ahead_s, strict=True)}
    (found,) = judge_clocks(clocks)
    assert (severity, True) == (found.severity, words in found.message), found
    assert found.remedy or severity == "ok"


def test_a_slow_answer_proves_nothing():
    """A difference that is smaller than the duration of the query is not reported."""
    (found,) = judge_clocks({A: (0.0, 4.0), B: (2.5, 4.0)})
    assert "ok" == found.severity


def test_nobody_may_ask():
    """Without any readable clock, nothing is reported."""
    assert [] == list(judge_clocks({}))
