"""A process forks while the failback probes the primary broker."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from tests.support.audits import assert_balanced
from tests.support.workers import ROOT


@pytest.mark.slow
def test_a_fork_does_not_wait_for_what_the_fail_back_waits_for(redis_url):
    """Forks do not wait for a failback that waits for a silent primary broker."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        home = f"reliq://127.0.0.1:{silent.getsockname()[1]}/0"
        done = subprocess.run(
            [sys.executable, "-m", "tests.integration.apps.forking", f"{home};{redis_url}"],
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (0, "forked\n") == (done.returncode, done.stdout), done.stderr
    assert_balanced(redis_url)
