"""The benchmarks run. Their results are not tested: a timed test fails by chance."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import clusters, figures, machine, peers, places, rabbitmq, report, results
from benchmarks.cli import main
from benchmarks.model import Outcome, Row, Target
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
RABBITMQ = (peers.CLASSIC, peers.QUORUM)
# One of each kind of sample, so that RabbitMQ starts only once.
BESIDE_RABBITMQ = ("publish-named", "consume-64", "celery-solo", "latency-idle", "cpu-solo")


def run(*arguments):
    """Run the command as a user would, from the repository's root."""
    command = [sys.executable, "-m", "benchmarks", *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )


def tiny(folder, *arguments):
    """Run figures once, at the smallest size; return the output, the JSON and the page."""
    page = folder / "page.md"
    done = run(*arguments, "--scale", 0.01, "--largest", 1000, "--rounds", 1, "--report", page)
    assert done.returncode == 0, done.stderr
    return done.stdout, results.read(folder / "page" / "results.json"), page.read_text()


def without(*names):
    """Return the options that leave these peers out."""
    return [text for name in names for text in ("--without", name)]


def test_help_names_every_figure_and_peer():
    """`python -m benchmarks --help` lists every figure and every peer."""
    done = run("--help")
    assert done.returncode == 0, done.stderr
    words = "".join(done.stdout.split())
    for name in [*(figure.name for figure in figures.ALL), *peers.ALL]:
        assert name.replace(" ", "") in words


def test_names_and_rows_are_unique():
    """Every figure has a name of its own, and every row a key of its own."""
    names = [figure.name for figure in figures.ALL]
    keys = [row.key for figure in figures.ALL for row in figure.rows]
    assert sorted(set(names)) == sorted(names)
    assert sorted(set(keys)) == sorted(keys)


def together():
    """Return the figures of each command, as parameters; CI runs the core ones together."""
    core = [figure.name for figure in figures.ALL if figure.core]
    together = [name for name in BESIDE_RABBITMQ if name in core]
    others = [figure.name for figure in figures.ALL if figure.name not in together]
    return [together, *(pytest.param([name], marks=pytest.mark.long) for name in others)]


@pytest.mark.slow
@pytest.mark.parametrize("names", together(), ids=",".join)
def test_figure_is_measured_and_reported(names, tmp_path):
    """Every figure runs over its transports, and is in the JSON and on the page.

    RabbitMQ has a test of its own; Kombu's transport is measured by the most important figures.
    """
    chosen = {
        row.key: figure
        for figure in figures.select([f"={name}" for name in names])
        for row in figure.rows
    }
    is_core = all(figure.core for figure in chosen.values())
    skipped = RABBITMQ if is_core else (*RABBITMQ, peers.KOMBU)
    only = [text for name in names for text in ("--only", f"={name}")]
    printed, written, text = tiny(tmp_path, *only, *without(*skipped))
    assert set(names) == {chosen[outcome.row.key].name for outcome in written.outcomes}
    for outcome in written.outcomes:
        expected = [peer for peer in chosen[outcome.row.key].peers if peer not in skipped]
        assert expected == list(outcome.samples)
        assert all(1 == len(taken) and taken[0] >= 0 for taken in outcome.samples.values())
        assert f"| {outcome.row.title} ({outcome.row.unit}) |" in text
        assert outcome.row.title.split(",")[0] in printed
    assert "## Method" in text
    assert ("in a folder" if names[0].startswith("embedded") else "appendonly") in text


@pytest.mark.slow
@pytest.mark.long
def test_rabbitmq_is_measured_beside_or_named_as_left_out(tmp_path):
    """The tables include an installed RabbitMQ; without one the page names it as left out."""
    only = [text for name in BESIDE_RABBITMQ for text in ("--only", f"={name}")]
    _, written, text = tiny(tmp_path, *only)
    if rabbitmq.find() is None:
        assert rabbitmq.WHAT_TO_INSTALL in text
        return
    assert all(peers.CLASSIC in outcome.samples for outcome in written.outcomes)
    assert "RabbitMQ 3" in text or "RabbitMQ 4" in text


def test_a_missing_rabbitmq_is_named(monkeypatch):
    """A run without RabbitMQ goes on, and names it as left out."""
    monkeypatch.setattr(rabbitmq, "find", lambda: None)
    there = places.Places("redis-server")
    with pytest.raises(places.Missing):
        there.get("rabbitmq")
    assert {"rabbitmq": rabbitmq.WHAT_TO_INSTALL} == there.missing
    there.close()


