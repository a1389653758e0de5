"""The previous version of reliq, taken from the history of this repository.

`tests/previous_version` names its commit. A program runs with it where :func:`environment` is its
environment; nothing of it is imported in this process.
"""

from __future__ import annotations

import io
import os
import subprocess
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMIT = ROOT / "tests" / "previous_version"


def build(folder: Path, commit: str | None = None) -> Path:
    """Write the package of the previous version to *folder*, and return the folder.

    Fails, naming the command that helps, in a clone without the history.
    """
    commit = commit or COMMIT.read_text("utf-8").strip()
    command = ["git", "-C", str(ROOT), "archive", "--format=zip", commit, "reliq"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    if done.returncode != 0:
        raise AssertionError(
            f"commit {commit} of the previous version is not in this clone: run "
            f"`git fetch --unshallow` ({done.stderr.decode('utf-8', 'replace').strip()})"
        )
    # Not tar: without a filter, newer Pythons warn, and 3.11.2 of Debian knows no filter.
    with zipfile.ZipFile(io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder)
    return folder


def environment(folder: Path | None) -> dict[str, str]:
    """Return the variables with which a program finds the package in *folder*; None: this one."""
    folders = [ROOT] if folder is None else [folder, ROOT]
    return {"PYTHONPATH": os.pathsep.join(map(str, folders))}
