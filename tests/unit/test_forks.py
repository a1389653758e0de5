"""A process recognizes that it is a fork."""

import subprocess
import sys

import pytest

from reliq import forks

CODE = """
import ctypes, os, sys
from reliq import forks
if sys.argv[1] == "pid":
    forks.PROCESS = forks._Pid()
    forks.PROCESS[0] = 1
class Owner:
    lock = forks.OwnLock()
owner, seen = Owner(), [forks.here()]
held = owner.lock
held.acquire()
for _ in range(2):
    if ctypes.PyDLL(None).fork():
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
        assert forks.here() == seen[-1] and owner.lock is held
        break
    assert owner.lock is not held and owner.lock.acquire(blocking=False)
    held = owner.lock
    seen.append(forks.here())
    assert len(set(seen)) == len(seen)
"""


@pytest.mark.parametrize("mark", ["page", "pid"])
def test_a_child_in_c_and_its_child_are_others(mark):
    """Children that C code forks, and their children, are distinct processes with own locks.

    They are recognized by the page that a fork empties or, without such a page, by the pid.
    """
    done = subprocess.run([sys.executable, "-c", CODE, mark], check=False, timeout=30)
    assert 0 == done.returncode


def test_the_order_at_a_fork():
    """Before a fork, all threads stop before the first lock is taken; the parent undoes both."""
    code = """
import os
from reliq import forks
told = []
for name in "ab":
    forks.register(forks.Part(name, *(
        (lambda what=what, name=name: told.append(what + name))
        for what in ("stop ", "hold ", "release ", "start ", "forget ")
    )))
if os.fork():
    os.wait()
    print(told)
else:
    print(told, flush=True)
    os._exit(0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=30, capture_output=True, text=True
    )
    before = ["stop a", "stop b", "hold a", "hold b"]
    after = ["release b", "release a", "start b", "start a"]
    assert [str([*before, "forget a", "forget b"]), str([*before, *after])] == (
        done.stdout.splitlines()
    )


def test_this_process_is_here():
    """The id of a process does not change."""
    assert forks.here() == forks.here()
