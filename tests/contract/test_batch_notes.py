"""Progress and reports of running jobs: bounded in number and size, and read in pages."""

import pytest

from reliq.batches.jobs import Change, Note
from reliq.values.limits import PROGRESS_LISTED, REPORTS_KEPT, REPORTS_OF_A_JOB
from tests.contract.jobs import OTHER_TAG, begin, end, enter, job_of, lost


def said(batches, job="j", progress=(3, 10, "checking"), report="", token=1, retries=0):
    """Record a job's progress or report; return whether it was stored."""
    return batches.note("b", Note(job, retries, token, "q", progress, report))


def shown(batches, limit=10, skip=0):
    """Return the known progress of jobs, without the time."""
    return [(*one[:2], *one[3:]) for one in batches.progress("b", limit, skip)]


def reports(batches, limit=10, skip=0):
    """Return the reports of jobs, without the time."""
    return [(one.job, one.text) for one in batches.reports("b", limit, skip)]


def test_how_far_a_job_is(change, batches):
    """The progress of a job is its last one, with the time and with the job's current state."""
    change(enter(), begin())
    assert said(batches)
    assert said(batches, progress=(4.5, 10, "sending | it\n"))
    assert [("j", "working", 4.5, 10.0, "sending | it\n")] == shown(batches)
    (progress,) = batches.progress("b", 10)
    assert progress.at_ms >= batches.batch("b").created_ms
    change(end("succeeded"))
    assert "succeeded" == batches.progress("b", 10)[0].state
    assert [] == reports(batches)


def test_reports_are_appended(change, batches):
    """Reports of any text are appended and listed in pages, the last one first."""
    change(enter(), enter("i|1"), begin(), begin("i|1"))
    for n in range(3):
        assert said(batches, progress=None, report=f"{n}|ü\n")
    assert said(batches, "i|1", progress=None, report="1|other")
    assert [("i|1", "1|other"), ("j", "2|ü\n"), ("j", "1|ü\n")] == reports(batches, 3)
    assert [("j", "0|ü\n")] == reports(batches, 3, 3)
    assert [] == shown(batches)
    (*_, oldest) = batches.reports("b", 10)
    assert oldest.at_ms >= batches.batch("b").created_ms


def test_nothing_of_it_is_counted(change, batches):
    """Progress and reports change neither the job's state nor the counters."""
    change(enter(), begin())
    before, job = batches.batch("b"), job_of(batches, "b", "j")
    said(batches, report="price is missing")
    assert (before, job) == (batches.batch("b"), job_of(batches, "b", "j"))


def test_a_job_reports_so_often(change, batches):
    """A job has a bounded number of reports; its progress is stored beyond that."""
    change(enter(), enter("i"), begin(), begin("i"))
    noted = [said(batches, progress=None, report=f"{n}") for n in range(REPORTS_OF_A_JOB + 2)]
    assert [True] * REPORTS_OF_A_JOB + [False] * 2 == noted
    assert said(batches, report="one more")
    assert said(batches, "i", progress=None, report="another job's")
    found = reports(batches, 100)
    assert REPORTS_OF_A_JOB + 1 == len(found)
    assert ("i", "another job's") == found[0]
    assert 1 == len(shown(batches))


@pytest.mark.parametrize("last", [end("succeeded"), end("failed"), lost()])
def test_a_job_that_has_ended_says_nothing(change, batches, last):
    """Late progress and reports of a job that has ended are ignored."""
    change(enter(), begin())
    assert said(batches)
    change(last)
    assert not said(batches, progress=(9, 9, "late"), report="late")
    assert (3.0, []) == (batches.progress("b", 1)[0].done, reports(batches))


def test_an_earlier_delivery_says_nothing(change, batches):
    """Progress and reports of an earlier delivery or try are ignored."""
    change(enter(), begin(token=5))
    assert not said(batches, token=4)
    assert said(batches, token=5)
    assert said(batches, token=6)
    change(enter(tag=OTHER_TAG, retries=1))
    assert not said(batches, token=7)
    assert said(batches, token=1, retries=1)