def test_queues_that_are_spread_lie_in_all_parts_of_a_cluster():
    """Each equal share of the slots has one queue, so the nodes differ by one queue at most."""
    for number in (1, 8, 20):
        names = clusters.spread("queue", number)
        shares = [clusters.slot_of(name) * number // clusters.SLOTS for name in names]
        assert list(range(number)) == shares


def outcome(ours, theirs, target):
    """Return the outcome of a row with one target."""
    return Outcome(Row("key", "a title", "messages/s", (target,)), {"reliq": ours, "kombu": theirs})


def test_the_page_lists_missed_targets(tmp_path):
    """A row that misses its target is listed with its value and the target."""
    short = outcome([30.0, 20.0], [10.0, 10.0], Target("ratio_at_least", 4))
    met = outcome([50.0, 50.0], [10.0, 10.0], Target("ratio_at_least", 4))
    labels = {"reliq": "reliq", "kombu": "Kombu"}
    for measured, expected in ((short, "a title: 2.50x (target >= 4x)"), (met, "- None.")):
        finished = results.Run("c", 2, 1.0, labels, {}, [], [], {"Section": [measured]})
        report.write_page(finished, tmp_path / "page.md", [])
        missed = (tmp_path / "page.md").read_text().split("## Missed targets")[1].split("##")[0]
        assert expected in missed


def test_a_target_without_its_peer_is_not_judged():
    """A ratio to a peer that was left out is neither met nor missed."""
    row = Row("key", "a title", "messages/s", (Target("ratio_at_least", 4, against="absent"),))
    assert [] == Outcome(row, {"reliq": [1.0]}).verdicts()


@pytest.mark.slow
def test_readme_and_page_are_made_again_from_the_json(tmp_path):
    """`--from` writes the page of the run again, and changes only the table of the README."""
    row = Row("celery-prefork", "a title", "messages/s", (Target("ratio_at_least", 2),))
    measured = Outcome(row, {"reliq": [30.0], "kombu": [10.0]})
    labels = {"reliq": "reliq", "kombu": "Kombu"}
    finished = results.Run("c", 1, 1.0, labels, {"CPU": "one"}, [], [], {"Section": [measured]})
    results.write(finished, tmp_path / "results.json")
    readme = tmp_path / "README.md"
    shutil.copy(ROOT / "README.md", readme)
    before = readme.read_text()
    page = tmp_path / "page.md"
    done = run("--from", tmp_path / "results.json", "--report", page, "--readme", readme)
    assert done.returncode == 0, done.stderr
    after = readme.read_text()
    assert f"| {report.HEADLINES['celery-prefork']} | 30 | 10 | 3.00x |  |" in after
    for mark, side in ((report.MARK, 0), (report.END_MARK, 1)):
        assert before.split(mark)[side] == after.split(mark)[side]
    assert "| a title (messages/s) | 30 | 10 | 3.00x | >= 2x | pass |" in page.read_text()
    again = json.loads((tmp_path / "page" / "results.json").read_text())
    assert json.loads((tmp_path / "results.json").read_text()) == again
    assert (tmp_path / "page" / "ratios.png").stat().st_size > 0


@pytest.mark.slow
def test_an_interrupted_run_goes_on(tmp_path, monkeypatch):
    """`--resume` measures only missing figures, and requires the same commit and sizes."""
    labels = {"reliq": "reliq", "kombu": "Kombu"}
    had = Outcome(Row("publish-named", "named", "messages/s"), {"reliq": [30.0], "kombu": [10.0]})
    file = tmp_path / "results.json"
    begun = results.Run(
        "c", 1, 0.01, labels, {"CPU": "one"}, [], [], {"Publish": [had]}, commit="abc"
    )
    results.write(begun, file)
    arguments = ["--only", "publish-named", "--only", "=publish-none", *without(*RABBITMQ)]
    arguments += ["--scale", "0.01", "--rounds", "1", "--json", str(file), "--resume"]
    for commit in ("def", "", "abc, with changes"):
        monkeypatch.setattr(machine, "commit", lambda commit=commit: commit)
        refused = CliRunner().invoke(main, arguments)
        assert 2 == refused.exit_code
        assert "is of commit abc" in refused.output
    monkeypatch.setattr(machine, "commit", lambda: "abc")
    done = CliRunner().invoke(main, arguments)
    assert 0 == done.exit_code, done.output
    both = results.read(file)
    assert had == both.outcomes[0]
    assert ["publish-none"] == [outcome.row.key for outcome in both.outcomes[1:]]
    assert ("c", "abc", "one") == (both.command, both.commit, both.surroundings["CPU"])


def test_an_ended_command_leaves_no_process(tmp_path):
    """A terminated run stops its servers and removes their files."""
    command = [sys.executable, "-m", "benchmarks", "--only", "idle-consumer", "--rounds", "1"]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as process:
        wait_until(lambda: len(list(tmp_path.iterdir())) >= 1)
        process.terminate()
        assert 128 + 15 == process.wait(30)
    assert [] == list(tmp_path.iterdir())
