"""The task whose caller waits for its result."""

from __future__ import annotations

from tests.chaos.app import app


@app.task(name="soak.answer", ignore_result=False)
def answer(number):
    """Return it, over `rpc://`."""
    return number
