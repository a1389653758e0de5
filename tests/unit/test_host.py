"""The process that hosts consumers: a plain program, or a Celery worker."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields

import celery  # noqa: F401 - the host answers for it

from reliq.consumer.host import HOST, Host


def test_a_plain_program_loads_no_code_for_celery():
    """Without Celery, the host has its default answers, and no code for Celery is imported."""
    script = (
        "import sys, reliq\n"
        "from reliq.consumer.host import HOST, Host\n"
        "HOST.prepare()\n"
        "assert HOST.worker is Host().worker\n"
        "assert 'reliq.integrations.celery' not in sys.modules\n"
        "assert 'celery' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=30
    )
    assert (0, "") == (done.returncode, done.stderr)


def test_every_question_is_answered_for_celery():
    """Once Celery is loaded, each question to the host gets an answer from Celery."""
    HOST.prepare()
    own = {"prepare", "at_child_end", "worked", "warned", "bounded"}
    asked = {field.name for field in fields(Host)} - own
    assert set() == {name for name in asked if getattr(HOST, name) is getattr(Host, name)}
    assert (False, "", 0) == (HOST.worker(), HOST.pool(), HOST.processes())
