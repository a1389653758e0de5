"""Fill the disk of an embedded broker, kill its server, then free space.

Print the confirmed and the lost messages, and the seconds until a publish after that succeeds.
"""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from os import statvfs
from pathlib import Path

from kombu import Connection, Exchange, Queue

import reliq
from reliq.admin import Inspector
from tests.support.embedded import Place

disk = Path(sys.argv[1])
ballast = disk / "ballast"
ballast.write_bytes(b"\0" * 25 * 2**20)
place = Place(disk / "broker")
url = place.url
options = {"embedded_fsync": os.environ["RELIQ_TEST_FSYNC"], "embedded_idle": 5}
queue = Queue("q", Exchange("", type="direct"), routing_key="q")


def connected():
    """Return a connection, with its queue declared."""
    connection = Connection(url, transport_options=options)
    connection.connect()  # an error is raised at once; other calls retry
    queue(connection.channel()).declare()
    return connection


confirmed, refused = set(), set()


def publish(first):
    """Publish until the broker refuses."""
    with connected() as connection:
        producer = connection.Producer()
        for number in range(first, first + 100_000):
            body = {"i": number, "p": os.urandom(2000).hex()}
            try:
                producer.publish(body, routing_key="q", serializer="json", retry=False)
            except reliq.BrokerRefused as exc:
                refused.add(str(exc))
                break
            confirmed.add(number)


with ThreadPoolExecutor(8) as pool:
    list(pool.map(publish, range(0, 800_000, 100_000)))
assert all("of its disk are free" in text for text in refused), refused
assert statvfs(disk).f_bavail * statvfs(disk).f_frsize > 16_000_000
with Inspector(url) as inspector:
    (found,) = [item for item in inspector.doctor() if item.check in {"disk", "memory"}]
    assert ("disk", "error", "free some space") == (found.check, found.severity, found.remedy)
with connected() as connection:  # consuming makes no room at once, but goes on
    messages = connection.SimpleQueue("q")
    message = messages.get(timeout=5)
    message.ack()
    messages.close()
    confirmed.discard(message.payload["i"])
place.kill(*place.servers)  # with a child that rewrites the log
ballast.unlink()
began = time.monotonic()
while True:
    try:
        with connected() as connection:
            connection.Producer().publish(
                {"i": -1}, routing_key="q", serializer="json", retry=False
            )
        break
    except (reliq.ReliqError, OSError):
        time.sleep(0.02)
recovered = time.monotonic() - began
seen = set()
with connected() as connection:

    def take(body, message):
        """Record the body and ack."""
        seen.add(body["i"])
        message.ack()

    with connection.Consumer([queue], callbacks=[take]):
        while not confirmed <= seen:
            connection.drain_events(timeout=5)
print(len(confirmed), len(confirmed - seen), recovered)
os.system(f"{sys.executable} -m reliq.cli embedded stop {disk / 'broker'} > /dev/null")
