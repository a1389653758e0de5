"""Packing: the form of a command on the wire, and signals that arrive meanwhile."""

import subprocess
import sys
import textwrap

import pytest

from reliq.client.stream import Prefix, pack, parts_of

STORM = textwrap.dedent(
    """
    import signal
    from reliq.client.stream import pack

    class Interrupted(BaseException):
        pass

    def interrupt(*_):
        raise Interrupted

    signal.signal(signal.SIGALRM, interrupt)
    command = ("EVALSHA", *range(1000), *(number / 7 for number in range(1000)))
    for _ in range(300):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.002)
            while True:
                pack(command)
        except Interrupted:
            pass
    print("alive")
    """
)


def test_a_command_is_an_array_of_its_parts():
    """Numbers are sent as Python prints them, names that are not UTF-8 as they were received."""
    packed = pack(("SET", b"\xff", "\udcff", "é", -7, 0.25))
    assert (
        b"*6\r\n$3\r\nSET\r\n$1\r\n\xff\r\n$1\r\n\xff\r\n$2\r\n\xc3\xa9\r\n$2\r\n-7\r\n$4\r\n0.25\r\n"
        == packed
    )


@pytest.mark.parametrize(
    "rest",
    [
        (),
        ("tag",),
        ("é\udcff",),
        (b"\xff",),
        (7,),
        ("a", b"b"),
        (*range(12), "\udcff"),
        ("a",) * 150,
    ],
    ids=lambda rest: f"{len(rest)}-{rest[:1]}",
)
def test_what_begins_with_a_prefix(rest):
    """A command with a prefix is packed like the same command without one."""
    parts = ("EVALSHA", "sha", 2, "queue:é", "\udcff")
    command = (Prefix(*parts), *rest)
    assert (*parts, *rest) == parts_of(command)
    assert pack((*parts, *rest)) == pack(command)


@pytest.mark.parametrize("part", [None, True, [1]])
def test_what_is_no_part_of_a_command(part):
    """A part of an unsupported type is refused before anything is sent."""
    with pytest.raises(TypeError):
        pack(("SET", part))


def test_a_handler_that_raises_while_a_command_is_packed():
    """A process survives a handler that raises during packing, as Ctrl-C and time limits do."""
    done = subprocess.run(
        [sys.executable, "-c", STORM], capture_output=True, text=True, check=False
    )
    assert (0, "alive\n") == (done.returncode, done.stdout), done.stderr
