"""Properties of every page: links lead to it, and it is readable for everyone on every screen."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import expect

from reliq.web.pages import PAGES
from tests.browser.looking import Browsing, beside_the_screen, overflow, row, squeezed
from tests.browser.stock import fill
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

QUEUE = "stock"
# Query parameters that choose another list or action. Of the others, one value each is enough.
_CHOICES = {"all", "state", "stage", "action"}
_PHONE = {"width": 360, "height": 780}
_DESK = {"width": 1280, "height": 800}

_FOCUSABLE = """() => {
  const all = document.querySelectorAll(
    "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']");
  const seen = [...all].filter((it) => it.checkVisibility());
  seen.forEach((it, n) => { it.order = n; });
  document.activeElement.blur();
  return seen.map((it) => it.outerHTML.slice(0, 120));
}"""
_FOCUSED = """() => {
  const it = document.activeElement;
  return [it.order ?? -1, parseFloat(getComputedStyle(it).outlineWidth) > 0
    && getComputedStyle(it).outlineStyle !== "none"];
}"""


@pytest.fixture(scope="module")
def stocked(stand):
    """Return the stand, with a queue that has a message in every state."""
    with fill(stand.site, QUEUE):
        yield stand


@pytest.fixture(scope="module")
def addresses(stocked, browser):
    """Return the address of each page with its texts without JavaScript.

    The addresses are found by an operator's links.
    """
    operator = Browsing(browser, stocked.url, "otto", java_script_enabled=False)
    try:
        page = operator.open("/dead?queue=stock")
        row(page, "shop.refund").get_by_role("link").first.click()
        page.get_by_role("button", name="Export").click()  # an operation, to which the log links
        expect(page.get_by_role("heading", name="Export")).to_be_visible()
        found = dict(crawl(page, stocked.url))
        operator.clean()
    finally:
        operator.close()
    return found


def crawl(page: Page, root: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each kind of linked page once, with its texts."""
    waiting = ["/", "/search?text=shop", f"/queue?queue={QUEUE}"]
    known = set()
    while waiting:
        address = waiting.pop(0)
        parts = urlsplit(address)
        query = parse_qsl(parts.query)
        kind = parts.path, *sorted(item for item in query if item[0] in _CHOICES)
        if kind in known or parts.path == "/download":
            continue
        known.add(kind)
        answer = page.goto(root + address)
        assert answer is not None
        assert 200 == answer.status, f"{address}: {page.inner_text('main')}"
        yield address, read(page)
        links = page.eval_on_selector_all("a[href]", "(all) => all.map((it) => it.href)")
        waiting += [link.removeprefix(root).partition("#")[0] for link in links]


def read(page: Page) -> list[str]:
    """Return the texts of a page's headings, table heads, buttons and navigation links."""
    return page.locator("h1, h2, main thead th, main button, main .button, nav a").all_inner_texts()


def test_links_lead_to_every_page(addresses):
    """The links lead to all pages, so the other tests of this file leave none out."""
    assert {page.path for page in PAGES} <= {urlsplit(address).path for address in addresses}


def test_every_page_is_fit_for_every_reader(addresses, stocked, sign_in):
    """No page has a serious axe violation in either theme, and none is wider than a phone.

    Each page has the same texts with and without JavaScript.
    """
    operator = sign_in(stocked.url)
    page = operator.open()
    wrong = []
    for address, plain in addresses.items():
        page.set_viewport_size(_DESK)
        page.emulate_media(color_scheme="light")
        operator.go(page, address)
        if plain != read(page):
            wrong.append(f"{address}: {plain} without JavaScript, with it {read(page)}")
        page.evaluate(AXE_SCRIPT)
        wrong += serious(page, address, "light", None)
        wrong += [f"{address}: {overflow(page)} px too wide on a desk"] * bool(overflow(page))
        page.emulate_media(color_scheme="dark")
        wrong += serious(page, address, "dark", ["color-contrast"])
        page.set_viewport_size(_PHONE)
        wrong += [f"{address}: {overflow(page)} px too wide on a phone"] * bool(overflow(page))
        hidden = beside_the_screen(page)
        wrong += [f"{address}: beside a phone's screen: {text}" for text in hidden]
        wrong += [f"{address}: squeezed on a phone: {text}" for text in squeezed(page)]
    assert [] == wrong, "\n".join(wrong)


def serious(page, address, theme, rules):
    """Return the axe violations that keep a reader from reading or using the page."""
    options = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = rules
    found = page.evaluate("(options) => axe.run(options)", options)["violations"]
    return [
        f"{address} ({theme}): {one['id']}: {node['html'][:200]}: {node['failureSummary']}"
        for one in found
        if one["impact"] in {"serious", "critical"}
        for node in one["nodes"][:2]
    ]


def test_the_theme_is_that_of_the_system(stocked, sign_in):
    """The page is dark or light, as the system is."""
    looking = sign_in(stocked.url, color_scheme="dark")
    page = looking.open()
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.emulate_media(color_scheme="light")
    light = page.evaluate(background)
    assert light != dark


def test_the_keyboard_reaches_everything(addresses, stocked, sign_in):
    """Tab reaches each link, button, field and scrolling list, and each shows its focus."""
    operator = sign_in(stocked.url)
    page = operator.open()
    unreached = []
    for path, address in {urlsplit(address).path: address for address in addresses}.items():
        operator.go(page, address)
        everything = page.evaluate(_FOCUSABLE)
        reached = set()
        for _ in everything:
            page.keyboard.press("Tab")
            number, is_seen = page.evaluate(_FOCUSED)
            reached.add(number)
            if number >= 0 and not is_seen:
                unreached.append(f"{path}: not seen to have the focus: {everything[number]}")
        unreached += [
            f"{path}: {everything[n]}" for n in range(len(everything)) if n not in reached
        ]
    assert [] == unreached

    operator.go(page, "/")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    wait_until(lambda: page.evaluate("!!document.activeElement.closest('main')"))
