"""`reliq acl`: the operations of each role run under its rule and use all of the rule."""

import contextlib
import json
import re
import subprocess
from urllib.parse import quote
from urllib.request import urlopen

import pytest
import redis
from kombu import Connection, Consumer, Exchange, Queue

import reliq
from reliq import BrokerRefused
from reliq.admin import ROLES, Inspector, acl_rule
from reliq.batches.callbacks import CallbackMessage, packed
from reliq.batches.jobs import DONE, Change, Note
from reliq.store.urls import connect
from tests.contract.jobs import job_of
from tests.integration.cli.test_migrate import LAYOUT
from tests.integration.kombu_client import Taker, declare, publish
from tests.integration.test_readme import claim_twice, exercise, take_and_die
from tests.integration.web.test_guard import walk
from tests.integration.web_client import fill, kill, page
from tests.support.audits import assert_balanced
from tests.support.commands import RELIQ, data, environment, run
from tests.support.sentinels import SentinelGroup
from tests.support.waiting import wait_until
from tests.support.workers import pools

PASSWORD = "s3cret"


class Guarded:
    """A server with a user of one role, and the commands that the user has used."""

    def __init__(self, server, role, **options):
        self.server, self.role = server, role
        self.admin = server.client(decode_responses=True)
        self.rule = acl_rule(role, password=PASSWORD, **options)
        assert "OK" == self.admin.execute_command(*self.rule.split())
        prefix = options.get("prefix", "")
        self.options = {"global_keyprefix": prefix} if role != "migration" else {}
        self.url = server.url("reliq", db=1).replace("://", f"://reliq-{role}:{quote(PASSWORD)}@")
        # A pass over a queue does not trust leases that are older than the server process.
        wait_until(lambda: self.admin.info("server")["uptime_in_seconds"] >= 1)
        self.admin.config_resetstat()

    @property
    def allowed(self):
        """The commands that the rule names."""
        return {word[1:] for word in self.rule.split() if word.startswith("+")}

    @property
    def used(self):
        """The commands that any user has run, by calls and in scripts."""
        stats = self.admin.info("commandstats")
        return {name.removeprefix("cmdstat_") for name in stats}

    @property
    def refused(self):
        """The commands that the server refused to the user; Redis 6.2 names no subcommands."""
        log = [entry for entry in self.admin.acl_log() if entry["username"] != "default"]
        return {entry["object"] for entry in log}

    def connect(self, **options):
        """Return a connection as the user."""
        return Connection(self.url, transport_options={**self.options, **options})

    def check(self, *unused):
        """Fail unless the server refused no command and the user has used every allowed command.

        Exceptions: *unused*, and the PING that checks a connection after 25 s of silence.
        """
        assert set() == self.refused
        if self.server.version >= (7,):  # 6.2 does not count subcommands
            assert {"ping", *unused} == self.allowed - self.used


@pytest.fixture
def guarded(redis_factory):
    """Return a function that starts a server with a user of one role."""
    made = []

    def make(role, **options):
        made.append(Guarded(redis_factory(), role, **options))
        return made[-1]

    yield make
    for item in made:
        assert_balanced(item.server.url("reliq", db=1), item.options)


