"""The browser that the tests look with: the system's Chromium, driven by Playwright.

It reaches this machine's loopback and nothing else, and its profile ends with it. The binary
comes from PATH or from RELIQ_TEST_CHROMIUM; none found is an error, never a skip.
"""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from playwright.sync_api import expect, sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_ARGUMENTS = (
    # A name that is not this machine's is not found, and no proxy is asked for it.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--no-proxy-server",
    # Pictures look the same wherever they are made.
    "--font-render-hinting=none",
    "--hide-scrollbars",
)
WITHIN_MS = 20_000
"""So long is waited for what should come soon, on a machine that is busy."""


def chromium_binary() -> str:
    """Return the Chromium to test with; raise where there is none."""
    choice = os.environ.get("RELIQ_TEST_CHROMIUM", "")
    names = (choice,) if choice else _NAMES
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        raise RuntimeError(
            f"no {' or '.join(names)}: install one (apt-get install chromium), or set "
            "RELIQ_TEST_CHROMIUM to a path"
        )
    return found


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a Chromium. While it runs this thread has an event loop: asyncio.run() is refused."""
    expect.set_options(timeout=WITHIN_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium_binary(), args=list(_ARGUMENTS)
        )
        try:
            yield browser
        finally:
            browser.close()
