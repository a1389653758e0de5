"""The schedule: the seed repeats it, and every kind occurs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from tests.chaos.faults import FAULTS, kinds
from tests.chaos.ledger import CONFIRMED, FAILED, FINISHED, INTENT, STARTED, Tail, Writer, read
from tests.chaos.plan import plan
from tests.chaos.run import strikes_of
from tests.chaos.settings import Brokers, Settings
from tests.support.waiting import wait_until
from tests.support.workers import ROOT

KINDS = list(FAULTS)
SPANS = {name: kind.span for name, kind in FAULTS.items()}


def test_a_seed_repeats_its_schedule():
    """The same seed gives the same strikes, and another seed gives others."""
    assert plan(7, KINDS, SPANS, 300, 4) == plan(7, KINDS, SPANS, 300, 4)
    assert plan(7, KINDS, SPANS, 300, 4) != plan(8, KINDS, SPANS, 300, 4)


def test_every_kind_has_its_turn():
    """No kind occurs twice as often as another, and all fit into the time."""
    strikes = plan(1, KINDS, SPANS, 100 * len(KINDS), 10)
    often = Counter(strike.kind for strike in strikes)
    assert set(KINDS) == set(often)
    assert max(often.values()) - min(often.values()) <= 1
    assert max(strike.at_s for strike in strikes) < 100 * len(KINDS)
    for strike in strikes:
        low, high = SPANS[strike.kind]
        assert low <= strike.duration_s <= high


def test_the_ledger_says_what_was_written(tmp_path):
    """Every event is read as it was written, and the tail knows the missing tasks."""
    tail = Tail(tmp_path)
    published, ran = Writer(tmp_path / "published.ledger"), Writer(tmp_path / "ran.ledger")
    for task_id in ("i1", "i2", "x3"):
        published.write(INTENT, task_id, 1.5, "chaos")
    for task_id in ("i1", "i2", "x3"):
        published.write(CONFIRMED, task_id)
    published.write(FAILED, "i4", "OSError")
    ran.write(STARTED, "i1", 0, "tag", 2, "w1", 11)
    tail.look()
    assert {"i1", "i2"} == tail.outstanding
    assert {"x3"} == tail.poison
    ran.write(FINISHED, "i1", 0, "tag", 2, "w1", 11)
    tail.look()
    assert {"i2"} == tail.outstanding
    published.close()
    ran.close()
    lines = list(read(tmp_path))
    assert [1.5] * 3 == [line.countdown for line in lines if line.event == INTENT]
    assert ["chaos"] * 3 == [line.queue for line in lines if line.event == INTENT]
    assert ["OSError"] == [line.error for line in lines if line.event == FAILED]
    (done,) = [line for line in lines if line.event == FINISHED]
    assert ("i1", 0, "tag", 2, "w1", 11) == (done.id, *done[5:10])


def test_starve_has_a_schedule_of_its_own(tmp_path):
    """`starve` has its own schedule or is selected by name; other schedules do not change."""
    assert "starve" not in kinds("one")
    assert all("starve" in kinds(brokers, every=True) for brokers in get_args(Brokers))
    settings = Settings(directory=tmp_path, seed=7, duration_s=60, kinds=kinds("one"))
    without, beside = strikes_of(settings), strikes_of(replace(settings, starve_every_s=3.0))
    assert without == [strike for strike in beside if strike.kind != "starve"]
    lengths = [strike.duration_s for strike in beside if strike.kind == "starve"]
    assert 15 <= len(lengths)
    assert 0.5 <= min(lengths) < max(lengths) <= 5.0
    assert sorted(beside) == beside


STARVED = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
from tests.chaos.faults import Starve
from tests.chaos.model import Strike
from tests.support.processes import Process

directory = Path(sys.argv[1])
worker = Process(["sleep", "60"], log_path=directory / "worker.log")
slot = SimpleNamespace(target=True, pool="solo", name="solo0.1", worker=worker, frozen=False)
crew = SimpleNamespace(slots=[slot], settings=SimpleNamespace(directory=directory))
act = Starve(SimpleNamespace(crew=crew), Strike(0.0, "starve", 1.0, 0.5))
fault = act.apply()
assert ("solo0.1", True) == (fault.worker, slot.frozen)
print(worker.pid, *(loop.pid for loop in act.loops), flush=True)
sys.stdin.readline()
act.undo()
assert not slot.frozen
print("undone", flush=True)
sys.stdin.readline()
"""


def state_of(pid):
    """Return the state of a process: R, S, T; "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return ""


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["undone", "killed"])
def test_starve_leaves_nothing_behind(tmp_path, ending):
    """`starve` stops a worker, and runs a busy loop for each core, until it is undone.

    If the run is killed, the loops and the worker end.
    """
    run = subprocess.Popen(
        [sys.executable, "-c", STARVED, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        worker, *loops = map(int, run.stdout.readline().split())
        assert os.cpu_count() == len(loops)
        wait_until(lambda: [state_of(worker), *map(state_of, loops)] == ["T", *"R" * len(loops)])
        if ending == "undone":
            run.stdin.write("\n")
            run.stdin.flush()
            assert "undone\n" == run.stdout.readline()
            assert "S" == wait_until(lambda: state_of(worker) != "T" and state_of(worker))
    finally:
        run.kill()
        run.communicate()
    wait_until(lambda: not [pid for pid in loops if state_of(pid) in {"R", "S", "T"}])
    wait_until(lambda: state_of(worker) in {"", "Z"})
