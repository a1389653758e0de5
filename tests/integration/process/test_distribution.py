"""The files of `python -m build` can be installed without the source, and work."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import pytest

import reliq

ROOT = Path(__file__).resolve().parents[3]
OF_THE_BUILD = ("pyproject.toml", "setup.cfg", "README.md", "LICENSE")

pytestmark = pytest.mark.slow


class Built(NamedTuple):
    """The two files of one release."""

    sdist: Path
    wheel: Path


class Bare(NamedTuple):
    """A virtual environment, and a folder from which the source cannot be imported."""

    bin: Path
    cwd: Path

    def run(self, program, *arguments, code=0, cwd=None):
        """Run a program of the environment to its end; return its output."""
        return finish([self.bin / program, *arguments], cwd=cwd or self.cwd, code=code)

    def pip(self, *arguments):
        """Run pip of the tests' environment for this one, which has no pip."""
        pip = [sys.executable, "-m", "pip", "--python", self.bin / "python"]
        return finish([*pip, *arguments], cwd=self.cwd)


def finish(command, *, cwd, code=0):
    """Run a command without Python's environment variables; return its stdout."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**kept, "COLUMNS": "220"},
        timeout=400,
        check=False,
    )
    assert code == done.returncode, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return the sdist of a copy of the tree, and the wheel that is built from the sdist."""
    tree = tmp_path_factory.mktemp("tree")
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "reliq", tree / "reliq", ignore=unwanted)
    for name in OF_THE_BUILD:
        shutil.copy(ROOT / name, tree)
    finish([sys.executable, "-m", "build", "--outdir", tree / "dist"], cwd=tree)
    ((sdist,), (wheel,)) = ((tree / "dist").glob(f"*.{kind}") for kind in ("tar.gz", "whl"))
    return Built(sdist, wheel)


@pytest.fixture
def bare(tmp_path_factory):
    """Return a new virtual environment."""
    folder = tmp_path_factory.mktemp("bare")
    finish([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], cwd=folder)
    return Bare(folder / "venv" / "bin", folder)


def of_the_package():
    """Return every file of the package in the tree."""
    found = [path for path in (ROOT / "reliq").rglob("*") if path.is_file()]
    names = {str(path.relative_to(ROOT)) for path in found if "__pycache__" not in path.parts}
    assert {".py", ".lua", ".typed"} <= {Path(name).suffix for name in names}
    return names


