"""The other project named reliq on the package index installs into the same folder."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kombu import Connection

import reliq
from tests.support.commands import data, environment

OURS = Path(reliq.__file__).parent
WITH_BOTH = {
    "reliq-0.0.48.dist-info/METADATA": "Metadata-Version: 2.1\nName: reliq\nVersion: 0.0.48\n",
    "reliq-0.0.48.dist-info/RECORD": "reliq/__init__.py,,\nreliq/reliq.py,,\n",
}


@pytest.fixture
def url(redis_url):
    """Return the URL of a broker with a queue."""
    with Connection(redis_url) as connection, connection.SimpleQueue("orders"):
        return redis_url


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder of packages before all others, with a copy of this package in it."""
    folder = tmp_path / "packages"
    shutil.copytree(OURS, folder / "reliq", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.chdir(folder)
    return folder


def write(folder, files):
    """Write the files of a distribution."""
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def found(url, code=0):
    """Return (severity, message, remedy) of `reliq doctor` for the installation."""
    ((severity, message, remedy),) = [
        (row["severity"], row["message"], row["remedy"])
        for row in data(url, "doctor", code=code)
        if row["check"] == "installation"
    ]
    return severity, message, remedy


def test_alone(url, folder):
    """With kombu-reliq alone, the doctor reports the folder of the import."""
    severity, message, remedy = found(url)
    assert ("ok", "") == (severity, remedy)
    assert str(folder / "reliq") in message


def test_both_are_installed(url, folder):
    """Two installed projects are a warning with the remedy: both work until one is changed."""
    write(folder, WITH_BOTH)
    severity, message, remedy = found(url)
    assert "warning" == severity
    assert "reliq 0.0.48 is another project" in message
    assert "pip uninstall reliq kombu-reliq" in remedy
    assert "pip install kombu-reliq" in remedy


def test_the_other_was_installed_last(url, folder):
    """The other project's __init__.py over this one is an error with the remedy."""
    write(folder, {**WITH_BOTH, "reliq/__init__.py": "from .reliq import reliq\n"})
    write(folder, {"reliq/reliq.py": "class reliq: ...\n"})
    imported = subprocess.run(
        [sys.executable, "-c", "import reliq; print(reliq.reliq, hasattr(reliq, 'once'))"],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
        check=True,
    )
    assert "<class 'reliq.reliq.reliq'> False\n" == imported.stdout
    severity, message, remedy = found(url, code=1)
    assert "error" == severity
    assert "reliq/__init__.py is not from kombu-reliq" in message
    assert "pip uninstall reliq kombu-reliq" in remedy


def test_our_own_former_name(url, folder):
    """A clone installed under the former name reliq does not count as the other project."""
    points = "[kombu.serializers]\nreliq = reliq.plugin:SERIALIZER\n"
    write(folder, {**WITH_BOTH, "reliq-0.0.48.dist-info/entry_points.txt": points})
    assert "ok" == found(url)[0]
