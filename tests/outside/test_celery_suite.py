"""Celery's integration suite: tasks, remote control, workers, and groups in chains."""

from __future__ import annotations

import pytest

from tests.outside.celery_suite import CelerySuite

FILES = ["test_tasks.py", "test_inspect.py"]

SKIPPED = {
    "test_tasks.py::test_tasks::test_multiprocess_producer": "Celery's: marked as broken",
    "test_tasks.py::test_tasks::test_multithread_producer": "Celery's: marked as broken",
    "test_tasks.py::test_tasks::test_task_accepted": "Celery's: marked as failing at random",
}

RACING = {
    "test_tasks.py::test_task_replacement::test_replaced_task_nesting_level_0": (
        "Celery's: it sets assertion_result to False after delay(), when the worker may have "
        "received the task already"
    ),
} | {
    f"test_tasks.py::test_trace_log_arguments::test_task_{end}": (
        "Celery's: it waits 10 ms for what a thread of the worker logs after the result is there"
    )
    for end in ("success", "failed")
}


def test_celerys_tests_of_tasks_and_remote_control_pass(source_cache, tmp_path, redis_factory):
    """Celery's own tests of tasks and of remote control pass."""
    CelerySuite(source_cache, tmp_path, redis_factory).run(
        FILES, failing={}, skipped=SKIPPED, racing=RACING, at_least=72, timeout_s=500
    )


@pytest.mark.parametrize(
    ("file", "at_least"), [("test_worker.py", 6), ("test_group_chains.py", 13)]
)
def test_celerys_tests_of_workers_and_of_groups_in_chains_pass(
    file, at_least, source_cache, tmp_path, redis_factory
):
    """Celery's own tests of workers and of groups in chains pass in a separate run of each file."""
    # In one run with other files they fail over redis:// too, because they leave state behind.
    CelerySuite(source_cache, tmp_path, redis_factory).run(
        [file], failing={}, skipped={}, at_least=at_least, processes=1, timeout_s=300
    )
