"""A real disk of a few MB that a test can fill: a tmpfs in a mount namespace."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.support.workers import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def run_on_small_disk(
    module: str, directory: Path, megabytes: int, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run *module* with *directory* as its argument, which is a disk of *megabytes* MB.

    Needs Linux and the right to create a user namespace; fails otherwise, with the reason.
    """
    place = shlex.quote(str(directory))
    script = (
        f"mount -t tmpfs -o size={megabytes}m tmpfs {place} && "
        f"exec {shlex.quote(sys.executable)} -m {module} {place}"
    )
    return subprocess.run(
        ["unshare", "-Urm", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=ROOT,
        env={**os.environ, **environment},
        check=False,
    )
