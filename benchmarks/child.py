"""Runs a function of this package in a fresh Python process.

Every measured program is a separate process, in the same way for each transport. It inherits no
imports, threads or garbage from an earlier sample or from the harness.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent
END_WITHIN_S = 600.0


def command(function: Callable[..., Any], **arguments: Any) -> list[str]:
    """Return the command line that calls the function in a separate process."""
    name = f"{function.__module__}:{function.__qualname__}"
    return [sys.executable, "-m", "benchmarks.child", name, json.dumps(arguments)]


def run(function: Callable[..., Any], **arguments: Any) -> Any:
    """Call the function in a fresh process; return its result.

    Arguments and result are passed as JSON. If the function raises, this raises an AssertionError
    that names it; the traceback is on stderr.
    """
    done = subprocess.run(
        command(function, **arguments),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        timeout=END_WITHIN_S,
        check=False,
        text=True,
    )
    if done.returncode != 0:
        raise AssertionError(f"{function.__qualname__} ended with status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def start(function: Callable[..., Any], **arguments: Any) -> subprocess.Popen[str]:
    """Start the function in a fresh process and return the process."""
    return subprocess.Popen(
        command(function, **arguments), cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def wait_for_line(process: subprocess.Popen[str]) -> str:
    """Return the next line of a process from `start`; raise if it ends instead."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise AssertionError(f"a measured program ended early, exit status {process.wait()}")
    return line


def result(process: subprocess.Popen[str]) -> Any:
    """Wait for the end of a process from `start`; return the result of its function."""
    said, _ = process.communicate(timeout=END_WITHIN_S)
    if process.returncode != 0:
        raise AssertionError(f"a measured program failed, exit status {process.returncode}")
    return json.loads(said.splitlines()[-1])


def stop(process: subprocess.Popen[str]) -> None:
    """Kill a process from `start` as abruptly as a crash, and reap it."""
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def main() -> None:
    """Call the function named in the command line and print its result as JSON."""
    module, _, name = sys.argv[1].partition(":")
    function = getattr(importlib.import_module(module), name)
    result = function(**json.loads(sys.argv[2]))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
