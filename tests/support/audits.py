"""The check at the end of every integration test: every queue and every batch balances."""

from __future__ import annotations

from typing import Any

from tests.support.waiting import wait_until

SCHEMES = ("reliq", "reliqs")


def is_reliq(url: str) -> bool:
    """Whether the URL is of reliq: the suite also runs against Kombu's transport, to compare."""
    return url.startswith(SCHEMES)


def assert_balanced(url: str, transport_options: dict[str, Any] | None = None) -> None:
    """Fail if a queue's ledger does not balance, or a batch does not account for all its jobs."""
    if not is_reliq(url):
        return
    from reliq.admin import Inspector

    with Inspector(url, transport_options=transport_options) as inspector:
        unbalanced = [result for result in inspector.audit().whole() if not result.balanced]
        batches = [result for result in inspector.audit_batches() if not result.balanced]
    assert (unbalanced, batches) == ([], [])


def wait_settled(
    url: str,
    queue: str,
    *,
    timeout_s: float = 60.0,
    transport_options: dict[str, Any] | None = None,
    **expected: int,
) -> None:
    """Wait until the queue holds exactly the expected counts (by default 0 in every state)."""
    if not is_reliq(url):
        return
    from reliq.admin import Inspector

    wanted = {"ready": 0, "delayed": 0, "unacked": 0, "dead": 0} | expected
    seen: dict[str, int] = {}

    with Inspector(url, transport_options=transport_options) as inspector:

        def settled() -> bool:
            status = inspector.status(queue)
            seen.update({name: getattr(status, name) for name in wanted})
            return seen == wanted

        wait_until(settled, timeout_s=timeout_s, what=lambda: f"{queue}: {wanted}; have {seen}")
    assert_balanced(url, transport_options)
