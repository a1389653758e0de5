"""The disk of an embedded broker: full, gone, damaged, or not writable."""

import os
import shutil
import signal
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
from kombu import Connection

import reliq
from reliq.embedded.server import candidates
from tests.integration.embedded.test_embedded import alive, put, take
from tests.support.disks import run_on_small_disk
from tests.support.embedded import Place
from tests.support.waiting import wait_until

FSYNCED = {"each": {"confirm": "fsynced"}}


@pytest.fixture
def place(tmp_path):
    """Return a folder for a broker of this test."""
    place = Place(tmp_path / "broker")
    yield place
    place.close()


def limited_server(directory, kilobytes):
    """Return a server that cannot make a file longer than *kilobytes*, as on a full disk."""
    server = directory / "limited-server"
    server.write_text(
        f"#!/bin/sh\ntrap '' XFSZ\nulimit -S -f {kilobytes * 2}\nexec {next(candidates())} \"$@\"\n"
    )
    server.chmod(0o755)
    return str(server)


def test_fsynced_is_not_confirmed_if_the_server_could_not_write(place, tmp_path):
    """A message that is not in the server's log is not confirmed as on the disk."""
    limited = {"embedded_server": limited_server(tmp_path, 1024)}
    put(place.url, "small", **limited, **FSYNCED)
    with pytest.raises(reliq.NotConfirmed, match="cannot write its log"):
        put(place.url, "x" * 1_500_000, **limited, **FSYNCED)


def test_fsynced_outlives_a_full_disk_and_a_kill(place, tmp_path):
    """After a full disk and SIGKILL, each message confirmed as on the disk is there."""
    limited = {"embedded_server": limited_server(tmp_path, 512), "embedded_idle": 3600}
    confirmed = []

    def publish(name):
        with Connection(place.url, transport_options=limited) as connection:
            producer = connection.Producer()
            connection.SimpleQueue("q").close()
            for number in range(1000):
                body = [name, number, "x" * 3000]
                try:
                    producer.publish(body, routing_key="q", serializer="json", confirm="fsynced")
                except reliq.ReliqError:
                    return True
                confirmed.append(body[:2])
        return False

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(publish, range(8)))
    place.kill(*place.servers)
    wait_until(lambda: not place.processes(), what=place.log)
    with Connection(place.url, transport_options={"embedded_idle": 3600}) as connection:
        queue, found = connection.SimpleQueue("q"), []
        for _ in range(queue.qsize()):  # with those that were refused, but stored
            message = queue.get(timeout=5)
            message.ack()
            found.append(message.payload[:2])
        queue.close()
    assert len(confirmed) > 100
    assert [] == [body for body in confirmed if body not in found]


@pytest.mark.parametrize("what", ["moved", "removed", "replaced"])
def test_a_folder_that_went_confirms_nothing(place, tmp_path, what):
    """No publish into a folder that was moved or removed is confirmed as on the disk."""
    with Connection(place.url, transport_options={"embedded_idle": 3600}) as connection:
        producer = connection.Producer()
        producer.publish(1, routing_key="q", confirm="fsynced")
        place.kill(*place.keepers, number=signal.SIGSTOP)  # the server lives on
        try:
            if what == "removed":
                shutil.rmtree(place.path)
            else:
                place.path.rename(tmp_path / "moved")
            if what == "replaced":
                shutil.copytree(tmp_path / "moved", place.path, ignore=_sockets)
            with pytest.raises(reliq.NotConfirmed, match="removed, moved or replaced"):
                producer.publish(2, routing_key="q", confirm="fsynced", retry=False)
        finally:
            for copy in (place, Place(tmp_path / "moved")):
                copy.kill(*copy.processes())


def _sockets(directory, names):
    return [name for name in names if stat.S_ISSOCK(os.lstat(f"{directory}/{name}").st_mode)]


@pytest.mark.slow
@pytest.mark.parametrize("fsync", ["second", "always"])
def test_a_disk_that_becomes_full(tmp_path, fsync):
    """Messages are refused before the disk is full; SIGKILL loses none; there is room: all goes on.

    The error names the disk, and messages are consumed meanwhile.
    """
    done = run_on_small_disk(
        "tests.integration.apps.embedded_full_disk", tmp_path, 64, RELIQ_TEST_FSYNC=fsync
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    confirmed, lost, seconds = done.stdout.split()[-3:]
    assert int(confirmed) > 500
    assert 0 == int(lost)
    assert float(seconds) < 5


def test_the_server_ends_with_its_keeper(place):
    """A killed keeper leaves no server, so nothing is confirmed into a folder that goes."""
    with Connection(place.url, transport_options={"embedded_idle": 3600}) as connection:
        producer = connection.Producer()
        producer.publish(1, routing_key="q")
        before = place.processes()
        place.kill(*place.keepers)
        wait_until(lambda: not any(map(alive, before)), what=place.log)
        shutil.rmtree(place.path)
        producer.publish(2, routing_key="q", retry=True, retry_policy={"max_retries": 3})
    assert [2] == take(place.url, 1)
