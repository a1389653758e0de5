"""The benchmarks run. What they measure is not tested: a timed test fails by chance."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
ROWS_OF = {
    "publish-named": {"publish-named"},
    "publish-anonymous": {"publish-anonymous"},
    "consume-64": {"consume-64"},
    "consume-4": {"consume-4"},
    "celery-solo": {"celery-solo"},
    "celery-prefork": {"celery-prefork"},
    "celery-threads": {"celery-threads"},
    "restore": {"restore", "restore-longest-call"},
    "idle-consumer": {"idle-consumer"},
    "idle-worker": {"idle-worker"},
    "memory": {"memory"},
}


def run(*arguments):
    """Run the command as a user would, from the repository's root."""
    command = [sys.executable, "-m", "benchmarks", *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def test_help_names_every_figure():
    """`python -m benchmarks --help` lists every figure of the table."""
    done = run("--help")
    assert done.returncode == 0, done.stderr
    words = set(done.stdout.replace(",", " ").replace(".", " ").split())
    assert set(ROWS_OF) == set(ROWS_OF) & words


@pytest.mark.slow
@pytest.mark.parametrize("figure", ROWS_OF)
def test_figure_is_measured_and_reported(figure, tmp_path):
    """Every figure runs over both transports and is in the table, the JSON and the page."""
    results, page = tmp_path / "results.json", tmp_path / "page.md"
    done = run(
        "--only", figure, "--scale", 0.01, "--rounds", 1, "--json", results, "--report", page
    )
    assert done.returncode == 0, done.stderr
    written = json.loads(results.read_text())
    assert ROWS_OF[figure] == set(written["figures"])
    text = page.read_text()
    for row in written["figures"].values():
        assert row["title"].split(",")[0] in done.stdout
        assert f"| {row['title']} ({row['unit']}) |" in text
        assert 1 == len(row["ours"]["samples"]) == len(row["baseline"]["samples"])
        assert row["ours"]["median"] >= 0
    assert f"redis-server: {written['surroundings']['redis-server']}" in text