def test_nobody_is_there(change, batches):
    """Progress and reports without a batch or without a job are ignored."""
    change(enter())
    assert not batches.note("none", Note("j", progress=(1, 2, ""), report="x"))
    assert not said(batches, "none", report="x")
    assert ([], []) == (shown(batches), reports(batches))
    assert ([], []) == (batches.progress("none", 9), batches.reports("none", 9))


def test_pages(change, batches):
    """Pages of progress list each job once, most recent progress first."""
    names = [f"j{n:02}" for n in range(7)]
    change(*(enter(name) for name in names), *(begin(name) for name in names))
    for name in names:
        said(batches, name)
    pages = [[one.job for one in batches.progress("b", 3, skip)] for skip in (0, 3, 6, 9)]
    assert [3, 3, 1, 0] == [len(page) for page in pages]
    assert sorted(names) == sorted(job for page in pages for job in page)
    assert [] == shown(batches, 0)
    assert [] == reports(batches, 0)


def test_long_texts_are_cut(change, batches):
    """Texts of progress and reports are cut to 500 characters that can be encoded."""
    change(enter(), begin())
    said(batches, progress=(1, 2, "ü" * 9999), report="half \ud800" + "x" * 9999)
    assert "ü" * 500 == shown(batches)[0][-1]
    ((_, text),) = reports(batches)
    assert ("half \\ud800x", 500) == (text[:12], len(text))


@pytest.mark.parametrize(
    ("number", "noted"), [(-1, 0.0), (10**400 // 1, 2.0**53 - 1), (0.1, 0.1), (2**60, 2.0**53 - 1)]
)
def test_numbers(change, batches, number, noted):
    """Numbers of progress are clamped between 0 and the largest integer that scripts count with."""
    change(enter(), begin())
    said(batches, progress=(number, number, ""))
    assert [("j", "working", noted, noted, "")] == shown(batches)


def test_it_is_forgotten_with_the_batch(change, batches):
    """Progress and reports are forgotten with their batch."""
    change(enter(), begin())
    said(batches, report="x")
    batches.forget_batch("b")
    batches.open_batch("b", "again", {})
    change(enter(), begin())
    assert ([], []) == (shown(batches), reports(batches))


@pytest.mark.slow
def test_so_many_are_kept(change, batches):
    """A batch keeps a bounded number of reports and of jobs with progress, the latest ones."""
    names = [f"j{n}" for n in range(REPORTS_KEPT // REPORTS_OF_A_JOB + 1)]
    change(*(enter(name) for name in names), *(begin(name) for name in names))
    for name in names:
        for n in range(REPORTS_OF_A_JOB):
            said(batches, name, progress=None, report=f"{n}")
    assert REPORTS_KEPT == len(batches.reports("b", 2 * REPORTS_KEPT))
    assert (names[1], "0") == reports(batches, 1, REPORTS_KEPT - 1)[0]
    more = [f"k{n}" for n in range(PROGRESS_LISTED + 5)]
    change(*(enter(name) for name in more), *(begin(name) for name in more))
    for name in more:
        said(batches, name)
    assert PROGRESS_LISTED == len(batches.progress("b", 2 * PROGRESS_LISTED))


def test_a_replayed_job_goes_on(change, batches):
    """Progress and reports of a replayed job continue the earlier ones."""
    change(enter(), begin())
    said(batches, report="first")
    change(lost(), Change("replay", "j", tag=OTHER_TAG, queue="q"), begin(token=2, tag=OTHER_TAG))
    assert said(batches, token=2, progress=(1, 10, "again"), report="second")
    assert [("j", "second"), ("j", "first")] == reports(batches)
    assert [("j", "working", 1.0, 10.0, "again")] == shown(batches)
