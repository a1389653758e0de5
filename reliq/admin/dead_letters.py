"""The part of the Inspector that finds, replays, purges, exports and imports dead letters."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigurationError, NotFound
from ..message.queue_names import queue_of
from ..transfer.numbered import to_queue
from ..values.inspection import Stored
from ..values.limits import MOVED_AT_ONCE, chunks
from ..values.protocol import status_of
from ..values.values import NO_QUEUE, STORED
from . import dead_letter_file
from .dead_letter_choice import Choice, choose, paced
from .partitions import for_each_part, refuse_part
from .views import of_stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from typing_extensions import Unpack

    from ..values.inspection import DeadLetter, Partial
    from ..values.protocol import Store
    from ..values.values import Move
    from .dead_letter_choice import QueueLetter
    from .names import Filters, Part
    from .views import Message


class DeadLetters:
    """Dead letters of one broker. All methods use the same filters.

    tags: only these delivery tags. task: the name of a Celery task. reason: ``rejected``,
    ``undecodable``, ``malformed``, ``delivery_limit``, ``expired`` or ``maxlen``.
    older_than_s, newer_than_s: seconds since the death. match: a regular expression to find in
    task, id, error or arguments. fingerprint: a group of :meth:`Inspector.dead_letter_groups`.
    limit: the maximum number, oldest first. rate: the maximum per second, on average.
    Every method raises NotFound, and ConfigurationError for an invalid filter.
    """

    _store: Store

    def _pages(
        self,
        queue: str,
        tags: Sequence[str] | None = None,
        limit: int | None = None,
        rate: float | None = None,
        names: Sequence[str] | None = None,
        **filters: Unpack[Filters],
    ) -> Iterator[Sequence[QueueLetter]]:
        choice = Choice(tags=tags, **filters)
        return paced(choose(self._store, queue, choice, names, limit), rate)

    def dead_letters(
        self,
        queue: str,
        limit: int | None = 100,
        **filters: Unpack[Filters],
    ) -> Partial[DeadLetter]:
        """Return up to *limit* matching dead letters of *queue*, oldest first.

        Partitions on unreachable nodes are in ``unreachable``.
        """

        def read(names: Sequence[str]) -> list[DeadLetter]:
            pages = self._pages(queue, limit=limit, names=names, **filters)
            return [dead_letter for page in pages for _, dead_letter in page]

        return for_each_part(self._store, queue, read)

    def dead_letter(self, queue: str, tag: str) -> DeadLetter:
        """Return one dead letter; raises NotFound."""
        for page in self._pages(queue, [tag]):
            return page[0][1]
        raise NotFound(f"no dead letter {tag!r} in {queue!r}")

    def view(self, queue: str, dead_letter: DeadLetter) -> Message:
        """Return a dead letter as a Message, as in :meth:`Inspector.peek`."""
        letter = dead_letter
        stored = Stored(
            tag=letter.tag,
            envelope=letter.envelope,
            failed=letter.count,
            at_ms=letter.died_ms,
            consumer=letter.consumer,
            reason=letter.reason,
            error=letter.error,
        )
        return of_stored(queue, "dead", stored, self._store.now_ms())

    def count_dead_letters(
        self,
        queue: str,
        tags: Sequence[str] | None = None,
        *,
        limit: int | None = None,
        **filters: Unpack[Filters],
    ) -> int:
        """Return the number that :meth:`replay` or :meth:`purge_dead_letters` would take."""
        return sum(map(len, self._pages(queue, tags, limit, **filters)))

    def replay(
        self,
        queue: str,
        tags: Sequence[str] | None = None,
        *,
        to: str | None = None,
        **part: Unpack[Part],
    ) -> int:
        """Make dead letters ready again, in their queue or in the queue *to*; return their number.

        Their delivery counts restart at zero, and they have no TTL. A message that dies again
        meanwhile is not replayed twice.

        An interruption neither loses nor duplicates a message; the next call continues. Raises
        QueueFull if *to* is full.
        """
        return sum(self.replaying(queue, tags, to=to, **part))

    def replaying(
        self,
        queue: str,
        tags: Sequence[str] | None = None,
        *,
        to: str | None = None,
        **part: Unpack[Part],
    ) -> Iterator[int]:
        """Do the same as :meth:`replay` in steps; yield the number of each step."""
        if to is not None:
            refuse_part(self._store, to)
        if to is not None and self._store.reads.status(to) is None:
            raise NotFound(f"no queue {to!r} for dead letters of {queue!r}; declare it first")

        def put_back(name: str, chosen: Sequence[str]) -> int:
            if to is None or to == queue_of(name):
                return len(self._store.replay(name, chosen))
            return to_queue(self._store, name, to, chosen)

        return _in_steps(self._pages(queue, tags, **part), put_back)

    def purge_dead_letters(
        self, queue: str, tags: Sequence[str] | None = None, **part: Unpack[Part]
    ) -> int:
        """Remove matching dead letters permanently; return their number."""
        return sum(self.purging_dead_letters(queue, tags, **part))

    def purging_dead_letters(
        self, queue: str, tags: Sequence[str] | None = None, **part: Unpack[Part]
    ) -> Iterator[int]:
        """Do the same as :meth:`purge_dead_letters` in steps; yield the number of each step."""
        return _in_steps(self._pages(queue, tags, **part), self._store.purge_dead)

    # -- files

    def export_dead_letters(
        self,
        queue: str,
        path: str | os.PathLike[str],
        tags: Sequence[str] | None = None,
        *,
        resume: bool = False,
        **part: Unpack[Part],
    ) -> Iterator[int]:
        """Write matching dead letters to a file, in steps; yield the number of each step.

        They stay in the queue. After the last step, the file is synced and read back: a
        ConfigurationError names the line that an import would refuse. resume: continue an
        interrupted export, without writing a dead letter again. Without *resume*, raises
        ConfigurationError if the file exists.
        """
        pages = self._pages(queue, tags, **part)
        status_of(self._store, queue)
        if resume:
            export = dead_letter_file.resume(Path(path), queue)
        else:
            broker, now_ms = self._store.broker, self._store.now_ms()
            export = dead_letter_file.begin(Path(path), queue, broker, now_ms)

        def steps() -> Iterator[int]:
            try:
                for page in pages:
                    fresh = [letter for _, letter in page if letter.tag not in export.tags]
                    for dead_letter in fresh:
                        export.write(dead_letter)
                    export.file.flush()
                    yield len(fresh)
                export.complete()
            except OSError as exc:
                raise ConfigurationError(
                    f"cannot write to {str(path)!r} any more: {exc.strerror}; free space, "
                    "and resume the export"
                ) from exc
            finally:
                export.close()

        return steps()

    def import_dead_letters(
        self,
        queue: str,
        path: str | os.PathLike[str],
        tags: Sequence[str] | None = None,
        *,
        again: bool = False,
        limit: int | None = None,
        rate: float | None = None,
        **filters: Unpack[Filters],
    ) -> Iterator[int]:
        """Read dead letters from a file into those of *queue*, in steps; yield each step's number.

        For 200 days, each is stored only once, even if it was replayed or purged since. again:
        store it anyway. Checks the whole file first; a ConfigurationError names the line.
        """
        refuse_part(self._store, queue)
        source, moves = self._exported(queue, Path(path), Choice(tags=tags, **filters))
        name = os.urandom(8).hex() if again else source

        def step(page: Sequence[Move]) -> int:
            # Keep the low-water mark: a call with other filters may import the others later.
            outcomes = self._store.accept(queue, f"export/{name}", 1, page)
            if NO_QUEUE in outcomes:
                raise NotFound(f"queue {queue!r} was deleted during the import")
            return outcomes.count(STORED)

        return map(step, paced(chunks(moves[:limit], MOVED_AT_ONCE), rate))

    def count_exported(
        self,
        queue: str,
        path: str | os.PathLike[str],
        tags: Sequence[str] | None = None,
        *,
        limit: int | None = None,
        **filters: Unpack[Filters],
    ) -> int:
        """Return the number that :meth:`import_dead_letters` would examine; stores nothing."""
        return len(self._exported(queue, Path(path), Choice(tags=tags, **filters))[1][:limit])

    def _exported(self, queue: str, path: Path, choice: Choice) -> tuple[str, list[Move]]:
        if self._store.reads.status(queue) is None:
            raise NotFound(
                f"no queue {queue!r} to import dead letters into: declare it, or start its worker"
            )
        name, moves = dead_letter_file.read(path)
        now_ms = self._store.now_ms()
        return name, [
            move
            for move in moves
            if move.dead_letter is not None and choice.fits(move.dead_letter, now_ms)
        ]


def _in_steps(
    pages: Iterator[Sequence[QueueLetter]], step: Callable[[str, Sequence[str]], int]
) -> Iterator[int]:
    """Run *step* for each page and partition; yield the sum of its results for each page."""
    for page in pages:
        tags: dict[str, list[str]] = {}
        for name, dead_letter in page:
            tags.setdefault(name, []).append(dead_letter.tag)
        yield sum(step(name, chosen) for name, chosen in tags.items())