def test_both_hold_every_file_of_the_package(built):
    """The sdist and the wheel have every file of the package, and the wheel has no other files."""
    with tarfile.open(built.sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert set() == of_the_package() - packed
    assert set() == set(OF_THE_BUILD) - packed
    installed = set(zipfile.ZipFile(built.wheel).namelist())
    about = f"kombu_reliq-{reliq.__version__}.dist-info/"
    assert of_the_package() == {name for name in installed if not name.startswith(about)}


def test_the_wheel_in_a_bare_environment(built, bare, url):
    """The wheel, installed without the source, has a version, runs the demo and detects damage.

    The damage is the loss of its __init__.py, which pip removes with the other project named reliq.
    """
    bare.pip("install", "--quiet", f"{built.wheel}[demo]")
    assert f"reliq, version {reliq.__version__}\n" == bare.run("reliq", "--version")
    where = Path(bare.run("python", "-c", "import reliq; print(reliq.__file__)").strip())
    assert where.is_relative_to(bare.cwd / "venv")
    assert "kombu-reliq" in bare.pip("list")

    (run,) = json.loads(bare.run("reliq", "demo", "--tasks", "100", "--json"))["runs"]
    assert (True, 100, 0, 0) == (run["ok"], run["ran"], run["lost"], run["finished_twice"])

    script = "import kombu, kombu.serialization, sys; kombu.Connection(sys.argv[1]).connect()"
    bare.run("python", "-W", "error", "-c", script, url)
    assert "ok" == installation(bare, url)["severity"]
    where.unlink()
    assert "error" == installation(bare, url, code=1)["severity"]


def extras():
    """Return the names of all extras."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return {*config["options.extras_require"]}


def fetch(bare, command, url):
    """Start a command that serves pages; return the text of its page."""
    process = subprocess.Popen(
        [bare.bin / "reliq", command, "--url", url, "--port", "0"],
        stdout=subprocess.PIPE, text=True, cwd=bare.cwd,
    )  # fmt: skip
    try:
        address = re.search(r"http://\S+", process.stdout.readline())[0]
        with urlopen(address, timeout=30) as page:
            return page.read().decode()
    finally:
        process.terminate()
        process.communicate()


EMBEDDED = """
from reliq.testing import broker
from kombu import Connection
with broker() as url, Connection(url) as connection, connection.SimpleQueue("q") as queue:
    queue.put("stored")
    message = queue.get(timeout=5)
    message.ack()
    print(message.payload)
"""


EVERY_MODULE = """
import importlib, pkgutil, reliq
for module in pkgutil.walk_packages(reliq.__path__, "reliq."):
    if not module.name.startswith(OF_AN_EXTRA):
        importlib.import_module(module.name)
"""
OF_AN_EXTRA = ("reliq.cli.demo.app", "reliq.cli.web_server", "reliq.metrics", "reliq.web")
OF_AN_EXTRA += ("reliq.cli.__main__", "reliq.embedded.keeper")  # programs


def without_extra(bare, url):
    """Import each module that needs no extra, and look for messages of Kombu's transport."""
    bare.run("python", "-c", EVERY_MODULE.replace("OF_AN_EXTRA", repr(OF_AN_EXTRA)))
    bare.run("reliq", "status", "--url", url)
    kombus = url.replace("reliq", "redis")
    bare.run("reliq", "migrate", "--dry-run", kombus, url, code=2)  # it finds none


def embedded(bare, url):
    """Publish and consume over a broker of its own."""
    assert "stored\n" == bare.run("python", "-c", EMBEDDED)


def demo(bare, url):
    """Run the demo over both transports."""
    said = bare.run("reliq", "demo", "--compare", "--tasks", "40", "--json")
    assert [True, 0] == [json.loads(said)["runs"][0]["ok"], json.loads(said)["runs"][1]["lost"]]


def metrics(bare, url):
    """Scrape the exporter."""
    assert "reliq_up" in fetch(bare, "exporter", url)


def web(bare, url):
    """Look at the overview."""
    assert "<title>" in fetch(bare, "web", url)


def chaos(bare, url):
    """Read the help of both commands, and import what runs and draws."""
    for command in ("chaos", "soak"):
        assert "--out" in bare.run("python", "-m", f"tests.{command}", "--help", cwd=ROOT)
    needed = "import tests.chaos.picture, tests.soak.report, celery, gevent, matplotlib"
    bare.run("python", "-c", needed, cwd=ROOT)


def benchmark(bare, url):
    """Read the help."""
    assert "--report" in bare.run("python", "-m", "benchmarks", "--help", cwd=ROOT)


def docs(bare, url):
    """Build the site."""
    builder = ("-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs")
    bare.run("python", *builder, bare.cwd / "site", cwd=ROOT)
    assert (bare.cwd / "site/index.html").exists()


def lint(bare, url):
    """Run all checks."""
    bare.run("ruff", "check", "--no-cache", ".", cwd=ROOT)
    bare.run("ruff", "format", "--no-cache", "--check", "reliq", "tests", cwd=ROOT)
    bare.run("mypy", "--cache-dir", bare.cwd / "types", cwd=ROOT)


USES = [without_extra, embedded, demo, metrics, web, chaos, benchmark, docs, lint]
# The README's test command needs `test` alone (.ci/newcomer); `outside` goes with it.
ELSEWHERE = {"test", "outside"}


def test_each_extra_is_tried():
    """Each extra has its use below, or is tried by .ci/run."""
    assert extras() == {use.__name__ for use in USES[1:]} | ELSEWHERE


@pytest.mark.parametrize("use", USES)
def test_an_extra_is_enough_for_its_use(built, bare, url, use):
    """The wheel with one extra, in an environment of its own, does what the extra is for."""
    extra = "" if use is without_extra else f"[{use.__name__}]"
    bare.pip("install", "--quiet", f"{built.wheel}{extra}")
    use(bare, url)


def installation(bare, url, code=0):
    """Return the doctor's finding about the installation."""
    rows = json.loads(bare.run("reliq", "doctor", "--json", "--url", url, code=code))
    (row,) = [row for row in rows if row["check"] == "installation"]
    return row


@pytest.mark.long
def test_the_sdist_makes_the_same_wheel(built, tmp_path):
    """A wheel that pip builds from the sdist has the same files as the wheel of `build`."""
    finish(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", tmp_path, built.sdist],
        cwd=tmp_path,
    )
    (again,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(again) as one, zipfile.ZipFile(built.wheel) as other:
        assert {item.filename: item.CRC for item in one.infolist()} == {
            item.filename: item.CRC for item in other.infolist()
        }
