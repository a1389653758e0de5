"""Processes that fork; each function is one process of test_forks.py.

Arguments: the function, the URL, then the arguments of the function. A fork in C runs no hooks of
Python. An alarm ends a process that hangs.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings

from kombu import Connection, Consumer, Queue

import reliq
from reliq.forks import renew
from reliq.message.delivery_tag import new_tag
from reliq.routing.publish_ids import PUBLISHER

FORKS = {"in C": ctypes.PyDLL(None).fork, "in Python": os.fork}
FAST = {
    "visibility_timeout": 1.2,
    "restore_interval": 0.2,
    "orphan_grace": 0.5,
    "poll_interval": 0.5,
    "probe_interval": 0.5,
}
# A tick every half second.
SLOWER = {"visibility_timeout": 3.0, "restore_interval": 0.6}


def wait_for(children):
    """Wait for the children; fail if one of them failed."""
    for child in children:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def leave(connection, how):
    """End a child in one of the usual ways."""
    if how == "release":
        connection.release()
    if how == "exit":
        sys.exit(0)
    os._exit(0)


def siblings(url, fork, used, how):
    """Let four children and the parent publish 25 messages each over an inherited connection.

    Before the forks, the parent has only connected, or has published, or also holds a message.
    """
    connection = Connection(url, transport_options=FAST)
    connection.ensure_connection()
    producer, held = connection.Producer(), None
    if used != "connected":
        connection.default_channel.queue_declare("q")
        producer.publish("first", routing_key="q")
    if used == "holding":
        held = connection.default_channel.basic_get("q")
    children = []
    for n in range(4):
        child = FORKS[fork]()
        if child == 0:
            signal.alarm(20)
            for i in range(25):
                producer.publish([n, i], routing_key="q")
            leave(connection, how)
        children.append(child)
    for i in range(25):
        producer.publish(["parent", i], routing_key="q")
    wait_for(children)
    producer.publish("last", routing_key="q")
    if held is not None:
        time.sleep(FAST["visibility_timeout"] * 1.5)  # its lease is renewed meanwhile
        held.ack()
    connection.release()


def tags():
    """Print tags of a process that has only accessed the package, and of its children."""
    fork = FORKS["in C"]
    assert reliq.once
    for _ in range(4):
        if fork() == 0:
            break
    os.write(1, "".join(new_tag(5) + "\n" for _ in range(500)).encode())


def busy(url):
    """Publish from a thread over the connection that children inherit; they never wait for it."""
    connection = Connection(url, transport_options=FAST)
    connection.default_channel.queue_declare("q")
    stop, count = threading.Event(), []

    def publish():
        producer = connection.Producer()
        while not stop.is_set():
            producer.publish("from the thread", routing_key="q")
            count.append(1)

    thread = threading.Thread(target=publish)
    thread.start()
    children = []
    for _ in range(20):
        time.sleep(0.01)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            connection.Producer().publish("from a child", routing_key="q")
            os._exit(0)
        children.append(child)
    wait_for(children)
    stop.set()
    thread.join()
    connection.release()
    print(len(count) + len(children))


def waiting(url):
    """Fork in C while a thread waits for the broker and holds all its locks."""
    connection = Connection(url, transport_options=FAST)
    connection.default_channel.queue_declare("q")
    print("ready", flush=True)
    sys.stdin.readline()  # the broker is frozen now
    producer = connection.Producer()
    thread = threading.Thread(target=producer.publish, args=("x",), kwargs={"routing_key": "q"})
    thread.start()
    while sys._current_frames()[thread.ident].f_code.co_name != "wait":
        time.sleep(0.001)
    child = FORKS["in C"]()
    if child == 0:
        signal.alarm(20)
        producer.publish("from a child", routing_key="q")
        os._exit(0)
    print("forked", flush=True)
    thread.join()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    connection.release()


def orphaned(url):
    """Close and exit before the children, which publish before and after that."""
    connection = Connection(url, transport_options=FAST)
    connection.default_channel.queue_declare("q")
    producer = connection.Producer()
    producer.publish("from the parent", routing_key="q")
    reader, writer = os.pipe()
    for n in range(3):
        if FORKS["in C"]() == 0:
            os.close(writer)
            if n:  # one child does not use the connection before its parent has exited
                producer.publish("at once", routing_key="q")
            os.read(reader, 1)
            for _ in range(10):
                producer.publish("later", routing_key="q")
            if n == 1:  # without an orderly exit
                os._exit(0)
            sys.exit(0)
    connection.release()


def image(url):
    """Hold a message, renew the identities, and publish, like a copy of a process image."""
    connection = Connection(url, transport_options=FAST)
    connection.default_channel.queue_declare("q")
    producer = connection.Producer()
    producer.publish("held", routing_key="q")
    held = connection.default_channel.basic_get("q")
    before = new_tag(5)[14:24], PUBLISHER.id, connection.transport.link.session.id
    renew()
    after = new_tag(5)[14:24], PUBLISHER.id, connection.transport.link.session.id
    assert not set(before) & set(after)
    held.ack()  # the original process holds it
    for n in range(5):
        producer.publish(n, routing_key="q")
    connection.release()


def claims(url):
    """Leave the block of a claim first in a child, which did not take the claim."""
    for name, fork in FORKS.items():
        with reliq.once(name, 60, lease=5, url=url) as first:
            assert first
            child = fork()
            if child:
                wait_for([child])
                with Connection(url, transport_options=FAST) as other:
                    store = other.transport.link.store
                    store.connect()
                    assert store.claim(name, "another", 5) > 0  # taken, and not finished
        if not child:
            os._exit(0)


def often(url, fork_every_s):
    """Hold a message for many leases, and fork constantly, as subprocesses with hooks do."""
    got, options = [], {**FAST, **SLOWER}
    with (
        Connection(url, transport_options=options) as connection,
        Consumer(connection, Queue("q"), on_message=got.append, prefetch_count=1),
    ):
        while not got:
            connection.drain_events(timeout=10)
        print("holding", flush=True)
        until = time.monotonic() + 2 * options["visibility_timeout"]
        while time.monotonic() < until:
            subprocess.run(["true"], preexec_fn=int, check=True)
            time.sleep(float(fork_every_s))
        got[0].ack()


def spooled(urls, fork_every_s):
    """Publish to a spool, then only fork until standard input ends."""
    with Connection(urls, transport_options=FAST, failover_strategy="primary") as connection:
        connection.ensure_connection(max_retries=5, interval_start=0, interval_step=0.1)
        for n in range(50):
            connection.Producer().publish(n, routing_key="q")
        if FORKS["in C"]() == 0:  # without hooks, the child has not reopened the spool
            try:
                connection.Producer().publish("from a child", routing_key="q")
            except reliq.BrokerRefused as exc:
                os._exit("py-call-osafterfork" not in str(exc))
            os._exit(1)
        assert 0 == os.wait()[1]
        print("spooled", flush=True)
        threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
        while True:
            subprocess.run(["true"], preexec_fn=int, check=True)
            time.sleep(float(fork_every_s))


def hold(connection, count):
    """Return *count* messages, whose leases the background loop renews."""
    held = []
    while len(held) < count:
        message = connection.default_channel.basic_get("q")
        if message is not None:
            held.append(message)
    return held


def fork_for(seconds, connection):
    """Fork every few ms; return the numbers of forks and of children that published."""
    until, forks, published = time.monotonic() + seconds, 0, 0
    while time.monotonic() < until:
        publishes = forks % 5 == 0
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            if publishes:
                connection.Producer().publish("from a child", routing_key="q")
            os._exit(0)
        wait_for([child])
        published += publishes
        forks += 1
        time.sleep(0.003)
    return forks, published


def storm(url, seconds):
    """Fork while threads publish, over shared and own connections, and background loops tick."""
    options = {**FAST, "visibility_timeout": 0.3}
    shared, own, consumer = (Connection(url, transport_options=options) for _ in range(3))
    shared.default_channel.queue_declare("q")
    stop, count = threading.Event(), []

    def publish(connection):
        producer = connection.Producer()
        while not stop.is_set():
            producer.publish("from a thread", routing_key="q")
            count.append(1)

    threads = [threading.Thread(target=publish, args=(it,)) for it in (shared, shared, own)]
    for thread in threads:
        thread.start()
    held = hold(consumer, 5)
    forks, published = fork_for(float(seconds), shared)
    stop.set()
    for thread in threads:
        thread.join()
    for message in held:
        message.ack()
    consumer.release()
    shared.release()
    print(json.dumps([forks, len(count) + published]))


if __name__ == "__main__":
    # Python 3.12 and newer warn of the forks beside threads that these tests are about.
    warnings.filterwarnings("ignore", r".* is multi-threaded, use of fork", DeprecationWarning)
    signal.alarm(50 if "storm" not in sys.argv else 100)
    # Python itself hangs in a child without hooks if another thread has requested the GIL, which
    # a thread does after it has waited for this interval.
    sys.setswitchinterval(60)
    globals()[sys.argv[1]](*sys.argv[2:])
