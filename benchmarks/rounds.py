"""Runs a figure's rounds: one sample of each peer in turn (A B C A B C), on one machine."""

from __future__ import annotations

from subprocess import SubprocessError
from typing import TYPE_CHECKING

from benchmarks.model import Outcome
from benchmarks.places import Missing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.model import Figure
    from benchmarks.peers import Peer
    from benchmarks.places import Places
    from benchmarks.setting import Setting

WARM_UP_SHARE = 0.1


def rounds_of(figure: Figure, wanted: int) -> int:
    """Return the number of rounds of the figure if *wanted* are requested."""
    return min(wanted, figure.most_rounds or wanted)


class Rounds:
    """Takes the samples of figures, and records failures.

    `sampled` is called with the peer and its values after each sample that counts. `settings`
    returns the setting of a measurement for a peer and a scale.
    """

    def __init__(
        self,
        places: Places,
        settings: Callable[[Peer, float], Setting],
        sampled: Callable[[Peer, Mapping[str, float]], None],
    ) -> None:
        self._places = places
        self._settings = settings
        self._sampled = sampled
        self.failures: list[str] = []

    def run(
        self, figure: Figure, peers: Sequence[Peer], rounds: int, scale: float
    ) -> list[Outcome]:
        """Measure every round; return one outcome for each row of the figure with values.

        A peer that fails is left out of the figure's further rounds, and of its outcome.
        """
        taking = list(peers)
        if figure.warm_up and rounds > 1:
            taking = [p for p in taking if self._take(figure, p, scale * WARM_UP_SHARE) is not None]
        samples: dict[str, list[Mapping[str, float]]] = {peer.name: [] for peer in taking}
        for _ in range(rounds_of(figure, rounds)):
            for peer in tuple(taking):
                values = self._take(figure, peer, scale)
                if values is None:
                    taking.remove(peer)
                    del samples[peer.name]
                    continue
                samples[peer.name].append(values)
                self._sampled(peer, values)
        ours = peers[0].name if peers else None
        if ours not in samples:
            return []
        outcomes = []
        for row in figure.rows:
            of_row = {
                name: [values[row.key] for values in taken if row.key in values]
                for name, taken in samples.items()
            }
            if of_row[ours]:
                outcomes.append(Outcome(row, {name: of for name, of in of_row.items() if of}))
        return outcomes

    def _take(self, figure: Figure, peer: Peer, scale: float) -> Mapping[str, float] | None:
        try:
            setting = self._settings(peer, scale)
            setting.server.empty()
            values = figure.measure(setting)
            peer.audit(setting.broker["url"])
        except Missing:
            return None
        except (AssertionError, RuntimeError, SubprocessError) as error:
            self.failures.append(f"{figure.name}, {peer.label}, failed: {error}")
            return None
        return values
