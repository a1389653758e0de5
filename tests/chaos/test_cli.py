"""The command documents its options, and refuses unknown values."""

from __future__ import annotations

from collections import Counter

from click.testing import CliRunner

import reliq
from benchmarks.machine import describe
from tests.chaos.checker import Verdict
from tests.chaos.cli import main, surroundings
from tests.chaos.faults import FAULTS
from tests.chaos.model import WENT_BACK, Fault
from tests.chaos.run import Outcome
from tests.chaos.scorecard import summary, write_markdown
from tests.chaos.settings import Settings


def test_help_names_every_fault():
    """`python -m tests.chaos --help` lists every kind."""
    result = CliRunner().invoke(main, ["--help"], terminal_width=1000)
    assert result.exit_code == 0
    assert set(FAULTS) <= set(result.output.replace(",", " ").replace(".", " ").split())


def test_an_unknown_fault_is_refused():
    """An unknown fault is refused before anything is started."""
    result = CliRunner().invoke(main, ["--faults", "worker-kill,flood"])
    assert result.exit_code == 2
    assert "got: 'flood'" in result.output


def test_a_fault_that_needs_two_brokers_is_refused_without():
    """A fault that needs another broker is refused for a run with one."""
    for kind in ("url-failover", "sentinel-kill", "node-kill"):
        assert CliRunner().invoke(main, ["--faults", kind]).exit_code == 2


def test_a_folder_of_another_run_is_refused(tmp_path):
    """A folder with another run is refused, because its ledger would count for the new run."""
    (tmp_path / "runs.ledger").touch()
    result = CliRunner().invoke(main, ["--out", str(tmp_path), "--minutes", "0.1"])
    assert result.exit_code != 0
    assert isinstance(result.exception, FileExistsError)


def test_what_ran_is_named_by_its_version():
    """Chaos suite and benchmarks name the tested version, regardless of its installation."""
    assert reliq.__version__ == surroundings()["reliq"] == describe()["reliq"]


def test_a_scorecard_names_seed_commit_and_what_redis_lost(tmp_path):
    """A scorecard has all data for a repetition, and attributes losses to a reverted promotion."""
    back = Fault(WENT_BACK, 1.0, 2.0, note="2 was promoted at offset 4,100")
    settings = Settings(directory=tmp_path, seed=97, duration_s=1, kinds=["starve"])
    verdict = Verdict(lost=["i1", "i2"], lost_by=Counter({back.note: 1, "": 1}))
    outcome = Outcome(settings, [], [back], [], verdict, 0.0, 3.0, 3.0, {})
    card = summary(outcome, "python -m tests.chaos", {"commit": "abc"})
    write_markdown(card, tmp_path / "scorecard.md")
    text = (tmp_path / "scorecard.md").read_text(encoding="utf-8")
    assert "| seed | 97 |\n| commit | abc |" in text
    assert f"| lost | 2; 1 by a promotion: {back.note} |" in text
