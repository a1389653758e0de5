"""The model in the suite: some examples each time, two thousand before a change lands."""

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
    """A hundred examples do as the oracle says."""
    with running("fakeredis") as broker:
        run(broker, examples=100)


@pytest.mark.slow
def test_any_order_of_steps_on_redis():
    """On a real server, whose scripts read a clock that is set by hand."""
    with running("redis") as broker:
        run(broker, examples=60)


@pytest.mark.slow
def test_any_order_of_steps_on_a_cluster():
    """Over several nodes, too: what is told of each queue is in a slot of its own."""
    with running("cluster") as broker:
        run(broker, examples=40)


@pytest.mark.slow
@pytest.mark.parametrize(
    "broker", [pytest.param("fakeredis", marks=pytest.mark.long), "redis", "cluster"]
)
def test_whatever_is_said_of_jobs(broker):
    """A batch counts its jobs as the oracle says, over every engine."""
    with running(broker) as found:
        run(found, examples=40, machine="batches")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("machine", ["queues", "batches"])
def test_two_thousand_examples(machine):
    """The command runs them, a share on each core; each share has its seed."""
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
    """Return the mutants that the model is to find, or those of the contract's tests."""
    chosen = [mutant for mutant in MUTANTS if of_the_model != bool(mutant.found_by)]
    # One of them shows that it works; what it finds is found by hand.
    params = [pytest.param(mutant, marks=pytest.mark.long) for mutant in chosen[1:]]
    return pytest.mark.parametrize("mutant", [chosen[0], *params], ids=lambda mutant: mutant.name)


@pytest.mark.slow
@pytest.mark.long
@those(of_the_model=True)
def test_the_model_finds_a_bug(mutant):
    """A script that is broken in one place does not do as the oracle says."""
    with broken(mutant), running("fakeredis") as broker, pytest.raises(BaseException) as caught:  # noqa: PT011
        run(broker, examples=EXAMPLES, shrink=False, machine=mutant.machine)
    assert not isinstance(caught.value, KeyboardInterrupt)


@pytest.mark.slow
@those(of_the_model=False)
def test_the_contract_finds_a_bug(mutant):
    """The test that is named fails with the bug, and nothing else is wrong with it."""
    code = (
        "import sys, pytest\n"
        "from tests.model.mutants import MUTANTS, broken\n"
        "(mutant,) = [mutant for mutant in MUTANTS if mutant.name == sys.argv[1]]\n"
        "test = f'tests/contract/{mutant.found_by}[redis]'\n"
        "arguments = ['-q', '-p', 'no:cacheprovider', test]\n"
        "assert pytest.main(arguments) == 0\n"
        "with broken(mutant):\n"
        "    sys.exit(pytest.main(arguments))\n"
    )
    command = [sys.executable, "-c", code, mutant.name]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert (1, True) == (done.returncode, "1 failed" in done.stdout), done.stdout + done.stderr