def use_producer(guarded):
    """Declare, bind and publish in every possible way."""
    with guarded.connect() as connection:
        channel = connection.default_channel
        connection.ensure_connection()
        exchange = Exchange("shop", "topic")
        limits = {"x-max-length": 2, "x-dead-letter-exchange": "shop"}
        for name, arguments in (
            ("plain", {"x-expires": 60_000}),
            ("small", limits),
            ("bytes", {"x-max-length-bytes": 300}),
        ):
            Queue(name, exchange, routing_key=f"{name}.#", queue_arguments=arguments)(
                channel
            ).declare()
        Queue("divided", queue_arguments={"x-partitions": 2})(channel).declare()
        channel.queue_bind("small", "shop", "small.#")  # the binding exists: nothing changes
        producer = connection.Producer()
        for name in ("plain", "small", "bytes"):
            for number in range(4):
                producer.publish(number, exchange=exchange, routing_key=f"{name}.x", retry=True)
        publish(connection, "created", 1, 2, headers={"x-delay": 5}, expiration=60)
        publish(connection, "small", 3, headers={"x-delay": 60_000})
        assert {"plain", "small", "bytes"} <= {queue for queue, *_ in channel.list_bindings()}
        channel.queue_declare("plain", passive=True)
        channel.queue_unbind("plain", "shop", "plain.#")
        # A declaration of a queue whose x-expires has passed first deletes the expired queue.
        brief = Queue("brief", exchange, routing_key="brief", queue_arguments={"x-expires": 1})
        wait_until(lambda: brief(channel).declare() and "unlink" in guarded.used)
        # Publishers sometimes check for the remains of killed publishers.
        wait_until(
            lambda: publish(connection, "lucky", 1) or {"hrandfield", "pttl"} <= guarded.used,
            interval_s=0,
        )
        with producer.batch():
            producer.publish(1, routing_key="plain")
    use_batch(guarded)


def use_batch(guarded):
    """Make a batch of jobs, change it and read it."""
    with store_of(guarded) as store:
        batches = store.batches
        batches.open_batch("b", "enrol", {"tenant": "7"})
        batches.change("b", [Change("enter", job, "waiting", tag="t") for job in ("i", "j")])
        batches.change("b", [Change("withdraw", "i", tag="t"), Change("begin", "j", token=1)])
        assert batches.note("b", Note("j", 0, 1, progress=(1, 2, ""), report="no price"))
        assert (1, 1) == (len(batches.progress("b", 9)), len(batches.reports("b", 9)))
        batches.change("b", [Change("end", "j", "failed", token=1), Change("seal")])
        batches.note_published("b", "complete")
        batches.change("b", [Change("replay", "j"), Change("cancel")])
        look_at_batch(batches)


def look_at_batch(batches):
    """Read everything about the batch."""
    assert 1 == batches.batch("b").total
    assert ["b"] == batches.batches(10)
    assert "waiting" == job_of(batches, "b", "j").state
    assert 1 == len([job for part in batches.jobs("b") for job in part])
    assert [] == batches.failures("b", 10)
    batches.progress("b", 10), batches.reports("b", 10)


def cancel_batch(operator, owner_url):
    """Read the batches of another user, seal one with a pending callback, and cancel the other."""
    with contextlib.closing(connect(owner_url, operator.options, "owner/1")) as store:
        message = CallbackMessage("", "callbacks", b"x", 0, "a" * 30)
        store.batches.open_batch("c", "enrol", {"on_complete": packed(message)})
        store.batches.open_batch("b", "enrol", {})
        store.batches.change("b", [Change("enter", "j", "waiting", tag="t")])
    with Inspector(operator.url, operator.options) as inspector:
        assert ["b", "c"] == sorted(item.id for item in inspector.batches())
        assert ["j"] == [job.id for job in inspector.jobs("b", "waiting")]
        assert [] == inspector.job_failures("b")
        assert [True, True] == [result.balanced for result in inspector.audit_batches()]
        assert inspector.seal_batch("c")
        assert ["complete"] == inspector.batch("c").published
        assert 1 == inspector.status("callbacks").ready
        inspector.delete("callbacks")
    with contextlib.closing(connect(owner_url, operator.options, "owner/1")) as store:
        store.batches.forget_batch("c")
    with store_of(operator) as store:
        look_at_batch(store.batches)
        assert {"t": ""} == store.reads.whereabouts("orders", ["t"])
        assert [DONE] == store.batches.change("b", [Change("cancel")]).outcomes


