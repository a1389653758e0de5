"""Takes the samples of a run's figures, and shows the progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import cpu
from benchmarks.figures import SECTIONS
from benchmarks.peers import KOMBU, RELIQ
from benchmarks.places import Missing
from benchmarks.rounds import Rounds, rounds_of
from benchmarks.setting import Setting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from rich.console import Console

    from benchmarks.model import Figure, Outcome
    from benchmarks.peers import Peer
    from benchmarks.places import Places


class Measuring:
    """One run over the places, without peers that are left out."""

    def __init__(
        self,
        places: Places,
        peers: Mapping[str, Peer],
        console: Console,
        scale: float,
        largest: int,
    ) -> None:
        self._places, self._peers, self._console = places, peers, console
        self._scale, self._largest = scale, largest
        self.failures: list[str] = []

    def run(
        self,
        chosen: Sequence[Figure],
        wanted: int,
        keep: Callable[[Mapping[str, Sequence[Outcome]]], None],
    ) -> dict[str, list[Outcome]]:
        """Measure each figure; return the outcomes by section. A failure affects only its peer.

        Calls *keep* with all outcomes so far after each figure.
        """
        sections: dict[str, list[Outcome]] = {}
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console) as progress:
            total = sum(rounds_of(figure, wanted) for figure in chosen)
            bar = progress.add_task("", total=total)

            def sampled(peer: Peer, values: Mapping[str, float]) -> None:
                texts = ", ".join(f"{key} {value:,.2f}" for key, value in values.items())
                progress.console.print(f"{peer.name:>16}: {texts}", highlight=False)

            rounds = Rounds(self._places, self._setting, sampled)
            self.failures = rounds.failures
            for section, figures in SECTIONS.items():
                for figure in figures:
                    if figure not in chosen:
                        continue
                    progress.update(bar, description=figure.name)
                    outcomes = rounds.run(figure, self._of(figure), wanted, self._scale)
                    sections.setdefault(section, []).extend(outcomes)
                    keep(sections)
                    progress.advance(bar, rounds_of(figure, wanted))
        for failure in self.failures:
            self._console.print(failure, style="red", highlight=False)
        return sections

    def profiles(self, directory: Path) -> list[Path]:
        """Write the profile of a worker's main process for both Redis transports."""
        directory.mkdir(parents=True, exist_ok=True)
        written = []
        for name in (RELIQ, KOMBU):
            if name not in self._peers:
                continue
            setting = self._setting(self._peers[name], self._scale)
            setting.server.empty()
            try:
                text = cpu.profile(setting)
            except AssertionError as error:
                self.failures.append(f"profile of {name} failed: {error}")
                continue
            path = directory / f"profile-{name}.txt"
            path.write_text(text, encoding="utf-8")
            written.append(path)
        return written

    def _of(self, figure: Figure) -> list[Peer]:
        """Return the figure's available peers, reliq's first; none without reliq."""
        found = []
        for name in figure.peers:
            if name not in self._peers:
                continue
            try:
                self._places.get(self._peers[name].place)
            except Missing:
                continue
            found.append(self._peers[name])
        return found if found and found[0].name == figure.peers[0] else []

    def _setting(self, peer: Peer, scale: float) -> Setting:
        return Setting(peer, self._places.get(peer.place), scale, self._largest)
