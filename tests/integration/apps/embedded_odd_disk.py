"""A first start on a full disk, and a publish on one that is read-only."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from kombu import Connection

import reliq
from tests.support.embedded import Place


def refusal(url):
    """Return the text of the error of a publish."""
    try:
        with Connection(url, transport_options={"embedded_idle": 5}) as connection:
            connection.connect()
            connection.Producer().publish(1, routing_key="q", retry=False)
    except reliq.BrokerUnavailable as exc:
        return str(exc)
    raise AssertionError("it was published")


disk = Path(sys.argv[1])
place = Place(disk / "broker")
place.path.mkdir(0o700)
with suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
    while True:
        ballast.write(os.urandom(4096))
text = refusal(place.url)
assert "full" in text, text
(disk / "ballast").unlink()
subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
text = refusal(place.url)
assert "Read-only file system" in text, text
assert [] == place.processes()
