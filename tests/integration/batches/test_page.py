"""examples/batch_progress.py: a page with a progress bar polls the status of a batch."""

from __future__ import annotations

import json
import re
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.audits import wait_settled
from tests.support.processes import Process
from tests.support.waiting import wait_until
from tests.support.workers import CeleryWorker, app_environment

ROOT = Path(__file__).resolve().parents[3]
APP = "examples.batch_progress"


class Page:
    """The requests of a browser."""

    def __init__(self, url):
        self.url = url

    def get(self, path):
        """Return the text at *path*, or the value of its JSON."""
        return self._read(self.url + path)

    def post(self, path):
        """Return the answer to a POST."""
        return self._read(urllib.request.Request(self.url + path, method="POST"))

    @staticmethod
    def _read(request):
        with urllib.request.urlopen(request, timeout=20) as answer:
            text = answer.read().decode()
            is_json = answer.headers["Content-Type"] == "application/json"
            return json.loads(text) if is_json else text


@pytest.fixture
def page(fresh_redis, journal, tmp_path):
    """Return the example's page, with a worker beside it."""
    url = fresh_redis.url("reliq")
    environment = app_environment(None, journal, {}, {"RELIQ_URL": url})
    with ExitStack() as stack:
        worker = CeleryWorker(
            None,
            journal,
            directory=tmp_path,
            name="worker",
            app=APP,
            env={"RELIQ_URL": url},
            pool="threads",
            concurrency=8,
        )
        stack.callback(worker.kill_group)
        server = Process(
            [sys.executable, ROOT / "examples" / "batch_progress.py", "0"],
            env=environment,
            log_path=tmp_path / "page.log",
        )
        stack.callback(server.kill_group)
        worker.wait_ready()
        wait_until(lambda: "open http" in server.log(), what=server.log)
        yield Page(re.search(r"open (http\S+)", server.log())[1])
        wait_settled(url, "celery")


def ended(page, batch):
    """Poll as the page does until the batch has ended; return every answer."""
    answers = []

    def look():
        answers.append(page.get(f"/batches/{batch}"))
        return answers[-1]["ended"]

    wait_until(look, timeout_s=60, what=lambda: answers[-1])
    return answers


def test_the_bar_goes_up_and_the_failures_are_shown(page):
    """The bar rises to 100 %; the 20 of 200 products without a price are listed page by page."""
    assert "<progress" in page.get("/")
    batch = page.post("/batches")["id"]
    answers = ended(page, batch)
    percents = [answer["percent"] for answer in answers]
    assert sorted(percents) == percents
    assert 100.0 == percents[-1]
    assert any(0 < percent < 100 for percent in percents)
    at_work = [job for answer in answers for job in answer["progress"] if job["state"] == "working"]
    assert {3} == {job["total"] for job in at_work}
    assert "looking it up" in {job["text"] for job in at_work}
    last = answers[-1]
    assert {(2, "enrolling it")} == {(job["done"], job["text"]) for job in last["progress"]}
    assert (200, 200) == (last["total"], last["done"])
    assert {"succeeded": 180, "failed": 20} == {k: n for k, n in last["counts"].items() if n}
    assert ["price is missing"] * 20 == [failure["reason"] for failure in last["failures"]]
    more = page.get(f"/batches/{batch}?skip=15")
    assert last["failures"][15:] == more["failures"]
    texts = {message["text"] for message in last["messages"]}
    assert {f"product {n} has no price" for n in range(3, 200, 10)} == texts


def test_it_is_cancelled(page):
    """A cancelled batch skips its waiting jobs."""
    batch = page.post("/batches")["id"]
    page.post(f"/batches/{batch}/cancel")
    last = ended(page, batch)[-1]
    assert last["cancelled_at"]
    assert last["counts"]["cancelled"] > 0


def test_a_batch_that_is_not_there(page):
    """The page answers 404 for an unknown batch."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        page.get("/batches/nothing")
    assert 404 == caught.value.code
    caught.value.close()
