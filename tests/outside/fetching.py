"""Source distributions of installed packages, fetched from the package index once in a run."""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


ROOT = Path(__file__).resolve().parents[2]

# The unpacked parts of a source distribution: tests and examples, without the package itself.
PARTS = ("t", "examples")


def fetch_source(package: str, cache: Path) -> Path:
    """Return a folder with the tests and examples of a package, in the installed version.

    The package itself is left out, so that the folder can stand on PYTHONPATH beside the installed
    one. If several test processes call this at once, one of them fetches and the others wait.
    """
    version = importlib.metadata.version(package)
    unpacked = cache / f"{package}-{version}"
    with (cache / f"{package}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not unpacked.exists():
            archive = _download(package, version, cache)
            _unpack(archive, unpacked)
    return unpacked


def install_beside(requirements: Sequence[str], cache: Path) -> Path:
    """Return a folder with packages and their dependencies, in versions other than the installed.

    On PYTHONPATH, the folder comes before the installed packages.
    """
    name = "-".join("".join(filter(str.isalnum, text)) for text in requirements)
    installed = cache / name
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not installed.exists():
            making = installed.with_suffix(".making")
            _pip("install", "--target", str(making), *requirements)
            making.rename(installed)
    return installed


def _download(package: str, version: str, cache: Path) -> Path:
    folder = cache / f"{package}-archive"
    # pip builds the archive's metadata with this one backend, not in a new environment each time.
    backend = install_beside(["setuptools>=70.1"], cache)
    _pip(
        "download",
        "--no-deps",
        "--no-build-isolation",
        "--no-binary",
        ":all:",
        "--dest",
        str(folder),
        f"{package}=={version}",
        path=backend,
    )
    (archive,) = folder.glob("*.tar.gz")
    return archive


def _pip(*arguments: str, path: Path | None = None) -> None:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    more = {} if path is None else {"PYTHONPATH": str(path)}
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**kept, **more},
    )
    assert done.returncode == 0, f"pip {' '.join(arguments)}:\n{done.stdout}{done.stderr}"


def _unpack(archive: Path, target: Path) -> None:
    """Unpack the wanted parts; the folder appears only when it is complete."""
    making = target.with_suffix(".making")
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            _, _, path = member.name.partition("/")
            if path.split("/")[0] in PARTS:
                member.name = path
                if hasattr(tarfile, "data_filter"):
                    tar.extract(member, making, filter="data")
                else:  # the last patch releases of Python 3.10 have the filter too
                    tar.extract(member, making)
    making.rename(target)
