"""Damaged, partial and foreign files in the folder of an embedded broker."""

import json
import os
import shutil
import subprocess
import sys

import jsonschema
import pytest
from click.testing import CliRunner

import reliq
from reliq.cli import main
from reliq.cli.schema import SCHEMAS
from reliq.embedded.server import Server, writer_of
from reliq.embedded.start import stop
from tests.integration.embedded.test_embedded import put, take
from tests.support.disks import run_on_small_disk
from tests.support.embedded import Place
from tests.support.waiting import wait_until

COUNT = 50


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Return the folder of a stopped broker with messages."""
    place = Place(tmp_path_factory.mktemp("stopped") / "broker")
    put(place.url, *range(COUNT))
    wait_until((place.path / "stamp").exists)
    stop(place.folder)
    yield place.path
    place.close()


@pytest.fixture
def place(stopped, tmp_path):
    """Return a copy of that folder."""
    place = Place(tmp_path / "broker")
    shutil.copytree(stopped, place.path)
    yield place
    place.close()


def command(name, folder, *words):
    """Run a command for a folder in this process, which is quicker than another."""
    return CliRunner().invoke(main, ["embedded", name, str(folder), *words])


def write(path, text):
    """Write the whole of a file of the keeper."""
    path.write_bytes(text.encode().ljust(4096, b"\0" if not text else b" "))


@pytest.mark.slow  # needs a server with manifests: Redis 7 or newer, or Valkey
@pytest.mark.parametrize("stamp", ["missing", "empty"])
@pytest.mark.parametrize("data", ["no manifest", "no data"])
def test_data_without_manifest_is_not_opened_as_empty(place, stamp, data):
    """Without the manifest, a used folder is an error that names the repair, whatever the stamp."""
    if stamp == "empty" or data == "no data":
        os.truncate(place.path / "stamp", 0)
    else:
        (place.path / "stamp").unlink()
    if data == "no data":
        shutil.rmtree(place.path / "appendonlydir")
    else:
        (place.path / "appendonlydir/appendonly.aof.manifest").unlink()
    with pytest.raises(reliq.BrokerUnavailable, match="reliq embedded repair"):
        put(place.url, "x")
    done = command("repair", place.path)
    assert 2 == done.exit_code
    assert "from a backup" in done.stderr


@pytest.mark.slow  # as above
def test_a_first_start_that_was_killed_is_empty(place):
    """The files of a broker that was killed before its first message open as an empty broker."""
    (place.path / "stamp").unlink()
    (place.path / "appendonlydir/appendonly.aof.manifest").unlink()
    os.truncate(place.path / "appendonlydir/appendonly.aof.1.incr.aof", 0)
    put(place.url, "first")
    assert ["first"] == take(place.url, 1)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("keeper.lock", ""),
        ("keeper.lock", "[1]"),
        ("keeper.lock", '{"boot": 3, "failed_at": "x", "idle": [], "maxmemory": "m"}'),
        ("keeper.lock", f'{{"failed_at": {2**33}}}'),
        ("stamp", ""),
        ("stamp", "7"),
        ("stamp", '{"server": "valkey"}'),
        ("stamp", '{"server": "valkey", "version": ["x", 1]}'),
    ],
)
def test_other_damaged_files_stop_nothing(place, name, text):
    """A damaged state or stamp does not keep the broker from opening with its data."""
    write(place.path / name, text)
    assert [*range(COUNT)] == take(place.url, COUNT)
    assert 0 == command("status", place.path).exit_code


def test_a_state_that_is_damaged_in_use_is_restored(place):
    """The keeper of a running broker restores its state, and connections succeed again."""
    put(place.url, "x")
    before = place.folder.state()
    write(place.path / "keeper.lock", '{"since": 1.0}')
    put(place.url, "y")
    assert before == place.folder.state()


def test_the_manifest_tells_that_an_old_server_cannot_read_the_data(tmp_path):
    """Without a stamp, a server that knows no manifest, and would open the data empty, is unfit."""
    folder = Place(tmp_path).folder
    assert writer_of(folder) is None
    (tmp_path / "appendonlydir").mkdir()
    (tmp_path / "appendonlydir/appendonly.aof.manifest").touch()
    assert not Server("", "redis", (6, 2, 14)).reads(writer_of(folder))
    assert Server("", "redis", (7, 0, 15)).reads(writer_of(folder))
    assert Server("", "valkey", (9, 1, 0)).reads(writer_of(folder))


def test_an_unreadable_file_is_an_error_of_reliq(place):
    """An error of the file system is a BrokerUnavailable that names the file and the remedy."""
    (place.path / "stamp").unlink()
    (place.path / "stamp").mkdir()
    with pytest.raises(reliq.BrokerUnavailable, match=r"stamp.*check its disk"):
        put(place.url, "x")
    done = command("status", place.path)
    assert 2 == done.exit_code
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_disk_that_takes_no_file(tmp_path):
    """A first start on a full disk, or a publish on a read-only one, is an error with a remedy."""
    done = run_on_small_disk("tests.integration.apps.embedded_odd_disk", tmp_path, 4)
    assert 0 == done.returncode, done.stdout + done.stderr


def test_a_name_that_is_not_utf8_is_refused(tmp_path):
    """A URL whose folder is not UTF-8 is an error: Kombu replaces its bytes by another name."""
    with pytest.raises(reliq.ConfigurationError, match=r"not UTF-8.*symbolic link"):
        put(f"reliq-embedded:///{tmp_path}/%E4", "x")
    assert [] == list(tmp_path.iterdir())
    (tmp_path / "a b").mkdir()
    done = command("status", f"reliq-embedded:///{tmp_path}/a%20b")
    assert (0, "") == (done.exit_code, done.stderr)
    (tmp_path / os.fsdecode(b"\xe4")).mkdir()
    done = command("status", tmp_path / os.fsdecode(b"\xe4"))
    assert (0, "") == (done.exit_code, done.stderr)


@pytest.mark.slow  # as above
@pytest.mark.parametrize("damage", ["half a base file", "empty base file", "junk in the log"])
def test_a_repair_is_tried(place, damage):
    """The repair reports success only if the broker then opens the data."""
    base = place.path / "appendonlydir/appendonly.aof.1.base.rdb"
    log = place.path / "appendonlydir/appendonly.aof.1.incr.aof"
    if damage == "junk in the log":
        with log.open("ab") as file:
            file.write(b"junk" * 100)
    else:
        os.truncate(base, base.stat().st_size // 2 if "half" in damage else 0)
        with pytest.raises(reliq.BrokerUnavailable, match="reliq embedded repair"):
            put(place.url, "x")
    done = command("repair", place.path)
    if damage == "junk in the log":
        assert 0 == done.exit_code, done.stderr
        assert [] == place.processes()
        assert [*range(COUNT)] == take(place.url, COUNT)
        return
    assert 2 == done.exit_code
    assert "repaired" not in done.stdout
    assert "from a backup" in done.stderr
    assert [*place.path.glob("before-repair-*/appendonlydir/*.rdb")]


def test_a_missing_folder_is_named(tmp_path):
    """A command for a folder that does not exist says so, and creates nothing."""
    there = tmp_path / "missing"
    for words in (["status"], ["stop"], ["repair"], ["backup", str(tmp_path / "copy")]):
        done = command(words[0], there, *words[1:])
        assert 2 == done.exit_code
        assert "no such folder" in done.stderr
        assert "check the path" in done.stderr
        assert "parent directory" not in done.stderr
    assert [] == list(tmp_path.iterdir())


def test_stop_refuses_beside_run(place):
    """The command `stop` names `run`, which would start the broker again; ending `run` stops it."""
    runs = subprocess.Popen(
        [sys.executable, "-m", "reliq.cli", "embedded", "run", place.path],
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: place.folder.state().get("since") and place.servers)
        done = command("stop", place.path)
        assert 2 == done.exit_code
        assert "`reliq embedded run` keeps the broker running" in done.stderr
        runs.terminate()
        assert 0 == runs.wait(10)
    finally:
        runs.kill()
        runs.wait()
    assert [] == place.processes()
    assert "the broker was not running\n" == command("stop", place.path).stdout


def test_json(place, tmp_path):
    """The commands print JSON as in their schemas."""

    def run(name, *words):
        done = command(name, place.path, *words, "--json")
        assert 0 == done.exit_code, done.output
        found = json.loads(done.stdout)
        jsonschema.validate(found, SCHEMAS[f"embedded {name}"])
        return found

    assert not run("status")["running"]
    put(place.url, "x")
    found = run("status")
    assert (True, 0) == (found["running"], found["clients"])
    assert (place.servers[0], None) == (found["pid"], found["error"])
    assert run("backup", str(tmp_path / "copy"))["bytes"]
    assert run("stop")["stopped"]
    assert not run("stop")["stopped"]
    assert run("repair")["copy"]
