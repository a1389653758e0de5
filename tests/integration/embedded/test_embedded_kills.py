"""SIGKILL of the server, the keeper or both of an embedded broker, also on a slow disk."""

import random
import subprocess
import sys
import threading
import time

import pytest
from kombu import Connection, Exchange, Queue

import reliq
from reliq.embedded.server import candidates
from tests.support.embedded import Place, slow_disk

QUEUE = Queue("q", Exchange("", type="direct"), routing_key="q")
OPTIONS = {"embedded_idle": 600}
CONSUMER = """
import sys, time, reliq
from kombu import Connection, Exchange, Queue
url, stop = sys.argv[1], sys.argv[2]
import os
options = {"embedded_idle": 600, "embedded_server": sys.argv[4]}
log = open(sys.argv[3], "a", buffering=1)
def take(body, message):
    log.write(f"{body['i']}\\n")
    message.ack()
while not os.path.exists(stop):
    try:
        with Connection(url, transport_options=options) as connection:
            connection.connect()
            queue = Queue("q", Exchange("", type="direct"), routing_key="q")
            with connection.Consumer([queue], callbacks=[take]):
                while not os.path.exists(stop):
                    try:
                        connection.drain_events(timeout=0.5)
                    except TimeoutError:
                        pass
    except (reliq.ReliqError, OSError):
        time.sleep(0.05)
"""


class Publisher(threading.Thread):
    """Publishes numbers, each once, until it is stopped."""

    def __init__(self, url, **options):
        super().__init__(daemon=True)
        self.url, self.options = url, {**OPTIONS, **options}
        self.confirmed, self.gaps = [], []
        self.stopping = threading.Event()

    def run(self):
        """Publish; note the confirmed numbers, and the times from failure to next success."""
        number, failed = 0, 0.0
        while not self.stopping.is_set():
            try:
                with Connection(self.url, transport_options=self.options) as connection:
                    connection.connect()
                    channel = connection.channel()
                    QUEUE(channel).declare()
                    producer = connection.Producer(channel)
                    while not self.stopping.is_set():
                        number += 1
                        producer.publish(
                            {"i": number}, routing_key="q", serializer="json", retry=False
                        )
                        self.confirmed.append(number)
                        if failed:
                            self.gaps.append(time.monotonic() - failed)
                            failed = 0.0
            except (reliq.ReliqError, OSError):  # noqa: PERF203 - a failure ends or delays it
                failed = failed or time.monotonic()
                time.sleep(0.02)


def remaining(url, taken_path, confirmed, timeout_s=60):
    """Wait until the consumers have taken all confirmed numbers; return the taken numbers."""
    deadline = time.monotonic() + timeout_s
    while True:
        taken = [int(line) for path in taken_path for line in path.read_text().split()]
        if set(confirmed) <= set(taken) or time.monotonic() > deadline:
            return taken
        time.sleep(0.2)


@pytest.mark.parametrize(
    ("ms", "kills", "fsync"),
    [
        (0, 4, "second"),
        pytest.param(300, 4, "second", marks=pytest.mark.slow),
        pytest.param(30, 6, "always", marks=pytest.mark.slow),
        pytest.param(900, 6, "second", marks=pytest.mark.slow),
        *(
            pytest.param(ms, 20, fsync, marks=[pytest.mark.slow, pytest.mark.long])
            for ms in (30, 300, 900)
            for fsync in ("second", "always")
        ),
    ],
)
def test_kills_lose_nothing_and_repeat_nothing(tmp_path, ms, kills, fsync):
    """Kills lose no confirmed message and repeat no acked one, and publishing resumes soon."""
    server = slow_disk(tmp_path, ms) if ms else next(candidates())
    place, stop = Place(tmp_path / "broker"), tmp_path / "stop"
    taken = [tmp_path / f"taken{k}" for k in range(2)]
    publisher = Publisher(place.url, embedded_fsync=fsync, embedded_server=server)
    consumers = []
    try:
        publisher.start()
        for path in taken:
            path.touch()
            command = [sys.executable, "-c", CONSUMER, place.url, stop, path, server]
            consumers.append(subprocess.Popen(command))
        done = 0
        chance = random.Random(ms)
        while done < kills:
            before = len(publisher.confirmed)
            time.sleep(chance.uniform(0.3, 1.5))
            if len(publisher.confirmed) == before:
                continue  # it has not recovered
            server, keeper = place.servers, place.keepers
            place.kill(*chance.choice([server, keeper, [*keeper, *server], [*server, *keeper]]))
            done += 1
        time.sleep(1)
        publisher.stopping.set()
        publisher.join(60)
        found = remaining(place.url, taken, publisher.confirmed)
        lost = set(publisher.confirmed) - set(found)
        assert not lost, (len(lost), len(publisher.confirmed), place.log())
        # An ack in transit when the server died may be lost: its message is delivered again to a
        # consumer that received no confirmation of the ack.
        assert len(found) - len(set(found)) <= kills
        print(
            f"{done} kills, {len(publisher.confirmed)} confirmed, {len(lost)} lost, "
            f"{len(found) - len(set(found))} twice, gaps {max(publisher.gaps, default=0):.2f}"
        )
    finally:
        publisher.stopping.set()
        stop.touch()
        for consumer in consumers:
            consumer.wait(30)
        place.close()
