"""The ``reliq`` command as a subprocess; its JSON is checked against the documented schema."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import jsonschema

from reliq.cli.schema import SCHEMAS
from tests.support import nursery

if TYPE_CHECKING:
    from collections.abc import Sequence

RELIQ = (sys.executable, "-m", "reliq.cli")


def environment(url: str | Sequence[str] | None = None, **more: str) -> dict[str, str]:
    """Return the environment of a command with its brokers, on a wide terminal."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RELIQ_URL", "RELIQ_KEYPREFIX", "FORCE_COLOR"))
    }
    if url is not None:
        kept["RELIQ_URL"] = url if isinstance(url, str) else ";".join(url)
    return {**kept, "COLUMNS": "220", **more}


def run(url: str | Sequence[str] | None, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    command, env = [*RELIQ, *map(str, arguments)], environment(url)
    if nursery.may_be_forked(command, env):
        return nursery.run(command, env=env, timeout=60)
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=env,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def data(url: str | Sequence[str] | None, *arguments: object, code: int = 0) -> Any:
    """Run a command with --json; return its output after validation by its schema."""
    done = run(url, *arguments, "--json")
    assert code == done.returncode, done.stdout + done.stderr
    found = json.loads(done.stdout)
    words = [str(word) for word in arguments]
    name = " ".join(words[:2]) if words[0] in {"batch", "dead", "limit", "queue"} else words[0]
    jsonschema.validate(found, SCHEMAS[name])
    return found
