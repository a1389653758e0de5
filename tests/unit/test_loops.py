"""A loop takes turns in one thread after another, and has none while the process forks."""

import subprocess
import sys

SETUP = """
import os, threading
from queue import Queue
from reliq import forks
from reliq.loops import Loop

seen = Queue()

def turns(run):
    yield 0.0
    while not run.over:
        seen.put(threading.current_thread())
        yield 3600.0
    seen.put("end")

def fork():
    child = os.fork()
    if not child:
        os._exit(threading.active_count() - 1)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

loop = Loop("turns", turns)
loop.start()
first = seen.get(timeout=5)
"""


def run(code):
    """Run *code* in a process that has started a loop and seen its first turn."""
    subprocess.run([sys.executable, "-c", SETUP + code], check=True, timeout=30)


def test_turns_continue_in_another_thread_after_a_fork():
    """The turns of a loop continue in a new thread of the parent; its child has none."""
    run("""
fork()
assert not first.is_alive()
loop.cut()
second = seen.get(timeout=5)
assert second is not first
loop.stop()
assert "end" == seen.get_nowait() and not second.is_alive()
""")


def test_a_due_turn_precedes_a_fork():
    """Forks in quick succession do not prevent the turns."""
    run("""
def make_due():
    loop.run._next_turn = 0.0

forks.register(forks.Part("owner", hold=make_due))
fork()
for _ in range(3):
    fork()  # directly after the fork before, whose thread has a due turn
    assert seen.get_nowait() is not first
""")


def test_a_loop_that_is_stopped_during_a_fork_ends_its_turns():
    """The owner of a loop may stop it while it has no thread."""
    run("""
forks.register(forks.Part("owner", hold=loop.stop))
fork()
assert "end" == seen.get_nowait()
assert not loop.threaded and 1 == threading.active_count()
""")


def test_a_loop_that_is_started_during_a_fork_begins_afterwards():
    """No thread starts while the process forks."""
    run("""
loop.stop()
assert "end" == seen.get_nowait()
forks.register(forks.Part("owner", hold=loop.start))
fork()
assert seen.get(timeout=5) is not first
""")
