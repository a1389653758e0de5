"""Actions of operators; viewers and other sites cannot perform any."""

from __future__ import annotations

import html
import re

import pytest
from playwright.sync_api import expect

from reliq.admin import Inspector
from tests.browser.looking import cell, row, wait_live
from tests.browser.reverse_proxy import USER_HEADER, foreign_site, reverse_proxy
from tests.browser.stock import publish, task


def is_paused(stand, queue):
    """Return whether the broker has the queue as paused."""
    with Inspector(stand.site.broker) as inspector:
        return inspector.status(queue).paused


@pytest.mark.parametrize("scripted", [True, False], ids=["scripted", "plain"])
def test_a_queue_is_paused_resumed_set_and_purged(scripted, stand, sign_in):
    """Each action works by keyboard and without JavaScript, and is reported and logged."""
    queue = f"paused-{scripted}"
    publish(stand.site.broker, queue, [[[1], {}, {}]] * 3, headers=task("shop.ship", 1))
    page = sign_in(stand.url, java_script_enabled=scripted).open(f"/queue?queue={queue}")
    notice = page.locator("main").get_by_role("status")

    page.get_by_role("button", name="Pause").press("Enter")
    expect(notice).to_contain_text(f"pause {queue}: paused")
    assert is_paused(stand, queue)
    page.get_by_role("button", name="Resume").click()
    expect(notice).to_contain_text(f"resume {queue}: resumed")
    assert not is_paused(stand, queue)

    page.get_by_role("combobox", name="Setting").select_option("x-max-length")
    page.get_by_role("textbox", name="Value").fill("500")
    page.keyboard.press("Enter")
    expect(notice).to_contain_text("x-max-length is 500")

    page.get_by_role("link", name="Purge").click()
    expect(page.locator("main")).to_contain_text(re.compile(r"3\s+messages now"))
    page.get_by_role("link", name="Back").click()
    expect(row(page, "shop.ship")).to_have_count(3)
    page.get_by_role("link", name="Purge").click()
    page.get_by_role("button", name="Purge").click()
    expect(notice).to_contain_text(f"purge {queue}: 3 messages removed")
    expect(row(page, "shop.ship")).to_have_count(0)

    page.get_by_role("link", name="Log", exact=True).click()
    log = page.get_by_role("region", name="Actions").locator("tr", has_text=queue)
    expect(log).to_have_count(4)
    expect(log.first).to_contain_text("otto")
    expect(log.first).to_contain_text("purge")


def test_a_paused_queue_waits_and_a_resumed_one_goes_on(stand, as_operator):
    """The tasks of a paused queue stay ready, and run when the queue is resumed."""
    page = as_operator.open("/", live=True)
    stand.site.wait_counts("mail")
    row(page, "mail").get_by_role("link").click()
    page.get_by_role("button", name="Pause").click()
    wait_live(page)
    sent = stand.site.send("record", queue="mail")
    expect(row(page, "record")).to_have_count(1)
    assert 0 == stand.site.journal.runs(sent.id)

    page.get_by_role("button", name="Resume").click()
    stand.site.journal.wait_finished(sent.id)
    expect(row(page, "record")).to_have_count(0)


def test_a_viewer_acts_on_nothing(stand, as_viewer):
    """A viewer sees no button and no confirmation, and a viewer's POST is refused."""
    publish(stand.site.broker, "viewed", [[[1], {}, {}]], headers=task("shop.ship", 1))
    page = as_viewer.open("/queue?queue=viewed", live=True)
    acting = page.locator("main button, main form, main [href*='/confirm']")
    expect(acting).to_have_count(0)
    as_viewer.go(page, "/confirm?action=purge&queue=viewed")
    expect(acting).to_have_count(0)
    expect(page.locator("main")).to_contain_text("You are a viewer")

    post = "(path) => fetch(path, {method: 'POST'}).then((answer) => answer.status)"
    for action in ("pause", "purge"):
        assert 403 == page.evaluate(post, f"/actions/{action}?queue=viewed")
    as_viewer.clean("403")
    assert not is_paused(stand, "viewed")
    as_viewer.go(page, "/queue?queue=viewed")
    expect(row(page, "shop.ship")).to_have_count(1)


def test_another_site_cannot_use_an_operators_browser(stand, sign_in):
    """A form posted by another site is refused, and the site cannot show a page in a frame."""
    publish(stand.site.broker, "forged", [[[1], {}, {}]])
    operator = sign_in(stand.url)
    page = operator.open("/queue?queue=forged")  # signs in
    target = html.escape(f"{stand.url}/actions/pause?queue=forged")
    form = f'<form method="post" action="{target}"><button>Win a prize</button></form>'
    frame = f'<iframe src="{stand.url}/queue?queue=forged"></iframe>'
    with foreign_site(f"<!doctype html><title>prizes</title>{form}{frame}") as prizes:
        page.goto(prizes)
        inside = page.frames[1]
        assert 0 == inside.locator("main").count()
        with page.expect_response(lambda it: it.request.method == "POST") as answer:
            page.get_by_role("button", name="Win a prize").click()
        assert 403 == answer.value.status
        expect(page.locator("main")).to_contain_text("the request came from another site")
    operator.clean("403", "frame", re.escape(prizes), "favicon")
    assert not is_paused(stand, "forged")


def test_it_works_under_a_path_of_a_proxy(stand, sign_in):
    """Behind a proxy, links, files, events and actions stay under its path; it names the user."""
    publish(stand.site.broker, "behind", [[[1], {}, {}]], headers=task("shop.ship", 1))
    arguments = ("--allow-actions", "--root-path", "/ops/queues", "--operator", "otto")
    server = stand.serve(*arguments, "--user-header", USER_HEADER, login=False)
    with reverse_proxy(server.address, "/ops/queues") as url:
        operator, viewer = sign_in(url, "otto"), sign_in(url, "vera")
        page = operator.open("/", live=True)
        seen = viewer.open("/queue?queue=behind", live=True)
        row(page, "behind").get_by_role("link").click()
        expect(page).to_have_url(re.compile(rf"^{re.escape(url)}/queue\?"))
        wait_live(page)
        page.get_by_role("button", name="Pause").click()
        expect(page.locator("main").get_by_role("status")).to_contain_text("pause behind: paused")
        assert is_paused(stand, "behind")
        expect(seen.get_by_role("heading", name="behind")).to_contain_text("paused")
        expect(seen.locator("main button")).to_have_count(0)
        for link in page.locator("a[href], link[href]").all():
            assert re.match("/ops/queues/|#main$", str(link.get_attribute("href")))
        page.get_by_role("link", name="Log", exact=True).click()
        expect(cell(page, "pause", "User")).to_have_text("otto")
    for looking in (operator, viewer):
        looking.clean("ERR_|502")  # the proxy ends before the browser
        looking.close()
