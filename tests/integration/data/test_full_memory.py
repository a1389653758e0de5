"""Each script on a Redis whose memory is full: scripts that empty or refill a queue still run."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path

import pytest
from kombu import Connection, Queue

from reliq.batches.jobs import Change, Note
from reliq.errors import BrokerRefused, BrokerUnavailable, ReliqError
from reliq.lua import keys, rights, scripts
from reliq.options import parse
from reliq.store.kombu import KombuLayout, KombuRedis
from reliq.store.store import RedisStore
from reliq.store.urls import address
from reliq.values.inspection import Position
from tests.support.injector import Injector, name_of
from tests.support.site import CelerySite

from .test_malformed_scripts import Junked, K, Limited, junk, problem_of, put

LUA = Path(scripts.__file__).parent
REFUSED = {"publish", "accept", "open_batch", "list_batch", "note_job", "once", "kombu_accept"}
"""Scripts that store new messages, batches, reports or claims are refused completely."""
REFUSED |= {"wake"}  # if its token is refused, a wait ends by itself
REFUSED |= {"log"}  # transient messages
SCRIPT_OF = {
    "reserve no_ack": "hand_back",
    "late ack": "ack",
    "requeue": "release",
    "restore": "restore_visible",
    "end": "end_leases",
}
"""The scripts of operations with other names."""


class Full(Junked):
    """A queue with a message of each kind, on a server that can be filled; and other scripts."""

    def __init__(self, server) -> None:
        self.injector = Injector(server)
        self.ran = set()
        self.injector.decide = lambda parts: self.ran.add(name_of(parts))
        super().__init__(server)

    def close(self) -> None:
        """Close the connections."""
        self.store.close()
        self.raw.close()
        self.injector.close()

    def connected(self, server, user=""):
        """Return a store that connects through the injector."""
        url = f"reliq://{user}127.0.0.1:{self.injector.port}/0"
        store = RedisStore(address(url), parse({}), "s/1")
        store.connect()
        return store

    def fresh(self) -> None:
        """Restore all keys."""
        self.raw.flushall()
        super().fresh()
        self.ran.clear()

    def others(self):
        """Return name -> (preparation, operation) of the scripts that move no message."""
        store, posted, raw = self.store, self._posted, self.raw
        url = f"reliq://127.0.0.1:{self.injector.port}/0"
        kombu = KombuRedis(address(url), parse({}), "k/1", KombuLayout())
        batches = store.batches

        def nothing() -> None:
            pass

        def working() -> None:
            batches.open_batch("b", "n", {})
            entered = Change("enter", "j", "waiting", tag="t", queue="q")
            batches.change("b", [entered, Change("begin", "j", "working", token=1, tag="t")])

        def ended() -> None:
            working()
            batches.change("b", [Change("seal"), Change("end", "j", "succeeded", token=1)])

        def moving() -> None:
            store.begin_move("q", "queue:o", [self.died.tag])

        def registered() -> None:
            posted(store.post_heartbeat, "c", 1000, 1000, {"host": "h"})

        return {
            "attach": (nothing, lambda: store.attach("q", "c", 1)),
            "bind": (nothing, lambda: store.bind("e", True, [b"b"])),
            "change_jobs": (
                working,
                lambda: batches.change("b", [Change("end", "j", "succeeded", token=1)]),
            ),
            "configure": (nothing, lambda: store.configure("q", {"delivery_limit": "7"})),
            "declare": (nothing, lambda: store.declare_queue("new", False, b"", {"expires": "9"})),
            "declare_exchange": (nothing, lambda: store.declare_exchange("e", b"")),
            "delete_queue": (
                lambda: store.attach("q", "c", 1),
                lambda: store.delete_queue("q", if_idle=True),
            ),
            "heartbeat": (nothing, registered),
            "kombu_accept": (nothing, lambda: kombu.accept("o", "s", 1, [(1, 0, b"m")])),
            "kombu_take": (lambda: raw.lpush("o", b"m"), lambda: kombu.take("o", "t", 0)),
            "kombu_take_unacked": (
                lambda: (raw.hset("unacked", "t", b"m"), raw.zadd("unacked_index", {"t": 1})),
                lambda: kombu.take_unacked("t", 0.0, [("t", ["o"])]),
            ),
            "layout": (nothing, lambda: store.lay_out("q", 3, 3)),
            "layout read": (nothing, lambda: store.lay_out("q")),
            "leases_of": (nothing, lambda: store.leases_of("q", "s/1")),
            "list_batch": (nothing, lambda: batches.open_batch("new", "n", {})),
            "list_queue": (nothing, lambda: store.list_queue("q")),
            "log": (lambda: store.bind("e", True, [b"b"]), self._log),
            "elect": (nothing, lambda: posted(store.post_elect, "c", 1000)),
            "locate": (nothing, lambda: store.reads.locate("q", self.died.tag)),
            "measure": (nothing, lambda: store.reads.status("q")),
            "moved": (moving, lambda: store.end_move("q", [self.died.tag])),
            "next_batches": (working, lambda: batches.next_batches(5, 1000)),
            "note_bound": (nothing, lambda: store.bind("e", True, [b"b"], "q")),
            "note_job": (working, lambda: batches.note("b", Note("j", 0, 1, "q", (1, 2, "x")))),
            "once": (nothing, lambda: store.claim("n", "t", 1000)),
            "once more": (
                lambda: store.claim("n", "t", 1000),
                lambda: store.claim("n", "t", 9000, finished=True),
            ),
            "open_batch": (
                lambda: batches._list("listed"),
                lambda: batches.open_batch("listed", "n", {}),
            ),
            "pause": (nothing, lambda: store.pause("q", True)),
            "read_log": (nothing, lambda: posted(store.post_read_log, "e", "0", 1000, 9)),
            "note_callback": (ended, lambda: batches.note_published("b", "success")),
            "scan": (nothing, lambda: store.reads.scan("q", "dead", Position())),
            "snapshot": (nothing, lambda: posted(store.post_snapshots, ["q"])),
            "report_running": (registered, lambda: posted(store.post_running, "c", 1, {"q": 1})),
            "unbound": (
                lambda: store.declare_exchange("e", b""),
                lambda: store.delete_exchange("e", if_unbound=True),
            ),
            "wake": (nothing, self._wake),
            "whereabouts": (nothing, lambda: store.reads.whereabouts("q", [self.died.tag])),
        }

    def _log(self) -> None:
        bindings = keys.bindings("", "e")
        version = self.raw.hget(bindings, "version")
        places = {"log": keys.log("", "e"), "bindings": bindings, "guard": "g"}
        self._run(scripts.LOG, (version, b"tag", b"envelope"), **places)

    def _wake(self) -> None:
        notifier = self.store.notifier
        notifier._waits_at = "q"
        self._run(scripts.WAKE, (1000,), wakeup=notifier._wakeup, guard="g")

    def _run(self, script, arguments, **places) -> None:
        posts = []
        command, script = script.over(None, arguments, **places)
        self.store._wire.post(command, posts.append, script)
        self.store.wait_for_replies()
        if isinstance(posts[0], ReliqError):
            raise posts[0]


@pytest.fixture(scope="module")
def full():
    """Return a queue with a message of each kind, on a server that can be filled."""
    from tests.support.servers import RedisServer

    server = RedisServer(extra=["--maxmemory-policy", "noeviction"])
    try:
        with closing(Full(server.start())) as queue:
            yield queue
    finally:
        server.destroy()


def rows(full):
    """Return name -> (preparation, operation, the tags that a successful call removes)."""
    found = {name: (lambda: None, *row) for name, row in full.operations().items()}
    removed = {"moved": {full.died.tag}}
    return found | {name: (*row, removed.get(name, ())) for name, row in full.others().items()}


def script_of(name):
    """Return the name of the script that an operation is about."""
    return SCRIPT_OF.get(name, name.split(" ")[0])


def test_every_script_has_a_row(full):
    """Each Lua file has an operation here, and the operation runs it."""
    full.fresh()
    assert {path.stem for path in LUA.glob("*.lua")} == set(map(script_of, rows(full)))
    for name in rows(full):
        full.fresh()
        prepare, operation, _ = rows(full)[name]
        prepare()
        full.ran.clear()
        operation()
        assert script_of(name) in full.ran, name


def test_full_memory_stops_only_what_is_new(full):
    """A full Redis refuses only new data, and leaves no message in two places."""
    for name in rows(full):
        full.fresh()
        prepare, operation, takes = rows(full)[name]
        prepare()
        before = full.places("")
        full.raw.config_set("maxmemory", 1)
        error = None
        try:
            operation()
        except ReliqError as exc:
            error = exc
        finally:
            full.raw.config_set("maxmemory", 0)
        after = full.places("")
        stored = {tag.decode() for tag in full.raw.hkeys(K.messages)}
        assert isinstance(error, BrokerRefused) if name in REFUSED else error is None, (name, error)
        assert after.keys() == stored, name
        assert [] == [places for places in after.values() if len(places) > 1], name
        assert set() == before.keys() - after.keys() - set(takes), name
        if error is not None:
            assert before == after, name


class FullLimited(Limited, Full):
    """The same, of a queue with limits."""


def test_full_memory_stops_no_queue_with_limits():
    """The state of a rate and the mark of an early ack need no free memory."""
    from tests.support.servers import RedisServer

    server = RedisServer(extra=["--maxmemory-policy", "noeviction"])
    try:
        with closing(FullLimited(server.start())) as full:
            for name in full.operations():
                full.fresh()
                operation, takes = full.operations()[name]
                before = full.places("")
                full.raw.config_set("maxmemory", 1)
                try:
                    operation()
                finally:
                    full.raw.config_set("maxmemory", 0)
                after = full.places("")
                stored = {tag.decode() for tag in full.raw.hkeys(K.messages)}
                assert after.keys() == stored, name
                assert [] == [places for places in after.values() if len(places) > 1], name
                assert before.keys() - after.keys() == set(takes), name
    finally:
        server.destroy()


def test_full_memory_and_a_key_of_another_type(full):
    """A script that meets a key of another type on a full Redis neither loses nor doubles one."""
    found = []
    for name in full.operations():
        for key, kind, value in junk(every=False):
            if value is None:
                full.fresh()
                operation, takes = full.operations()[name]
                before = full.places(key)
                put(full.raw, key, kind, None)
                full.raw.config_set("maxmemory", 1)
                try:
                    wrong = problem_of(full, name, operation, takes, before, key, None)
                finally:
                    full.raw.config_set("maxmemory", 0)
                if wrong:
                    found.append((name, key, wrong))
    assert "" == "\n".join(map(str, found))


def test_a_user_without_one_right(full):
    """A script that may not call one of its commands neither loses nor doubles a message."""
    found = []
    full.raw.acl_setuser("u", enabled=True, nopass=True, keys=["*"], commands=["+@all"])
    usual, limited = full.store, full.connected(None, "u:x@")
    try:
        for name in full.operations():
            script = getattr(scripts, script_of(name).upper())
            for command in sorted(rights.called_by(script)):
                full.fresh()
                full.store = limited
                operation, takes = full.operations()[name]
                before = full.places("")
                full.raw.acl_setuser(
                    "u", enabled=True, nopass=True, commands=["+@all", f"-{command}"]
                )
                wrong = problem_of(full, name, operation, takes, before, "", None)
                full.store = usual
                if "ack" in name and command == "hdel":
                    continue  # an envelope may be left; no worker starts without this right
                if wrong:
                    found.append((name, command, wrong))
    finally:
        full.store = usual
        limited.close()
        full.raw.acl_deluser("u")
    assert "" == "\n".join(map(str, found))


def test_a_temporary_queue_is_consumed_again(full):
    """A consumer of a queue with an expiry continues after a reconnect to a full Redis."""
    url = f"reliq://127.0.0.1:{full.injector.port}/0"
    full.raw.flushall()
    bodies, queue = [], Queue("temporary", expires=60)

    def take(body, message):
        bodies.append(body)
        message.ack()
        if body == "x":
            full.raw.config_set("maxmemory", 1)
            full.raw.client_kill_filter(_type="normal", skipme=True)

    with Connection(url) as connection:
        for body in "xy":
            connection.Producer().publish(body, routing_key="temporary", declare=[queue])
        try:
            while len(bodies) < 2:
                with (
                    suppress(BrokerUnavailable),
                    connection.ensure_connection().Consumer(queue, callbacks=[take]) as consumer,
                ):
                    consumer.qos(prefetch_count=1)
                    while len(bodies) < 2:
                        connection.drain_events(timeout=5)
        finally:
            full.raw.config_set("maxmemory", 0)
    assert ["x", "y"] == bodies


@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.slow)])
def test_workers_work_off_what_has_filled_it(redis_factory, tmp_path, pool):
    """Workers that reconnect, or start with or without mingle, process a full Redis's queues."""
    server = redis_factory(extra=["--maxmemory-policy", "noeviction"])
    config = {"task_ignore_result": True, "result_backend": None}
    site = CelerySite(server, "reliq", tmp_path, config)
    with closing(site), server.client() as client:
        first = site.worker(pool=pool, mingle=True)
        queues = ("celery", "asks", "asks not")
        tasks = [site.send("record", 0.5, queue=name).id for name in queues for _ in range(4)]
        client.config_set("maxmemory", "1mb")
        client.client_kill_filter(_type="normal", skipme=True)
        with pytest.raises(BrokerRefused, match="OOM"):
            site.send("record")
        begun = [
            site.worker(pool=pool, mingle=True, queues=("asks", "new")),
            site.worker(pool=pool, mingle=False, queues=("asks not",)),
        ]
        for task in tasks:
            site.journal.wait_finished(task, timeout_s=30)
        for worker in (first, *begun):
            assert worker.running
            assert "Traceback" not in worker.log()
            assert 0 == worker.shut_down()
        for name in queues:
            site.settled(name)
