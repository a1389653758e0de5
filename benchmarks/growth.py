"""Growth: rates with more waiting messages, delayed messages, consumers and queues."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks import child, consume, fill
from benchmarks.model import Figure, Row, Target
from benchmarks.peers import KOMBU, RELIQ
from benchmarks.publish import QUEUE, publish_loop

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.setting import Setting

BACKLOGS = (1_000, 10_000, 100_000, 1_000_000)
CONSUMERS = (1, 4, 16, 64)
QUEUES = (1, 10, 50, 200)
PREFETCH = 64
CONSUMED = 20_000
PUBLISH_SECONDS = 2.0
BODY_SIZE = 100
AN_HOUR_MS = 3_600_000
LEAST_SHARE = 0.8
# A run that only tests the programs does not start many processes.
TINY, MOST_WHEN_TINY = 0.05, 4


def backlog(setting: Setting, key: str, delayed: bool) -> Mapping[str, float]:
    """Return publish and consume rates for each backlog, and their share of the first ones."""
    headers = {"x-delay": AN_HOUR_MS} if delayed else {}
    values: dict[str, float] = {}
    there = 0
    for size in BACKLOGS:
        if size > setting.largest:
            break
        fill.fill(setting, size - there, size=BODY_SIZE, headers=headers)
        there = size
        values |= {f"{key}-publish-{size}": _publish_rate(setting)}
        count = setting.paced(CONSUMED, least=50)
        # Messages to consume are added: the backlog stays equal, and delayed ones are not due.
        fill.fill(setting, count * 2, size=BODY_SIZE)
        seconds = child.run(
            consume.consume_loop,
            broker=setting.broker,
            prefetch=PREFETCH,
            warm_up=count // 20,
            count=count,
        )
        values |= {f"{key}-consume-{size}": count / seconds}
    for kind in ("publish", "consume"):
        first, last = (values[f"{key}-{kind}-{size}"] for size in (BACKLOGS[0], there))
        values[f"{key}-{kind}-kept"] = 100 * last / first
    return values


def _publish_rate(setting: Setting) -> float:
    count, took = child.run(
        publish_loop,
        broker=setting.broker,
        exchange_name="",
        seconds=setting.seconds(PUBLISH_SECONDS),
        size=BODY_SIZE,
        alone=False,
    )
    return float(count / took)


def consumers(setting: Setting) -> Mapping[str, float]:
    """Return the total rate of processes that consume one queue together."""
    values = {}
    for number in CONSUMERS:
        if number > MOST_WHEN_TINY and setting.scale < TINY:
            break
        count = setting.paced(4 * CONSUMED, least=200)
        fill.fill(setting, count, size=BODY_SIZE)
        values[f"growth-consumers-{number}"] = consume.rate_of_crowd(
            setting.broker, number, PREFETCH, count
        )
    return values


def queues(setting: Setting) -> Mapping[str, float]:
    """Return the rate at which one process consumes from several queues."""
    values = {}
    for number in QUEUES:
        names = [f"{QUEUE}-{place}" for place in range(number)]
        count = setting.paced(2 * CONSUMED, least=2 * number)
        fill.fill(setting, number + count, names, size=BODY_SIZE)
        seconds = child.run(
            consume.consume_loop,
            broker=setting.broker,
            prefetch=PREFETCH,
            warm_up=number,
            count=count,
            names=names,
        )
        values[f"growth-queues-{number}"] = count / seconds
    return values


def _backlog_figure(name: str, kind: str, peers: tuple[str, ...], core: bool) -> Figure:
    key = f"growth-{name}"
    rows = []
    for verb in ("publish", "consume"):
        rows += [
            Row(f"{key}-{verb}-{size}", f"{verb}, {size:,} {kind} messages", "messages/s")
            for size in BACKLOGS
        ]
        rows.append(
            Row(
                f"{key}-{verb}-kept",
                f"{verb}, rate kept at the largest {kind} backlog",
                "%",
                (Target("value_at_least", 100 * LEAST_SHARE, "%"),),
            )
        )
    measured = partial(backlog, key=key, delayed=name == "delayed")
    return Figure(key, tuple(rows), measured, peers, 1, warm_up=False, core=core)


def _number_figure(name: str, title: str, numbers: tuple[int, ...]) -> Figure:
    key = f"growth-{name}"
    rows = tuple(Row(f"{key}-{n}", f"{title}: {n}", "messages/s") for n in numbers)
    measured = consumers if name == "consumers" else queues
    return Figure(key, rows, measured, (RELIQ, KOMBU), 1, warm_up=False)


FIGURES = (
    _backlog_figure("waiting", "waiting", (RELIQ, KOMBU), core=True),
    _backlog_figure("delayed", "delayed", (RELIQ,), core=False),
    _number_figure("consumers", "consume and ack, consumers of one queue", CONSUMERS),
    _number_figure("queues", "consume and ack, queues of one consumer", QUEUES),
)
