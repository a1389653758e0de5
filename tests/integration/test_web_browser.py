"""The page in a real Chromium, with real workers: what an operator sees and does."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest

import reliq
from reliq.admin import Inspector
from tests.integration.test_web_guard import HOSTILE, USERS
from tests.integration.web_client import fill, kill
from tests.support.web import WebProcess, chromium

pytestmark = pytest.mark.slow

PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 900}
SOON_MS = 30_000
REJECTING = {
    "task_acks_late": True,
    "task_acks_on_failure_or_timeout": False,
    "task_reject_on_worker_lost": False,
}


@pytest.fixture(scope="module")
def browser():
    """Return a Chromium."""
    with chromium() as found:
        yield found


@pytest.fixture
def web(tmp_path):
    """Return a function that starts `reliq web`."""
    with ExitStack() as stack:

        def start(url, *arguments, **env):
            process = WebProcess(url, tmp_path, *arguments, **env)
            stack.callback(process.kill_group)
            return process

        yield start


@pytest.fixture
def look(browser):
    """Return a function that opens a page; what it complains of fails the test."""
    with ExitStack() as stack:
        complaints = []

        def open_page(url, viewport=DESK, **options):
            context = browser.new_context(viewport=viewport, **options)
            stack.callback(context.close)
            page = context.new_page()
            page.set_default_timeout(SOON_MS)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("dialog", lambda dialog: complaints.append(dialog.message))
            page.on("console", lambda message: complaints.append(message.text))
            page.goto(url)
            return page

        yield open_page
    # What a server that is away says of itself is no complaint about the page.
    expected = re.compile(
        r"ERR_CONNECTION_REFUSED|ERR_INCOMPLETE|status of (400|404|503)|ERR_EMPTY_RESPONSE"
    )
    assert [] == [text for text in complaints if not expected.search(text)]


def live(page):
    """Wait until a page has had its first event."""
    page.wait_for_function("() => document.documentElement.dataset.live === 'yes'")
    return page


def shows(page, selector, text):
    """Wait until an element of a page has this text."""
    page.wait_for_function(
        "([selector, text]) => [...document.querySelectorAll(selector)]"
        ".some((node) => node.textContent.includes(text))",
        arg=[selector, text],
    )


def test_a_killed_worker_is_seen_and_its_task_comes_back(site, web, look, tmp_path):
    """Without a reload: held by one who is gone, held by the next; and then done."""
    gate = tmp_path / "gate"
    config = {"task_acks_late": True}
    first = site.worker(pool="solo", config=config)
    task = site.send("record_until", str(gate))
    site.journal.wait_started(task.id)
    served = web(site.broker)
    page = live(look(f"{served.address}/queue?queue=celery&state=unacked"))
    shows(page, "#messages td.args", "gate")
    holder = page.inner_text("#messages tbody td.wraps")
    page.evaluate("window.here = true")
    first.kill_group()
    shows(page, "#queue_consumers", "gone")
    second = site.worker(pool="solo", config=config)
    site.journal.wait_started(task.id, times=2)
    page.wait_for_function(
        "holder => { const node = document.querySelector('#messages tbody td.wraps');"
        " return node && node.textContent !== holder }",
        arg=holder,
    )
    shows(page, "#messages td.args", "gate")
    gate.touch()
    site.journal.wait_finished(task.id)
    shows(page, "#messages tbody", "Nobody holds a message")
    assert page.evaluate("window.here")  # it was never loaded anew
    assert second.running


def test_a_group_of_dead_letters_is_replayed(site, web, look):
    """Found by its cause, looked at first, replayed with a progress, and gone from the list."""
    site.worker(pool="solo", config=REJECTING)
    tasks = [site.send("explode") for _ in range(6)]
    for task in tasks:
        site.journal.wait_started(task.id)
    served = web(site.broker, "--allow-actions")
    page = live(look(f"{served.address}/dead"))
    shows(page, "#dead td.bad", "6")
    page.click("#dead th a")
    page.wait_for_url("**/dead/group*")
    page.click("text=Replay the chosen")
    shows(page, ".failure", "tick")  # who has chosen none means none
    page.go_back()
    page.check("#letters tbody tr:first-child input")
    page.click("text=Replay the chosen")
    shows(page, ".big", "1 message")
    page.click("text=Leave it")
    page.wait_for_url("**/dead/group*")
    page.click("text=Replay all")
    shows(page, ".big", "6 messages")
    page.fill("input[name=rate]", "50")
    page.click("main button.primary")
    page.wait_for_url("**/operation*")
    shows(page, "#operation", "6 of 6, done")
    for task in tasks:
        site.journal.wait_started(task.id, times=2)
    page.goto(f"{served.address}/log")
    shows(page, "#log td", "done after 6 of 6")
    shows(page, "#log td", "local")


def test_a_batch_is_followed_to_its_end(site, web, look):
    """The bar grows, failures come with their reasons, and it says when it has ended."""
    with reliq.Batch("nightly import", app=site.app) as batch:
        for how in ("succeed",) * 5 + ("failed", "error"):
            site.app.send_task("end_late", (how,))
    served = web(site.broker)
    page = live(look(f"{served.address}/batches"))
    page.click("text=nightly import")
    live(page)
    shows(page, "#batch .big", "0.0 %")
    page.evaluate("window.here = true")
    site.worker(app="tests.integration.apps.jobs", pool="solo")
    shows(page, "#batch .big", "100.0 %")
    shows(page, "#batch td", "price is missing")
    shows(page, "#batch .facts", "ended")
    assert page.evaluate("window.here")
    assert batch.id in page.content()


def test_what_somebody_does_is_not_disturbed(redis_url, web, look):
    """Focus, typed text, ticks, selection and scroll stay while everything around changes."""
    fill(redis_url, "q", *range(60))
    kill(redis_url, "q", 40)
    served = web(redis_url, "--allow-actions")
    with Inspector(redis_url) as inspector:
        group = inspector.dead_letter_groups("q").groups[0].fingerprint
    page = live(look(f"{served.address}/dead/group?queue=q&group={group}", {**DESK, "height": 400}))
    page.check("#letters tbody tr:nth-child(3) input")
    page.evaluate("scrollTo(0, 300)")
    kill(redis_url, "q", 1)
    shows(page, "#group dd", "41")
    assert page.is_checked("#letters tbody tr:nth-child(3) input")
    assert 300 == page.evaluate("Math.round(scrollY)")
    focused = "document.activeElement.closest('tr').rowIndex"
    assert 3 == page.evaluate(focused)

    page.goto(f"{served.address}/queue?queue=q")
    live(page)
    page.fill("input[name=value]", "12")
    page.evaluate("getSelection().selectAllChildren(document.querySelector('#head h1'))")
    fill(redis_url, "q", 1)
    shows(page, "#messages .tabs", "Ready20")
    assert "q" == page.evaluate("getSelection().toString().trim()")
    assert "19" == page.inner_text("#head dd >> nth=0")  # what is selected waits
    page.evaluate("getSelection().removeAllRanges()")
    shows(page, "#head dd", "20")
    assert "12" == page.input_value("input[name=value]")


def test_a_broker_that_is_away_is_said_on_the_page(redis_factory, web, look):
    """The page stays; it goes on by itself, also after reliq web itself was started anew."""
    server = redis_factory(appendonly=True)
    url = server.url("reliq")
    fill(url, "orders", 1)
    served = web(url)
    page = live(look(f"{served.address}/queue?queue=orders"))
    page.evaluate("window.here = true")
    server.kill()
    page.wait_for_selector("#state:not([hidden])")
    assert "old" in page.inner_text("#state")
    assert "orders" in page.inner_text("h1")
    late = look(f"{served.address}/queue?queue=orders")
    shows(late, "h1", "away")
    server.start()
    page.wait_for_selector("#state", state="hidden")
    shows(late, "h1", "orders")  # it comes by itself
    served.kill_group()
    page.wait_for_selector("#state:not([hidden])")
    web(url, port=served.port)
    page.wait_for_selector("#state", state="hidden")
    fill(url, "orders", 2)
    shows(page, "#head dd", "2")
    assert page.evaluate("window.here")


def test_actions_ask_first_and_say_what_came_of_them(redis_url, web, look):
    """Pause, a setting, a purge: by the keyboard alone."""
    fill(redis_url, HOSTILE, 1, 2, 3)
    served = web(redis_url, "--allow-actions")
    page = live(look(served.address))
    page.keyboard.press("Tab")
    assert "Skip to the content" == page.evaluate("document.activeElement.textContent")
    page.focus("tbody th a")
    page.keyboard.press("Enter")
    page.wait_for_url("**/queue*")
    page.focus("text=Pause")
    page.keyboard.press("Enter")
    shows(page, ".notice", "paused")
    page.select_option("select[name=name]", "x-max-length")
    page.fill("input[name=value]", "2")
    page.keyboard.press("Enter")
    shows(page, ".notice", "x-max-length is 2")
    page.click("text=Purge")
    shows(page, ".big", "3 messages")
    page.click("main button.primary")
    shows(page, ".notice", "3 messages removed")
    with Inspector(redis_url) as inspector:
        (queue,) = inspector.report().queues
        assert (HOSTILE, True, 0) == (queue.queue, queue.paused, queue.ready)


def test_a_viewer_logs_in_and_finds_a_task(redis_url, web, look):
    """Without scripts, too: every page is whole without them."""
    fill(redis_url, "q", [[1], {}, {}], headers={"task": "shop.pay", "id": "abcd-1234"})
    served = web(redis_url, "--allow-actions", RELIQ_WEB_USERS=USERS)
    page = look(
        served.address,
        java_script_enabled=False,
        http_credentials={"username": "bob", "password": "bobs"},
    )
    assert "bob" in page.inner_text(".who")
    page.fill("input[name=text]", "abcd")
    page.keyboard.press("Enter")
    page.click("main tbody th a")
    assert "shop.pay" in page.inner_text("h1")
    assert "abcd-1234" in page.inner_text("main")
    page.click(".crumbs a")
    assert 0 == page.locator("main form").count()


PAGES = (
    "/", "/queue?queue=orders&state=unacked", "/queue?queue=orders&state=delayed", "/dead",
    "GROUP", "MESSAGE", "/delayed", "/consumers", "/batches", "BATCH", "/health", "/log",
    "/search?text=shop", "/confirm?action=purge&queue=orders", "/queue?queue=none",
)  # fmt: skip


@pytest.fixture(scope="module")
def axe():
    """Return the source of axe-core, which a package for tests brings."""
    import axe_playwright_python

    return (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text("utf-8")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_can_be_read_by_all(redis_url, web, look, axe, theme):
    """In both themes, on a desk and on a phone: nothing serious for axe, nothing too wide."""
    headers = {"task": "shop.pay", "id": "1", "argsrepr": "(1,)", "kwargsrepr": "{}"}
    fill(redis_url, "orders", *[[[n], {}, {}] for n in range(70)], headers=headers)
    fill(redis_url, "orders", [[1], {}, {}], headers={**headers, "x-delay": 900_000})
    fill(redis_url, "a" * 120, 1)
    kill(redis_url, "orders", 3)
    with Inspector(redis_url) as inspector:
        group = inspector.dead_letter_groups("orders").groups[0]
        inspector.pause("a" * 120)
        inspector._store.batches.open_batch("b", "nightly import", {})
    paths = {
        "GROUP": f"/dead/group?queue=orders&group={group.fingerprint}",
        "MESSAGE": f"/message?queue=orders&tag={group.tag}",
        "BATCH": "/batch?id=b",
    }
    served = web(redis_url, "--allow-actions")
    page = look(f"{served.address}/", color_scheme=theme, bypass_csp=True)
    found = []
    for size in (DESK, PHONE):
        page.set_viewport_size(size)
        for name in PAGES:
            page.goto(served.address + paths.get(name, name))
            wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            if wide > 0:
                found.append(f"{name}: {wide} px too wide at {size['width']}")
            page.evaluate(axe)
            result = page.evaluate("axe.run({resultTypes: ['violations']})")
            found += [
                f"{name} at {size['width']}: {item['id']} {item['nodes'][0]['html'][:200]}"
                for item in result["violations"]
                if item["impact"] in {"serious", "critical"}
            ]
    assert [] == found
