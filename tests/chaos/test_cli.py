"""The command says what it can do, and refuses what it does not know."""

from __future__ import annotations

from click.testing import CliRunner

import reliq
from benchmarks.machine import describe
from tests.chaos.cli import main, surroundings
from tests.chaos.faults import FAULTS


def test_help_names_every_fault():
    """`python -m tests.chaos --help` lists every kind."""
    result = CliRunner().invoke(main, ["--help"], terminal_width=1000)
    assert result.exit_code == 0
    assert set(FAULTS) <= set(result.output.replace(",", " ").replace(".", " ").split())


def test_an_unknown_fault_is_refused():
    """Before anything is started."""
    result = CliRunner().invoke(main, ["--faults", "worker-kill,flood"])
    assert result.exit_code == 2
    assert "got: 'flood'" in result.output


def test_a_fault_that_needs_two_brokers_is_refused_without():
    """There is nowhere to go to."""
    for kind in ("url-failover", "sentinel-kill", "node-kill"):
        assert CliRunner().invoke(main, ["--faults", kind]).exit_code == 2


def test_a_folder_of_another_run_is_refused(tmp_path):
    """Its ledger would be taken for the new run's."""
    (tmp_path / "runs.ledger").touch()
    result = CliRunner().invoke(main, ["--out", str(tmp_path), "--minutes", "0.1"])
    assert result.exit_code != 0
    assert isinstance(result.exception, FileExistsError)


def test_what_ran_is_named_by_its_version():
    """Chaos and benchmarks name the code that ran, however it was installed."""
    assert reliq.__version__ == surroundings()["reliq"] == describe()["reliq"]
