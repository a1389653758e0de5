"""Dead letters: grouped by cause, inspected before an action, replayed at a limited rate."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from reliq.admin import Inspector
from tests.browser.looking import cell, row, wait_live
from tests.browser.stock import publish, reject, task

COUNT = 8


def dead_ids(url, queue):
    """Return the task ids of a queue's dead letters, as the broker has them."""
    with Inspector(url) as inspector:
        return {letter.id for letter in inspector.dead_letters(queue)}


def test_a_group_is_replayed_with_its_progress(stand, as_operator):
    """Each cause has its own group, and a paced replay of one group lowers its count."""
    url = stand.site.broker
    for _ in range(COUNT):
        stand.site.send("reject_first", queue="refunds")
    failed = stand.site.send("end_late", "error", queue="refunds")
    stand.site.wait_counts("refunds", dead=COUNT + 1)
    page = as_operator.open("/dead?queue=refunds", live=True)
    expect(cell(page, "reject_first", "Dead")).to_have_text(str(COUNT))
    expect(cell(page, "end_late", "Dead")).to_have_text("1")
    expect(cell(page, "end_late", "Reason")).to_have_text("rejected")
    counts = as_operator.open("/queue?queue=refunds&state=dead", live=True)
    listed = counts.locator("#messages tbody tr")
    expect(listed).to_have_count(COUNT + 1)

    # The confirmation states the number of messages, and nothing is done yet.
    row(page, "reject_first").get_by_role("link", name="reject_first").click()
    page.get_by_role("link", name="Replay all").click()
    expect(page.locator("main")).to_contain_text(re.compile(rf"{COUNT}\s+messages now"))
    page.get_by_role("link", name="Back").click()
    assert COUNT + 1 == len(dead_ids(url, "refunds"))

    page.get_by_role("link", name="Replay all").click()
    page.get_by_label("Rate limit, messages per second").fill("4")
    page.get_by_role("button", name="Replay").click()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    wait_live(page)
    progress = page.get_by_role("img", name=re.compile(rf"^[1-9]\d* of {COUNT}$"))
    expect(progress).to_be_visible()
    expect(listed).not_to_have_count(COUNT + 1)
    expect(page.locator("#operation")).to_contain_text(f"of {COUNT}, done after")
    expect(listed).to_have_count(1)
    assert {failed.id} == dead_ids(url, "refunds")
    stand.site.settled("refunds", dead=1)

    # The group of the other cause is purged, and the log has both actions.
    as_operator.go(page, "/dead?queue=refunds")
    row(page, "end_late").get_by_role("link", name="end_late").click()
    page.get_by_role("link", name="Purge all").click()
    page.get_by_role("button", name="Purge").click()
    expect(page.locator("main")).to_contain_text(re.compile("1 of 1, done"))
    expect(counts.get_by_text("No dead letters.")).to_be_visible()
    stand.site.settled("refunds")
    as_operator.go(page, "/log")
    expect(page.get_by_role("region", name="Actions")).to_contain_text("done after 8 of 8")


@pytest.mark.parametrize("scripted", [True, False], ids=["scripted", "plain"])
def test_some_are_chosen_exported_and_replayed(scripted, stand, sign_in, tmp_path):
    """Two selected dead letters are replayed after all were exported to a file."""
    queue = f"chosen-{scripted}"
    for n in range(4):
        publish(stand.site.broker, queue, [[[n], {}, {}]], headers=task("shop.ship", n))
    reject(stand.site.broker, queue, 4)
    looking = sign_in(stand.url, java_script_enabled=scripted)
    page = looking.open(f"/dead?queue={queue}")
    row(page, "shop.ship").get_by_role("link", name="shop.ship").click()
    group = page.url

    page.get_by_role("button", name="Export").click()
    ended = page.get_by_role("link", name="Download")
    if not scripted:
        for _ in range(100):
            if ended.count():
                break
            page.reload()
    with page.expect_download() as download:
        ended.click()
    download.value.save_as(tmp_path / "letters")
    assert 5 == len((tmp_path / "letters").read_text().splitlines())  # a header and four letters

    page.goto(group)
    boxes = page.get_by_role("checkbox")
    expect(boxes).to_have_count(4)
    page.get_by_role("button", name="Replay selected").click()
    expect(page.locator(".failure")).to_contain_text("tick")  # an empty selection selects nothing
    looking.clean("400")
    page.goto(group)
    boxes.nth(0).check()
    boxes.nth(2).check()
    if scripted:  # a new dead letter clears no tick
        publish(stand.site.broker, queue, [[[4], {}, {}]], headers=task("shop.ship", 4))
        reject(stand.site.broker, queue, 1)
        expect(boxes).to_have_count(5)
        expect(page.get_by_role("checkbox", checked=True)).to_have_count(2)
    page.get_by_role("button", name="Replay selected").click()
    expect(page.locator("main")).to_contain_text(re.compile(r"2\s+messages now"))
    page.get_by_role("button", name="Replay").click()
    stand.site.wait_counts(queue, dead=2 + scripted, ready=2)


def test_a_search_leads_to_a_message(stand, as_viewer):
    """A search for a task id leads from any page to the message, its state and its content."""
    sent = stand.site.send("shop.refund", 4711, queue="searched", countdown=600)
    page = as_viewer.open("/consumers")
    page.get_by_role("searchbox").fill(sent.id)
    page.keyboard.press("Enter")
    expect(row(page, "shop.refund")).to_have_count(1)
    expect(cell(page, "shop.refund", "Queue")).to_have_text("searched")
    row(page, "shop.refund").get_by_role("link", name="shop.refund").click()
    main = page.locator("main")
    expect(page.get_by_role("heading", level=1)).to_contain_text("shop.refund")
    expect(main).to_contain_text("delayed until")
    expect(page.get_by_role("region", name="Headers")).to_contain_text(sent.id)
    expect(page.get_by_role("region", name="Body")).to_contain_text("4711")
    expect(page.get_by_role("region", name="History")).to_contain_text("Published")