@contextlib.contextmanager
def store_of(guarded):
    """Return a store of the user."""
    store = connect(guarded.url, guarded.options, "batches/1")
    try:
        yield store
    finally:
        store.close()


def test_a_producer(guarded):
    """A producer publishes and declares under its rule, but may not run passes or reserve."""
    producer = guarded("producer")
    use_producer(producer)
    with producer.connect() as connection, pytest.raises(BrokerRefused, match="lacks a permission"):
        connection.default_channel.basic_get("plain")
    assert {"info", "zmscore"} == producer.refused
    producer.admin.acl_log_reset()
    producer.check()


def test_a_producer_that_confirms(guarded):
    """A rule contains WAIT or WAITAOF only if `confirm` is requested."""
    assert "+wait" not in acl_rule("producer")
    assert "+waitaof" in acl_rule("worker", confirm="fsynced")
    producer = guarded("producer", confirm="replicated")
    with producer.connect(confirm="replicated", confirm_timeout=0.05) as connection:
        declare(connection, "orders")
        with pytest.raises(reliq.NotConfirmed):
            publish(connection, "orders", 1)
    assert set() == producer.refused


@pytest.mark.slow
def test_a_worker(guarded):
    """A worker publishes, consumes, returns the messages of dead consumers, and claims."""
    worker = guarded("worker")
    use_producer(worker)
    options = {"visibility_timeout": 3, "restore_interval": 0.2, "orphan_grace": 0.2}
    with worker.connect(**options) as connection:
        exercise(connection)
        claim_twice(worker.url)
        take_and_die(worker.url, options)
        with connection.SimpleQueue("orders") as queue:
            message = queue.get(timeout=30)
            assert 1 == message.headers["x-delivery-count"]
            message.ack()
        with connection.channel() as channel:
            fan = Queue("fan", Exchange("fan", "fanout"), auto_delete=True)
            with Consumer(channel, [fan], callbacks=[lambda body, message: message.ack()]):
                connection.Producer().publish("x", exchange="fan")
                connection.drain_events(timeout=5)
        waiting = Taker(connection, "created", auto_declare=False)
        waiting.take(2)
        assert waiting.gets_nothing()
        # The wait for one queue is interrupted and starts again for two queues.
        second = Taker(connection, "bytes", auto_declare=False)
        second.take()[0].requeue()
    with store_of(worker) as store:
        store.batches.open_batch("c", "enrol", {})  # the consumer has already checked the other one
        assert "c" in store.batches.next_batches(10, 1000)
        assert {"t": ""} == store.reads.whereabouts("orders", ["t"])
        assert [] == store.job_events("orders", 10)
        store.forget_job_events("orders", [1])
        store.batches.forget_batch("b")
    worker.check()


