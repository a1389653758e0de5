"""Publishers that continue through faults and record confirmed tasks."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from kombu import Connection
from kombu.exceptions import OperationalError

from reliq.errors import ReliqError
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.site import CelerySite


class Load:
    """One publisher for each queue, which sends short tasks until it is stopped."""

    def __init__(self, site: CelerySite, queues: Sequence[str], pause_s: float = 0.01) -> None:
        self.confirmed: list[str] = []
        self.refused = 0
        self._site = site
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._publish, args=(queue,), daemon=True) for queue in queues
        ]
        for thread in self._threads:
            thread.start()

    def _publish(self, queue: str) -> None:
        site = self._site
        with (
            Connection(site.broker, transport_options=site.transport_options) as connection,
            site.app.amqp.Producer(connection) as producer,
        ):
            while not self._stop.wait(self._pause_s):
                self._send(queue, producer, connection.connection_errors)

    def _send(self, queue: str, producer: Any, errors: Sequence[type[Exception]]) -> None:
        try:
            sent = self._site.send("record", 0.02, queue=queue, producer=producer)
        except (OperationalError, ReliqError, *errors):
            self.refused += 1
        else:
            self.confirmed.append(sent.id)

    def wait(self, more: int, timeout_s: float = 60.0) -> None:
        """Wait until *more* further tasks were confirmed."""
        goal = len(self.confirmed) + more
        wait_until(
            lambda: len(self.confirmed) >= goal,
            timeout_s=timeout_s,
            what=lambda: f"{goal} confirmed; have {len(self.confirmed)}",
        )

    def stop(self) -> list[str]:
        """Stop publishing; return the ids of confirmed tasks."""
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        return self.confirmed
