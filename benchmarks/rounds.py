"""Runs a figure's rounds: one sample of each transport in turn, A B A B, over one machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.model import Outcome
from benchmarks.setting import Setting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.model import Figure
    from benchmarks.peers import Peer
    from benchmarks.servers import Server

WARM_UP_SHARE = 0.1


def rounds_of(figure: Figure, wanted: int) -> int:
    """Return how many pairs the figure takes when so many are wanted."""
    return min(wanted, figure.most_rounds or wanted)


def run(
    figure: Figure,
    contenders: tuple[tuple[Peer, Server], tuple[Peer, Server]],
    rounds: int,
    scale: float,
    report: Callable[[str, Mapping[str, float]], None],
) -> list[Outcome]:
    """Measure every pair; return one outcome for each row of the figure.

    `contenders` is ours and the baseline, each with its server. `report` is called
    with the contender's name and its values after each sample that counts.
    """
    if figure.warm_up and rounds > 1:
        for peer, server in contenders:
            server.empty()
            figure.measure(Setting(peer, server, scale * WARM_UP_SHARE))
    samples: tuple[list[Mapping[str, float]], list[Mapping[str, float]]] = ([], [])
    for _ in range(rounds_of(figure, rounds)):
        for (peer, server), taken in zip(contenders, samples, strict=True):
            server.empty()
            values = figure.measure(Setting(peer, server, scale))
            peer.audit(server.port)
            taken.append(values)
            report(peer.name, values)
    ours, baseline = samples
    return [
        Outcome(row, [v[row.key] for v in ours], [v[row.key] for v in baseline])
        for row in figure.rows
    ]
