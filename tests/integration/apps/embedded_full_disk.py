"""Fill the disk of an embedded broker, then free space; print confirmed, lost, seconds."""

import os
import sys
import time
from pathlib import Path

from kombu import Connection, Exchange, Queue

import reliq

disk = Path(sys.argv[1])
ballast = disk / "ballast"
ballast.write_bytes(b"\0" * 5 * 2**20)
url = f"reliq-embedded:///{disk / 'broker'}"
options = {"embedded_fsync": os.environ["RELIQ_TEST_FSYNC"], "embedded_idle": 5}
queue = Queue("q", Exchange("", type="direct"), routing_key="q")


def connected():
    """Return a connection, with its queue declared."""
    connection = Connection(url, transport_options=options)
    connection.connect()  # an error is raised at once; other calls retry
    queue(connection.channel()).declare()
    return connection


confirmed, refused = set(), ""
with connected() as connection:
    producer = connection.Producer()
    for number in range(100_000):
        body = {"i": number, "p": os.urandom(400).hex()}
        try:
            producer.publish(body, routing_key="q", serializer="json", retry=False)
        except (reliq.ReliqError, OSError) as exc:
            refused = str(exc)
            break
        confirmed.add(number)
for _ in range(100):  # "always": the server has ended, and the next error contains the reason
    if any(words in refused for words in ("No space", "MISCONF", "disk is full")):
        break
    try:
        with connected() as connection:
            connection.Producer().publish(
                {"i": -1}, routing_key="q", serializer="json", retry=False
            )
    except (reliq.ReliqError, OSError) as exc:
        refused = str(exc)
    time.sleep(0.05)
assert any(words in refused for words in ("No space", "MISCONF", "disk is full")), refused
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
