"""The documentation's site builds without warnings or a network, and its reference is complete."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import reliq
from reliq import admin, batches, migration, signals
from reliq.cli.schema import SCHEMAS
from reliq.integrations import middleware

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]
NOWHERE = "http://127.0.0.1:9"
# Values that are described with their use, and the link of Celery to the middleware.
NO_REFERENCE = {"__version__", "ROLES", "STAGES", "STATES", "chain_of"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the folder of the built site."""
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", out],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "http_proxy": NOWHERE, "https_proxy": NOWHERE, "no_proxy": ""},
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    return out


def described(site):
    """Return the names in the site's inventory."""
    *_, packed = (site / "objects.inv").read_bytes().split(b"\n", 4)
    return {line.partition(" ")[0] for line in zlib.decompress(packed).decode().splitlines()}


def test_the_reference_has_every_public_name(site):
    """docs/api.md names each object that a public module exports."""
    exported = {
        name
        for module in (reliq, admin, batches, middleware, migration, signals)
        for name in module.__all__
    }
    last = {name.rpartition(".")[2] for name in described(site)}
    assert set() == exported - last - NO_REFERENCE


def test_the_reference_has_every_command(site):
    """docs/commands.md has the options of each command."""
    options = {f"reliq-{name.replace(' ', '-')}.--json" for name in SCHEMAS}
    assert set() == options - described(site)


def test_the_pages_show_diagrams_and_titles(site):
    """Diagrams are not shown as code, and a link with a file's name has the page's title."""
    page = (site / "architecture.html").read_text("utf-8")
    assert 2 == page.count('class="mermaid"')
    assert "design.md" not in page
