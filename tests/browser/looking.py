"""A user's browser: its pages, and the troubles they had.

A look at a page does not show that it ran foreign code, requested another origin or violated its
policy. Each test therefore asserts that none of these happened.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tests.browser.chromium import WITHIN_MS
from tests.browser.served import PASSWORDS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request, WebError

# Logs calls from foreign code, and violations of the page's policy.
_WATCH = """
addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy: ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}`));
for (const name of ["alert", "confirm", "prompt"])
  window[name] = (...given) => console.error(`run: ${name} ${given}`);
"""


class Browsing:
    """The signed-in browser of one person, in a Playwright context of its own."""

    def __init__(self, browser: Browser, url: str, user: str | None = None, **options: Any) -> None:
        self.url = url
        """The root of the pages, without a trailing slash."""
        self.origin = "/".join(url.split("/")[:3])
        self.troubles: list[str] = []
        """The observed troubles: errors of scripts, console messages, requests to other origins."""
        if user is not None:
            login = {"username": user, "password": PASSWORDS[user], "origin": self.origin}
            options["http_credentials"] = login
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(WITHIN_MS)
        self.context.on("console", self._said)
        self.context.on("weberror", self._failed)
        self.context.on("request", self._requested)
        if options.get("java_script_enabled", True):
            self.context.add_init_script(_WATCH)

    def open(self, path: str = "/", *, live: bool = False) -> Page:
        """Open a page in a new tab; with *live*, wait for the page's first events."""
        page = self.context.new_page()
        self.go(page, path, live=live)
        return page

    def go(self, page: Page, path: str, *, live: bool = False) -> None:
        """Show another page in a tab."""
        page.goto(self.url + path)
        if live:
            wait_live(page)

    def clean(self, *expected: str) -> None:
        """Fail if a trouble matches none of the expected patterns; then forget all troubles."""
        troubles, self.troubles = self.troubles, []
        wrong = [one for one in troubles if not any(re.search(it, one) for it in expected)]
        assert [] == wrong, "\n".join(wrong)

    def close(self) -> None:
        """Close the browser with all its tabs."""
        self.context.close()

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            where = message.location.get("url", "")
            self.troubles.append(f"console: {message.text} ({where})")

    def _failed(self, error: WebError) -> None:
        self.troubles.append(f"script: {error.error}")

    def _requested(self, request: Request) -> None:
        if not request.url.startswith(f"{self.origin}/"):
            self.troubles.append(f"request to elsewhere: {request.url[:300]}")


def wait_live(page: Page) -> None:
    """Wait for the first events of the page."""
    page.wait_for_selector("html[data-live]", state="attached")


def overflow(page: Page) -> int:
    """Return by how many pixels the page is wider than its window."""
    width = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    return int(page.evaluate(width))


def beside_the_screen(page: Page) -> list[str]:
    """Return the texts of table cells and links of the navigation that end beside the screen.

    Tables of numbers may scroll sideways (the overview's and the audit's).
    """
    return page.evaluate(
        """() => [...document.querySelectorAll("main th, main td, .top nav a")]
          .filter((it) => !it.closest(".queues, .ledgers") && it.checkVisibility()
            && it.getBoundingClientRect().right > innerWidth)
          .map((it) => it.textContent.trim().slice(0, 60))"""
    )


def squeezed(page: Page) -> list[str]:
    """Return the texts of the table cells that are so narrow that words break."""
    return list(
        page.eval_on_selector_all(
            "td, th",
            """(all) => all.filter((it) => {
              const text = document.createRange();
              text.selectNodeContents(it);
              return it.clientWidth < 90 && text.getBoundingClientRect().height > 110;
            }).map((it) => it.textContent.trim().slice(0, 60))""",
        )
    )


def row(page: Page, text: str) -> Locator:
    """Return the table rows whose name, the link in their first cell, begins with *text*."""
    header = page.locator("th[scope=row]", has_text=re.compile(f"^\\s*{re.escape(text)}"))
    return page.locator("tbody tr", has=header)


def cell(page: Page, name: str, column: str) -> Locator:
    """Return one table cell by the names of its row and its column."""
    table = page.locator("table", has=row(page, name))
    table.first.wait_for()
    heads = table.first.locator("thead th").all_inner_texts()
    at = next(n for n, head in enumerate(heads) if head.strip().startswith(column))
    return row(page, name).locator(f":nth-child({at + 1})").and_(page.locator("td, th"))