@pytest.mark.slow
@pytest.mark.timeout(400, method="signal")  # thirty processes, on a machine that may be busy
def test_an_operator(guarded, redis_factory, tmp_path):
    """Every reliq command runs under the rule of operators, also with a key prefix."""
    operator = guarded("operator", prefix="shop:", config=True)
    other = redis_factory()
    prefix = ("--prefix", "shop:")
    owner_url = operator.server.url("reliq", db=1)
    owner = Connection(owner_url, transport_options=operator.options)
    with owner as connection:
        with connection.SimpleQueue("orders"):
            declare(connection, "other", max_length_bytes=100_000)
            declare(connection, "small", max_length=1)
            for name in ("orders", "other"):
                publish(connection, name, *range(3), headers={"task": "shop.ship"})
                publish(connection, name, 9, headers={"x-delay": 60_000})
        taker = Taker(connection, "orders", "other", auto_declare=False, prefetch_count=4)
        for message in taker.take(3):
            message.reject()
        url = operator.url
        assert 1 == len(data(url, "consumers", *prefix))
        taker.consumer.cancel()
    operator.admin.config_resetstat()
    assert 3 == len(data(url, "status", "--interval", 0, *prefix)["queues"])
    for state in ("ready", "delayed", "unacked", "dead"):
        data(url, "peek", "orders", "--state", state, *prefix)
    look_around(url, *prefix)
    cancel_batch(operator, owner_url)
    dead_letters = data(url, "dead", "list", "orders", *prefix)
    dead_letters += data(url, "dead", "list", "other", *prefix)
    first = dead_letters[0]
    data(url, "dead", "show", first["queue"], first["tag"], *prefix)
    file = tmp_path / "letters"
    data(url, "dead", "export", first["queue"], file, *prefix)
    data(url, "dead", "import", first["queue"], file, *prefix)
    data(url, "dead", "replay", first["queue"], "--tag", first["tag"], *prefix)
    there = "other" if first["queue"] == "orders" else "orders"
    data(url, "dead", "replay", first["queue"], "--to", "small", *prefix)
    data(url, "dead", "replay", there, *prefix)
    data(url, "dead", "purge", "other", "--yes", *prefix)
    data(url, "queue", "pause", "orders", *prefix)
    operator.admin.select(1)
    operator.admin.delete("shop:reliq:{orders}:notification")
    data(url, "queue", "resume", "orders", *prefix)
    data(url, "queue", "set", "orders", "delivery-limit=3", *prefix)
    done = run(None, "move", "orders", "--from", url, "--to", other.url(), *prefix)
    assert 0 == done.returncode, done.stderr
    done = run(None, "move", "orders", "--from", other.url(), "--to", url, *prefix)
    assert 0 == done.returncode, done.stderr
    data(url, "queue", "purge", "other", "--yes", *prefix)
    assert_balanced(operator.server.url("reliq", db=1), operator.options)
    data(url, "queue", "delete", "orders", "--yes", *prefix)
    operator.admin.delete("shop:reliq:{%}:exchanges", "shop:reliq:bindings:{orders}")
    assert 0 == run(None, "move", "orders", "--from", other.url(), "--to", url, *prefix).returncode
    # Scripts run these commands for workers only: for a consumer with many leases, for a message
    # above the limit, and for failed deliveries.
    operator.check("zrank", "lpush", "ltrim")
    assert_balanced(other.url(), operator.options)


def look_around(url, *prefix):
    """Audit, scrape, watch, and run the doctor, which finds no missing permission."""
    data(url, "audit", *prefix)
    assert "reliq_up" in scraped(url, *prefix)
    (line,) = run(url, "top", "--json", "--count", 1, *prefix).stdout.splitlines()
    assert "orders" in line
    found = data(url, "doctor", *prefix)
    assert {"acl": "ok", "keys": "ok"} == {
        row["check"]: row["severity"] for row in found if row["check"] in {"acl", "keys"}
    }


