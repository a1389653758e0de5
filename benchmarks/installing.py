"""Installs missing programs for a full run, if the system's packages have them."""

from __future__ import annotations

import os
import shutil
import subprocess

from benchmarks import rabbitmq

PACKAGE = "rabbitmq-server"


def install() -> str | None:
    """Install RabbitMQ with apt-get without starting it; return the reason of a failure."""
    if rabbitmq.find() is not None:
        return None
    if shutil.which("apt-get") is None:
        return f"cannot install {PACKAGE}: apt-get is not on PATH"
    if os.geteuid() != 0:
        return f"installing {PACKAGE} needs root: sudo apt-get install {PACKAGE}"
    command = ["apt-get", "install", "-y", "--no-install-recommends", PACKAGE]
    # In the run level for a single user, the package does not start its own server.
    environment = {**os.environ, "RUNLEVEL": "1", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        return f"apt-get could not install {PACKAGE}: {done.stdout.splitlines()[-1]}"
    return None
