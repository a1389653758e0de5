"""The browser of the tests: the system's Chromium, driven by Playwright.

It reaches only the loopback of this machine, and its profile is deleted when it ends. The binary
comes from PATH or from RELIQ_TEST_CHROMIUM. A missing binary is an error, never a skip.
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
    # The name of another machine does not resolve, and no proxy is asked for it.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--no-proxy-server",
    # Pictures look the same on every machine.
    "--font-render-hinting=none",
    "--hide-scrollbars",
)
WITHIN_MS = 20_000
"""The deadline for an expected change, long enough for a busy machine."""


def chromium_binary() -> str:
    """Return the path of Chromium, or raise if there is none."""
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
    """Run Chromium; meanwhile this thread has an event loop, so asyncio.run() is refused."""
    expect.set_options(timeout=WITHIN_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium_binary(), args=list(_ARGUMENTS)
        )
        try:
            yield browser
        finally:
            browser.close()
