import subprocess
import sys
from types import SimpleNamespace

import pytest

from reliq.cli.demo import run as demo_run
from reliq.cli.demo.record import (
    FINISHED,
    READY,
    RECEIVED,
    STARTED,
    Record,
    Settings,
    lasts_ms,
    write,
)


@pytest.fixture
def path(tmp_path):
    """Return the path of a future record."""
    return tmp_path / "record"


def test_what_is_written_is_read(path):
    """A record contains the ready workers and the history of each task."""
    write(str(path), READY, "first")
    for kind in (RECEIVED, STARTED, FINISHED):
        write(str(path), kind, "first", 7)
    record = Record(path)
    assert record.refresh()
    assert ["first"] == list(record.ready)
    history = record.tasks[7]
    assert (1, 1, 1) == tuple(map(len, (history.received, history.started, history.finished)))
    assert 1 == record.finished


def test_no_file_yet(path):
    """A record without a file is empty, without an error."""
    record = Record(path)
    assert not record.refresh()
    assert {} == record.tasks


def test_half_a_line_waits(path):
    """An incomplete line is read once it is complete."""
    path.write_text("finished 1.0 first")
    record = Record(path)
    assert not record.refresh()
    with path.open("a") as file:
        file.write(" 3\n")
    assert record.refresh()
    assert {3} == set(record.tasks)


def test_running_and_held(path):
    """A running task has started and not finished; a held one is received and not finished."""
    for task in (1, 2, 3):
        write(str(path), RECEIVED, "first", task)
    for task in (1, 2):
        write(str(path), STARTED, "first", task)
    write(str(path), FINISHED, "first", 1)
    record = Record(path)
    record.refresh()
    assert {2} == set(record.running("first"))
    assert {2, 3} == record.held("first")
    assert set() == record.held("second")


def test_lines_of_several_processes_stay_whole(path):
    """Concurrent writers never tear each other's lines."""
    script = (
        "import sys; from reliq.cli.demo.record import write\n"
        "for n in range(500): write(sys.argv[1], 'finished', 'w', int(sys.argv[2]) + n)\n"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", script, str(path), str(start)])
        for start in (0, 500, 1000)
    ]
    assert [0, 0, 0] == [writer.wait(30) for writer in writers]
    record = Record(path)
    record.refresh()
    assert (1500, set(range(1500))) == (record.finished, set(record.tasks))


def test_an_outcome_counts_what_the_record_says(path, tmp_path):
    """The counts of lost, repeated, held and recovered tasks come from the tasks' own lines."""
    lines = """\
    ready 0 first 0
    received 10 first 0
    received 10 first 1
    received 10 first 2
    started 11 first 0
    finished 19 first 0
    started 20 first 1
    started 1520 second 1
    finished 1530 second 1
    started 1600 second 2
    finished 1610 second 2
    started 1700 second 0
    finished 1710 second 0
    """
    path.write_text("\n".join(line.strip() for line in lines.strip().splitlines()) + "\n")
    side = demo_run.Side("reliq", "reliq://", {}, "q", 1.0, compared=False)
    run = demo_run.DemoRun(side, 4, tmp_path, SimpleNamespace())
    run._record.refresh()
    result = run._outcome(killed=20.0, running={1}, held={1, 2}, audit=None, total_s=2.0)
    assert (4, 3, 1, 1) == (result.published, result.ran, result.lost, result.finished_twice)
    assert (2, 1, 1) == (result.held_at_kill, result.running_at_kill, result.ran_again)
    assert (1.5, 1.58) == (result.first_recovered_s, result.all_recovered_s)
    assert not result.ok


def test_tasks_last_long_enough_to_be_hit():
    """The tasks last from 8 to 20 ms, with different lengths."""
    lengths = {lasts_ms(number) for number in range(300)}
    assert (8, 20) == (min(lengths), max(lengths))


def test_settings_travel_in_one_variable(monkeypatch):
    """A process of the demo reads back the settings that it was started with."""
    settings = Settings("first", "reliq://h", {"global_keyprefix": "p:"}, "q", "/r", 3)
    (name, value), *others = settings.to_environment().items()
    monkeypatch.setenv(name, value)
    assert [] == others
    assert settings == Settings.from_environment()
