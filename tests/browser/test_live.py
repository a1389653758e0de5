"""Live pages: running tasks, dying workers and an unreachable broker appear without a reload."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

import reliq
from tests.browser.conftest import APP, Stand
from tests.browser.looking import cell, row, wait_live

STAYS = "window.stays"


def stays(page):
    """Set a mark in the page that a reload would remove."""
    page.evaluate(f"{STAYS} = true")


def never_reloaded(page):
    """Fail if the page was reloaded."""
    assert page.evaluate(STAYS) is True


def test_the_overview_changes_by_itself(stand, sign_in, tmp_path):
    """An operator and a viewer see a queue appear, fill and empty as its tasks run."""
    pages = [sign_in(stand.url, user).open(live=True) for user in ("otto", "vera")]
    for page, user, role in zip(pages, ("otto", "vera"), ("operator", "read-only"), strict=True):
        expect(page.locator(".who")).to_contain_text(user)
        expect(page.locator(".who")).to_contain_text(role)
        stays(page)
    end = tmp_path / "end"

    for _ in range(5):
        stand.site.send("record_until", str(end), queue="orders")
    stand.site.send("record_until", str(end), queue="orders", countdown=3600)
    for page in pages:
        # Four threads with a prefetch of four each, so all five are held.
        expect(cell(page, "orders", "In flight")).to_have_text("5")
        expect(cell(page, "orders", "Ready")).to_have_text("0")
        expect(cell(page, "orders", "Delayed")).to_have_text("1")
        expect(cell(page, "orders", "Consumers")).to_have_text("1")

    end.touch()
    for page in pages:
        expect(cell(page, "orders", "In flight")).to_have_text("0")
        expect(cell(page, "orders", "Out/s")).to_have_text(re.compile(r"0\.\d|[1-9]"))
        never_reloaded(page)


def test_a_task_is_watched_as_its_worker_is_killed(stand, as_operator, tmp_path):
    """If its worker is killed, a task in flight has failed once, and another worker runs it."""
    work = {"app": APP, "pool": "solo", "queues": ["frail"]}
    first = stand.site.worker(name="first", **work)
    end = tmp_path / "end"
    task = stand.site.send("record_until", str(end), queue="frail")
    stand.site.journal.wait_started(task.id)
    page = as_operator.open("/queue?queue=frail&state=unacked", live=True)
    stays(page)
    held = row(page, "record_until")
    expect(held).to_have_count(1)
    expect(held).to_contain_text(first.name)
    expect(cell(page, "record_until", "Redelivered")).to_have_text("0")
    expect(cell(page, "record_until", "Lease left")).to_have_text(re.compile(r"^[\d.]+ ?m?s$"))

    first.kill()
    expect(page.get_by_role("region", name="Consumers")).to_contain_text("gone")
    second = stand.site.worker(name="second", **work)
    expect(held).to_contain_text(second.name)
    expect(cell(page, "record_until", "Redelivered")).to_have_text("1")
    assert 2 == stand.site.journal.runs(task.id)

    end.touch()
    expect(page.get_by_text("No messages in flight.")).to_be_visible()
    never_reloaded(page)
    stand.site.settled("frail")


def test_a_batch_is_followed_to_its_end(stand, as_operator, as_viewer, tmp_path):
    """The progress of a batch grows to 100 %, and its failed job is listed with the reason."""
    end = tmp_path / "end"
    send = stand.site.app
    with reliq.Batch("import of prices", app=stand.site.app) as batch:
        for _ in range(3):
            send.send_task("record_until", (str(end),), queue="import")
        send.send_task("end_early", ("failed",), queue="import")
    batch.close()
    page = as_viewer.open("/batches", live=True)
    expect(cell(page, "import of prices", "Done")).to_have_text(re.compile(r"25(\.0)? %"))
    expect(cell(page, "import of prices", "Failed")).to_have_text("1")
    row(page, "import of prices").get_by_role("link").click()
    expect(page).to_have_url(re.compile(f"/batch.*{batch.id}"))
    wait_live(page)
    stays(page)
    expect(page.locator("#batch")).to_contain_text(re.compile(r"25(\.0)? %"))
    expect(page.locator("#batch")).to_contain_text("1 of 4 jobs have ended")
    meter = page.get_by_role("img", name=re.compile(r"25(\.0)? percent done, 1 failed"))
    expect(meter).to_be_visible()
    expect(page.get_by_role("region", name="Jobs")).to_contain_text("price is missing")

    end.touch()
    expect(page.locator("#batch")).to_contain_text(re.compile(r"100(\.0)? %"))
    expect(
        page.get_by_role("img", name=re.compile(r"100(\.0)? percent done, 1 failed"))
    ).to_be_visible()
    expect(page.locator("#batch")).to_contain_text(re.compile(r"ended .* after"))
    never_reloaded(page)


def test_a_page_outlives_its_broker(redis_factory, sign_in, tmp_path):
    """A page marks its data as outdated during a broker outage, and updates by itself afterwards.

    The same holds for an outage of `reliq web`.
    """
    server = redis_factory(appendonly=True)
    stand = Stand(server, tmp_path)
    try:
        stand.site.send("record", queue="orders")
        looking = sign_in(stand.url)
        page = looking.open("/queue?queue=orders", live=True)
        overview = looking.open("/", live=True)
        for one in (page, overview):
            stays(one)
        expect(row(page, "record")).to_have_count(1)

        server.kill()
        expect(page.get_by_role("status")).to_contain_text("This data is outdated")
        expect(row(page, "record")).to_have_count(1)
        expect(overview.get_by_role("alert")).to_contain_text("Unavailable")
        opened = looking.open("/consumers")  # during the outage
        expect(opened.locator("main")).to_contain_text(re.compile("unreachable|refused"))
        looking.clean("503")

        server.start()
        expect(page.locator("#state")).to_be_hidden()
        expect(overview.get_by_role("alert")).to_have_count(0)
        expect(opened.get_by_role("region", name="Consumers")).to_be_visible()
        stand.site.send("record", queue="orders")
        expect(row(page, "record")).to_have_count(2)

        looking.clean("503")
        stand.web.kill_group()
        expect(page.get_by_role("status")).to_contain_text("reliq web does not answer")
        expect(row(page, "record")).to_have_count(2)
        stand.serve(port=stand.web.port)
        expect(page.locator("#state")).to_be_hidden()
        stand.site.send("record", queue="orders")
        expect(row(page, "record")).to_have_count(3)
        for one in (page, overview):
            never_reloaded(one)
        looking.clean("ERR_CONNECTION_REFUSED|ERR_INCOMPLETE|ERR_EMPTY")
    finally:
        stand.close()


def test_news_leave_focus_selection_and_scroll(stand, as_operator):
    """Live updates keep the focus, the selection, the typed text and the scroll position."""
    for n in range(60):
        stand.site.send("record", n, queue="list", countdown=3600 + n)
    page = as_operator.open("/queue?queue=list&state=delayed", live=True)
    page.set_viewport_size({"width": 641, "height": 400})  # on a phone, the rows are cards
    page.evaluate("document.documentElement.style.zoom = 1.5")  # the list is wider than the page
    stays(page)
    rows = page.locator("#messages tbody tr")
    expect(rows).to_have_count(50)
    key = rows.nth(30).get_attribute("data-key")
    kept = page.locator(f"tr[data-key='{key}']")
    kept.get_by_role("link").focus()
    page.evaluate("scrollTo(0, document.body.scrollHeight / 2)")
    region = page.get_by_role("region", name="Messages")
    across = region.evaluate("(it) => { it.scrollLeft = 30; return it.scrollLeft; }")
    assert across
    before = kept.bounding_box()["y"]

    for n in range(3):
        stand.site.send("record", "early", n, queue="list", countdown=60 + n)
    expect(page.locator("#head")).to_contain_text("63")
    expect(rows.filter(has_text="early")).to_have_count(3)
    focused = "document.activeElement.closest('tr').dataset.key"
    assert key == page.evaluate(focused)
    assert across == region.evaluate("(it) => it.scrollLeft")
    # The browser keeps the visible rows in place, although three rows have appeared above them.
    assert before == pytest.approx(kept.bounding_box()["y"], abs=2)

    # New rows do not change the selection.
    page.evaluate(
        "(key) => getSelection().selectAllChildren("
        "document.querySelector(`tr[data-key='${key}'] .args`))",
        key,
    )
    selected = page.evaluate("String(getSelection())")
    stand.site.send("record", "late", queue="list", countdown=61)
    expect(page.locator("#head")).to_contain_text("64")
    assert selected == page.evaluate("String(getSelection())") != ""
    page.evaluate("getSelection().removeAllRanges()")
    expect(rows.filter(has_text="late")).to_have_count(1)

    # They do not change a field during typing either.
    field = page.get_by_role("textbox", name="Value")
    field.fill("12")
    stand.site.send("record", "latest", queue="list", countdown=62)
    expect(page.locator("#head")).to_contain_text("65")
    expect(field).to_be_focused()
    expect(field).to_have_value("12")
    never_reloaded(page)


# Playwright has every tab in the foreground. This script does what a browser does with a hidden
# tab.
_HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_tabs_in_the_background_leave_the_server_alone(stand, as_operator):
    """Ten open tabs do not use up the browser's six connections, and the front tab stays live."""
    tabs = []
    for _ in range(10):
        tabs.append(as_operator.open("/", live=True))
        stays(tabs[-1])
        tabs[-1].evaluate(_HIDE, True)
    stand.site.send("record", queue="tabs")

    tabs[0].evaluate(_HIDE, False)
    expect(cell(tabs[0], "tabs", "Ready")).to_have_text("1")
    never_reloaded(tabs[0])
