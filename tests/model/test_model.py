"""The model in the suite: some examples in each run, two thousand before a change lands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.model.brokers import running
from tests.model.mutants import MUTANTS, broken
from tests.model.run import run

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = 2000
SHARES = 2


@pytest.mark.slow
@pytest.mark.long
def test_any_order_of_steps_on_fakeredis():
    """A hundred examples behave as the oracle expects."""
    with running("fakeredis") as broker:
        run(broker, examples=100)


@pytest.mark.slow
def test_any_order_of_steps_on_redis():
    """A real server behaves as the oracle expects; its scripts read a clock set by the model."""
    with running("redis") as broker:
        run(broker, examples=60)


@pytest.mark.slow
def test_any_order_of_steps_on_a_cluster():
    """A cluster of several nodes behaves as the oracle expects; each queue has its own slot."""
    with running("cluster") as broker:
        run(broker, examples=40)


@pytest.mark.slow
@pytest.mark.parametrize(
    "broker", [pytest.param("fakeredis", marks=pytest.mark.long), "redis", "cluster"]
)
def test_any_order_of_steps_with_limits(broker):
    """Queues with limits give what these allow, never more and never less, over every engine."""
    with running(broker) as found:
        run(found, examples=40, machine="limits")


@pytest.mark.slow
@pytest.mark.parametrize(
    "broker", [pytest.param("fakeredis", marks=pytest.mark.long), "redis", "cluster"]
)
def test_whatever_is_said_of_jobs(broker):
    """A batch counts its jobs as the oracle expects, over every engine."""
    with running(broker) as found:
        run(found, examples=40, machine="batches")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("machine", ["queues", "limits", "batches"])
def test_two_thousand_examples(machine):
    """Two thousand examples behave as the oracle expects, in shares with their own seeds."""
    command = [sys.executable, "-m", "tests.model", "--examples", str(EXAMPLES // SHARES)]
    shares = [
        subprocess.Popen(
            [*command, "--seed", str(seed), "--machine", machine],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for seed in range(1, SHARES + 1)
    ]
    try:
        outputs = [share.communicate()[0] for share in shares]
    finally:
        for share in shares:
            share.kill()
            share.wait()
    for share, output in zip(shares, outputs, strict=True):
        assert 0 == share.returncode, output


def those(*, of_the_model):
    """Parametrize a test with the mutants of the model, or with those of the contract tests."""
    chosen = [mutant for mutant in MUTANTS if of_the_model != bool(mutant.found_by)]
    # One mutant shows that the search works. The others are run by hand.
    params = [pytest.param(mutant, marks=pytest.mark.long) for mutant in chosen[1:]]
    return pytest.mark.parametrize("mutant", [chosen[0], *params], ids=lambda mutant: mutant.name)


@pytest.mark.slow
@pytest.mark.long
@those(of_the_model=True)
def test_the_model_finds_a_bug(mutant):
    """A script with one bug behaves differently from the oracle."""
    with broken(mutant), running("fakeredis") as broker, pytest.raises(BaseException) as caught:  # noqa: PT011
        run(broker, examples=EXAMPLES, shrink=False, machine=mutant.machine)
    assert not isinstance(caught.value, KeyboardInterrupt)


@pytest.mark.slow
@those(of_the_model=False)
def test_the_contract_finds_a_bug(mutant):
    """The contract test named by a mutant passes without the bug and fails with it."""
    code = (
        "import sys, pytest\n"
        "from tests.model.mutants import MUTANTS, broken\n"
        "(mutant,) = [mutant for mutant in MUTANTS if mutant.name == sys.argv[1]]\n"
        "case = '' if '[' in mutant.found_by else '[redis]'\n"
        "test = f'tests/contract/{mutant.found_by}{case}'\n"
        "arguments = ['-q', '-p', 'no:cacheprovider', test]\n"
        "assert pytest.main(arguments) == 0\n"
        "with broken(mutant):\n"
        "    sys.exit(pytest.main(arguments))\n"
    )
    command = [sys.executable, "-c", code, mutant.name]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert (1, True) == (done.returncode, "1 failed" in done.stdout), done.stdout + done.stderr
