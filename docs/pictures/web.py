"""Draw the pictures of docs/web.md: a shop's real workers, `reliq web`, and a Chromium.

`python docs/pictures/web.py [FOLDER]` starts a redis-server of its own and two workers, lets the
shop run for ten minutes (`--seconds`), and writes web-*.png. Needs chromium, redis-server, celery
and playwright.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from playwright.sync_api import sync_playwright

import reliq
from reliq.admin import Inspector
from reliq.cli.demo.broker import private_broker

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).resolve().parent
DESK = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}


def start(stack: ExitStack, command: Sequence[str], url: str, log: Path) -> None:
    """Start a process that ends with the stack."""
    path = os.pathsep.join((str(HERE), str(HERE.parents[1])))
    environment = {**os.environ, "SHOP_BROKER": url, "PYTHONPATH": path}
    with log.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603 - our own
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    stack.callback(lambda: (os.killpg(process.pid, signal.SIGKILL), process.wait(10)))


def trade(shop: Any, seconds: float, ended: Event) -> None:
    """Let the shop sell for so long."""
    for number in range(200):
        shop.charge.delay(number, card="4111")
    for number in range(60):
        shop.send.delay(f"user{number}@example.org")
        shop.notify.delay(f"https://example.org/hook/{number}")
        later = random.choice((60, 300, 900, 1800, 3000)) * random.uniform(0.7, 1.2)
        shop.send.apply_async((f"later{number}@example.org",), countdown=later)
    for day in range(1, 10):
        shop.make.delay(f"2026-11-{day:02}")
    with reliq.Batch("prices 2026-11", app=shop.app) as batch:
        batch.map(shop.row, range(1, int(20 * seconds)))
    until, number = time.monotonic() + seconds, 1000
    while time.monotonic() < until and not ended.is_set():
        number += 1
        time.sleep(random.uniform(0.02, 0.2))
        shop.charge.delay(number, card="4111")
        random.choice((shop.ship.delay, shop.charge.delay))(number)
        shop.send.delay(f"user{number}@example.org")


def pictures(address: str, url: str, folder: Path) -> None:
    """Look at the pages."""
    with Inspector(url) as inspector:
        group = inspector.dead_letter_groups("orders").groups[0]
        batch = inspector.batches()[0]
    letters = f"queue=orders&group={group.fingerprint}"
    chromium = shutil.which("chromium") or "chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, path, size, scheme in (
            ("overview", "/", DESK, "light"),
            ("queue", "/queue?queue=orders&state=unacked", DESK, "dark"),
            ("group", f"/dead/group?{letters}", DESK, "light"),
            ("delayed", "/delayed", DESK, "dark"),
            ("batch", f"/batch?id={batch.id}", DESK, "light"),
            ("phone", "/", PHONE, "dark"),
        ):
            page = browser.new_page(viewport=size, color_scheme=scheme, device_scale_factor=1)
            page.goto(f"{address}{path}")
            page.wait_for_function("() => document.documentElement.dataset.live === 'yes'")
            page.wait_for_timeout(2500)  # rates are those of some seconds
            page.screenshot(path=folder / f"web-{name}.png")
            page.close()
        browser.close()


def main() -> None:
    """Run the shop, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=HERE)
    parser.add_argument("--seconds", type=float, default=600)
    given = parser.parse_args()
    with ExitStack() as stack:
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(private_broker(temporary)).url("reliq")
        os.environ["SHOP_BROKER"] = url
        sys.path.insert(0, str(HERE))
        import web_shop as shop  # noqa: PLC0415 - it reads the environment

        for name, queues in (("a", "orders,mail"), ("b", "reports,import")):
            command = [sys.executable, "-m", "celery", "-A", "web_shop", "worker", "-P", "threads"]
            command += ["-n", f"{name}@shop", "-Q", queues, "-c", "4", "--without-gossip"]
            start(stack, command, url, temporary / f"{name}.log")
        web = [sys.executable, "-m", "reliq.cli", "web", "--url", url, "--port", "0"]
        start(stack, [*web, "--allow-actions"], url, temporary / "web.log")
        ended = Event()
        trading = Thread(target=trade, args=(shop, 2 * given.seconds, ended))
        trading.start()
        stack.callback(trading.join)
        stack.callback(ended.set)
        trading.join(given.seconds)
        said = (temporary / "web.log").read_text("utf-8")
        address = said.split("serving reliq on ")[1].split()[0].rstrip("/")
        given.folder.mkdir(parents=True, exist_ok=True)
        pictures(address, url, given.folder)


if __name__ == "__main__":
    main()