def scraped(url, *arguments):
    """Return the metrics of the broker from a new exporter."""
    command = [*RELIQ, "exporter", "--port", "0", *arguments]
    with subprocess.Popen(
        command, env=environment(url), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            address = process.stdout.readline().split()[-1]
            with urlopen(address, timeout=30) as reply:
                return reply.read().decode()
        finally:
            process.terminate()
            process.wait(30)


@pytest.mark.slow
def test_an_exporter(guarded):
    """An exporter reads under its rule and cannot write."""
    exporter = guarded("exporter")
    with Connection(exporter.server.url("reliq", db=1)) as connection:
        declare(connection, "orders")
        publish(connection, "orders", 1, 2, priority=3)
        declare(connection, "empty")
        Taker(connection, "empty", auto_declare=False)  # one consumer in the register
        exporter.admin.config_resetstat()
        text = scraped(exporter.url)
    assert re.search(r'^reliq_messages_ready\{.*queue="orders".*\} 2.0$', text, re.MULTILINE)
    exporter.check()
    with exporter.connect() as connection, pytest.raises(BrokerRefused, match="permission"):
        publish(connection, "orders", 3)


def test_a_viewer(guarded):
    """A viewer reads everything under its rule and cannot write."""
    viewer = guarded("viewer")
    with Connection(viewer.server.url("reliq", db=1)) as connection:
        declare(connection, "orders")
        publish(connection, "orders", 1, 2, headers={"task": "shop.ship", "id": "id-1"})
        publish(connection, "orders", 3, headers={"x-delay": 60_000})
        taker = Taker(connection, "orders", auto_declare=False)
        taker.take()[0].reject()
        with contextlib.closing(connect(viewer.server.url("reliq", db=1), {}, "o/1")) as store:
            store.batches.open_batch("b", "enrol", {})
            store.batches.change("b", [Change("enter", "j", "waiting", tag="t")])
        viewer.admin.config_resetstat()
        with Inspector(viewer.url) as inspector:
            look_as_viewer(inspector)
    # The doctor also reads the configuration, which the rule does not allow.
    assert {"config|get" if viewer.server.version >= (7,) else "config"} == viewer.refused
    viewer.admin.acl_log_reset()
    viewer.check()
    with viewer.connect() as connection, pytest.raises(BrokerRefused, match="permission"):
        publish(connection, "orders", 3)


def look_as_viewer(inspector):
    """Read everything that the web page shows."""
    assert ["orders"] == [item.queue for item in inspector.report().queues]
    wait_until(lambda: inspector.history("orders"))
    assert 1 == len(inspector.consumers())
    (dead,) = inspector.peek("orders", "dead")
    assert ["published", "died"] == [
        item.what for item in inspector.message("orders", dead.tag).history
    ]
    assert 2 == len(inspector.find("shop.ship").found)
    assert [0, 1] == inspector.due("orders", every_s=1, points=1)
    (group,) = inspector.dead_letter_groups("orders").groups
    assert 1 == len(inspector.dead_letters("orders", fingerprint=group.fingerprint))
    assert inspector.settings("orders") is not None
    assert [True] == [result.balanced for result in inspector.audit()]
    assert ["b"] == [batch.id for batch in inspector.batches()]
    assert ["j"] == [job.id for job in inspector.jobs("b", "waiting")]
    assert [] == inspector.job_failures("b")
    assert inspector.batch("b").total == 1
    assert [True] == [result.balanced for result in inspector.audit_batches()]
    findings = inspector.doctor()
    assert {"ok", "info"} >= {item.severity for item in findings if item.check == "acl"}


@pytest.mark.slow
def test_an_operator_who_may_not_read_the_configuration(guarded):
    """Without CONFIG GET an operator sees all but the settings and cannot read server passwords."""
    operator = guarded("operator")
    (broker,) = data(operator.url, "status", "--interval", 0)["brokers"]
    assert "RDB or none" == broker["persistence"]
    found = data(operator.url, "doctor", code=0)
    (told,) = [row for row in found if row["check"] == "acl"]
    assert ("info", True) == (told["severity"], "reliq acl operator --config" in told["remedy"])
    name = "config|get" if operator.server.version >= (7,) else "config"
    assert {name} == operator.refused
    user = redis.Redis(
        port=operator.server.port, username="reliq-operator", password=PASSWORD, protocol=2
    )
    with user, pytest.raises(redis.exceptions.NoPermissionError):
        user.config_get("masterauth")


HARM = [
    ("FUNCTION", "LOAD", "#!lua name=x\nredis.register_function('f', function() end)"),
    ("SCRIPT", "FLUSH"),
    ("FLUSHALL",),
    ("ACL", "SETUSER", "reliq-worker", "allcommands"),
    ("CONFIG", "SET", "maxmemory", "1"),
    ("GET", "another"),
    ("EVAL", "return redis.call('GET', KEYS[1])", 1, "another"),
    ("EVAL", "return redis.call('FLUSHALL')", 0),
]


@pytest.mark.slow
def test_a_viewer_of_the_page(guarded):
    """The rule of a viewer is sufficient for the whole web page and allows no write."""
    viewer = guarded("viewer")
    url = viewer.server.url("reliq", db=1)
    headers = {"task": "pay", "id": "1"}
    fill(url, "q", 1, 2, 3, headers=headers)
    fill(url, "q", 4, headers={**headers, "x-delay": 600_000})
    fill(url, "divided", 1)
    with Inspector(url) as inspector:
        inspector.configure("divided", {"x-partitions": 2})
        inspector._store.batches.open_batch("b", "import", {})
        inspector._store.batches.change("b", [Change("enter", "i", "waiting", tag="t")])
        inspector._store.batches.change("b", [Change("end", "i", "failed", text="no")])
    with Connection(url) as connection:
        kill(url, "q", 1)
        Taker(connection, "q").take_bodies(1)
        with Inspector(url) as inspector:
            wait_until(inspector.consumers)
        with page(viewer.url) as browser:
            seen = walk(browser)
            assert {"/batch?id=b", "/queue?queue=q", "/dead", "/consumers"} <= {*seen}
            assert "pay" in browser.get("/search?text=pay").text
            browser.get("/batch?id=b&state=failed")
    # The doctor runs without CONFIG GET.
    assert {"config|get" if viewer.server.version >= (7,) else "config"} == viewer.refused


@pytest.mark.slow
@pytest.mark.parametrize("role", ["producer", "worker", "operator", "exporter", "viewer"])
def test_what_no_rule_allows(guarded, role):
    """No role may use another application's keys, scripts or functions, or control the server."""
    user = guarded(role)
    user.admin.set("another", "one's")
    raw = redis.Redis(
        port=user.server.port, username=f"reliq-{role}", password=PASSWORD, db=1, protocol=2
    )
    with raw:
        for command in HARM:
            if command[0] == "FUNCTION" and user.server.version < (7,):
                continue
            with pytest.raises(redis.exceptions.ResponseError, match=r"(?i)perm|can't run"):
                raw.execute_command(*command)


def test_what_a_rule_does_not_keep_apart(guarded):
    """Rules separate key prefixes, but neither databases nor EVAL effects (docs/operations.md)."""
    place = guarded("viewer", prefix="shop:")
    for db in (2, 3):
        with contextlib.closing(place.server.client(db=db)) as owner:
            owner.hset("shop:reliq:x", "m", "of another database")
            owner.hset("else:reliq:x", "m", "of another prefix")
    login = {"username": "reliq-viewer", "password": PASSWORD}
    user = redis.Redis(port=place.server.port, db=2, protocol=2, **login)
    with contextlib.closing(user):
        assert {b"m": b"of another database"} == user.hgetall("shop:reliq:x")
        user.execute_command("SELECT", 3)
        assert b"of another database" == user.eval(
            "redis.log(redis.LOG_WARNING, 'a line') return redis.call('HGET', KEYS[1], 'm')",
            1,
            "shop:reliq:x",
        )
        with pytest.raises(redis.exceptions.NoPermissionError):
            user.hgetall("else:reliq:x")


@pytest.mark.slow
@pytest.mark.parametrize("pool", pools("prefork", of=("prefork", "threads")))
def test_real_workers(guarded, site_factory, pool):
    """Celery workers run tasks, die and recover under the rule of workers without a refusal."""
    user = guarded("worker")
    site = site_factory(user.server)
    site.broker = user.url
    start = {"pool": pool, "concurrency": 2, "arguments": ["-E"], "mingle": True}
    first = site.worker(**start)
    held = site.send("long_first", 60)
    wait_until(lambda: site.journal.runs(held.id) == 1)
    second = site.worker(**start)
    first.kill_group()
    results = [
        held,
        site.send("fail_first", 2),
        site.send("requeue_first", 1),
        site.send("add", 1, 2, countdown=0.3),
        site.send("add", 1, 2, priority=5, expires=60),
        *(site.send("record_late") for _ in range(20)),
    ]
    for result in results:
        result.get(timeout=60)
    rejected = site.send("reject_first")
    site.wait_counts(dead=1)
    assert {second.name} == {
        name for reply in site.app.control.ping(timeout=10, limit=1) for name in reply
    }
    site.app.control.revoke(rejected.id)
    site.app.control.broadcast("pool_grow", arguments={"n": 1}, reply=True, limit=1, timeout=10)
    assert 0 == second.shut_down()
    assert set() == user.refused


@pytest.mark.slow
def test_a_migration(guarded):
    """A migration's rule suffices to move messages from Kombu's transport to reliq and back."""
    migration = guarded("migration")
    theirs = migration.server.url("redis", db=1)
    with Connection(theirs) as connection, connection.SimpleQueue("orders") as queue:
        queue.put("waits")
    kombu = migration.url.replace("reliq://", "redis://")
    (step,) = data(None, "migrate", kombu, migration.url)
    assert 1 == step["moved"]
    take_and_die(theirs, {})
    (plan,) = data(None, "migrate", kombu, migration.url, "--dry-run")
    assert 1 == plan["unacked"]
    (step,) = data(None, "migrate", kombu, migration.url, "--unacked-older", 0)
    assert 1 == step["moved"]
    (step,) = data(None, "migrate", migration.url, kombu, "orders", *LAYOUT)
    assert 2 == step["moved"]
    assert set() == migration.refused


def test_behind_sentinels():
    """A worker connects with one rule at the server and another rule at the Sentinels."""
    group = SentinelGroup(replicas=0, sentinels=1)
    try:
        group.start()
        server, sentinel = group.master().client(), group._client(group.ports[0])
        server.execute_command(*acl_rule("worker", password=PASSWORD, sentinels=True).split())
        with sentinel:
            sentinel.execute_command(*acl_rule("sentinel", password=PASSWORD).split())
            options = {
                **group.options,
                "sentinel_username": "reliq-sentinel",
                "sentinel_password": PASSWORD,
            }
            url = group.url().replace("://", f"://reliq-worker:{PASSWORD}@")
            with Connection(url, transport_options=options) as connection:
                exercise(connection)
            assert [] == sentinel.execute_command("ACL", "LOG")
        assert [] == server.execute_command("ACL", "LOG")
        assert_balanced(group.url(), group.options)
    finally:
        group.destroy()


@pytest.mark.slow
def test_each_role_alone_and_all_of_them():
    """`reliq acl` prints one line for each role; with --json it prints an object by role."""
    rules = json.loads(run(None, "acl", "--json").stdout)
    assert list(ROLES) == list(rules)
    assert list(rules.values()) == run(None, "acl").stdout.splitlines()
    one = run(None, "acl", "worker", "--user", "celery", "--prefix", "a*b:").stdout
    start = "ACL SETUSER celery reset on ><password> ~a\\*b:reliq:* +blpop "
    assert one.startswith(start), one
    assert set(re.findall(r"\+(\S+)", rules["producer"])) < set(re.findall(r"\+(\S+)", one))
    done = run(None, "acl", "--user", "a b")
    assert (2, True) == (done.returncode, "user without spaces" in done.stderr)


def test_a_rule_that_lacks_something_is_found_by_the_doctor(guarded):
    """The doctor names each missing command, its consequence and the remedy."""
    operator = guarded("operator")
    less = operator.rule.replace(" +scan", "")
    operator.admin.execute_command(*less.split())
    with Inspector(operator.url) as inspector:
        found = [item for item in inspector.doctor() if item.check == "acl"]
    config, scan = found
    assert config.message.startswith("this user may not use CONFIG GET:")
    assert scan.message.startswith("this user may not use SCAN:")
    assert "give it the rule that `reliq acl` prints" == scan.remedy
