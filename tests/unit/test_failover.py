from itertools import islice

import pytest

from reliq.errors import BrokerUnavailable
from reliq.failover import brokers as failover
from reliq.failover.brokers import Brokers, admit, healthiest, primary, without_password

A, B, C = (f"reliq://{name}:6379/0" for name in "abc")


@pytest.fixture
def answers(monkeypatch):
    """Return the answering brokers with their delays in seconds; the others are unreachable."""
    answers = {}
    brokers = Brokers()

    def probe(url, options, whole):
        del options, whole
        if url not in answers:
            raise BrokerUnavailable(f"{url} is away")
        return answers[url]

    brokers.probe = probe
    monkeypatch.setattr(failover, "BROKERS", brokers)
    return answers


def after_the_first(strategy, count=1):
    """Return the next *count* URLs of a strategy after the first broker has failed."""
    cycle = strategy([A, B, C])
    assert A == next(cycle)  # Kombu skips the first, as it is connected to it
    return list(islice(cycle, count))


def test_primary_takes_the_first_that_answers(answers):
    """`primary` chooses the first broker in the order of the list that answers."""
    answers.update({B: 0.9, C: 0.1})
    assert [B, B] == after_the_first(primary, 2)


def test_primary_goes_back_to_the_first(answers):
    """`primary` returns to the first broker when it answers again."""
    cycle = primary([A, B, C])
    next(cycle)
    answers[B] = 0.1
    assert B == next(cycle)
    answers[A] = 0.1
    failover.BROKERS.answered(A)  # its pause is over
    assert A == next(cycle)


def test_healthiest_takes_the_fastest(answers):
    """`healthiest` chooses the broker that answers fastest."""
    answers.update({B: 0.9, C: 0.1})
    assert [C] == after_the_first(healthiest)


@pytest.mark.parametrize("strategy", [primary, healthiest])
def test_where_nobody_answers(answers, strategy):
    """If no broker answers, the one whose back-off ends first is yielded, without an end."""
    assert 5 == len(after_the_first(strategy, 5))
    assert {} == answers


def test_a_broker_that_failed_rests_longer_each_time(monkeypatch):
    """A failed broker rests for a second, then twice as long each time, at most half a minute.

    An answer ends the rest.
    """
    now = [1000.0]
    monkeypatch.setattr(failover, "monotonic", lambda: now[0])
    brokers, pauses = Brokers(), []
    for _ in range(8):
        brokers.failed(A)
        began = now[0]
        while brokers.in_back_off(A):
            now[0] += 0.1
        pauses.append(now[0] - began)
    assert all(0.7 <= pause <= 1.4 for pause in pauses[:1])
    assert all(20 <= pause <= 37 for pause in pauses[-2:])
    assert pauses[1] > pauses[0]
    brokers.failed(A)
    brokers.answered(A)
    assert not brokers.in_back_off(A)


def test_who_rests_is_not_asked(answers):
    """A broker in back-off is not queried, even if it would answer, as it has just failed."""
    answers.update({B: 0.1, C: 0.2})
    failover.BROKERS.failed(B)
    assert [C] == after_the_first(primary)


def test_a_resting_broker_is_not_connected_to_while_another_may_answer(answers):
    """A broker in back-off is refused while another may answer; the error shows no password."""
    del answers
    failover.BROKERS.failed("reliq://:secret@a:6379/0")
    urls = ["reliq://:secret@a:6379/0", B]
    with pytest.raises(BrokerUnavailable, match="reliq://a:6379/0 failed a moment ago") as caught:
        admit(urls[0], urls, 5.0)
    assert "secret" not in str(caught.value)
    failover.BROKERS.failed(B)
    admit(urls[0], urls, 5.0)


def test_the_second_is_not_needed_while_the_first_answers(answers):
    """A connection to the second broker is refused while the first answers."""
    del answers
    failover.BROKERS.answered(A)
    with pytest.raises(BrokerUnavailable, match="reliq://a:6379/0 answers again"):
        admit(B, [A, B], 5.0)
    admit(A, [A, B], 5.0)
    admit(B, [A, B], -1.0)  # that was too long ago
    admit(B, [B], 5.0)


def test_a_broker_of_which_a_node_has_failed_is_whole_when_all_answer():
    """A broker with a failed node counts as whole only after all of its nodes have answered.

    An answer of the broker is not enough. All nodes are queried only after a failure.
    """
    brokers, asked, whole_again = Brokers(), [], [BrokerUnavailable("a node is away"), None]

    def probe(url, options, whole):
        del options
        asked.append((url, whole))
        if whole and (error := whole_again.pop(0)):
            raise error
        return 0.1

    brokers.probe = probe
    brokers.ask_whole(A)
    assert [True, []] == [brokers.is_whole(A), asked]
    brokers.lost_a_node(A)
    brokers.ask(A)
    brokers.ask_whole(A)
    assert [False, False] == [brokers.is_whole(A), brokers.in_back_off(A)]
    brokers.ask_whole(A)
    assert brokers.is_whole(A)
    assert [(A, False), (A, True), (A, True)] == asked


def test_which_one_was_used_before():
    """The previously used broker is reported once per switch."""
    brokers = Brokers()
    assert [None, None, A, None, B] == [brokers.used((A, B), url) for url in (A, A, B, B, A)]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("reliq://user:secret@host:6379/0", "reliq://host:6379/0"),
        ("reliq-unix:///run/redis.sock", "reliq-unix:///run/redis.sock"),
        ("reliqs://:p%40ss@[::1]:6380/2?ssl_ca_certs=/x", "reliqs://[::1]:6380/2"),
    ],
)
def test_no_password_is_shown(url, shown):
    """A broker is shown by its host and path, without its password."""
    assert shown == without_password(url)


def test_kombu_knows_the_strategies():
    """Kombu finds the strategies by name."""
    from kombu import Connection

    import reliq

    assert reliq
    for name, strategy in (("primary", primary), ("healthiest", healthiest)):
        assert strategy is Connection(f"{A};{B}", failover_strategy=name).failover_strategy
