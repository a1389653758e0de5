"""Make the pictures of `reliq web`: `python -m tests.browser.screenshots --out docs/pictures`.

A shop runs for some minutes, with its own redis-server, workers and `reliq web`. Its tasks work,
wait and fail, and one worker is killed. The pictures show the real pages; only the names of the
broker and of the machine are replaced.
"""

from __future__ import annotations

import os
import random
import socket
import sys
import tempfile
import threading
from contextlib import ExitStack, closing
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click
from PIL import Image

import reliq
from reliq.admin import Inspector
from tests.browser.chromium import chromium
from tests.browser.looking import Browsing, wait_live
from tests.browser.served import users
from tests.support.journal import Journal
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.support.web import WebProcess
from tests.support.workers import CeleryWorker

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery
    from playwright.sync_api import Page

SHOP = Path(__file__).resolve().parents[2] / "docs" / "pictures"
SHOWN = "redis.shop.internal:6379"
DESK, PHONE = {"width": 1240, "height": 780}, {"width": 390, "height": 780}
_SCALE = 1.5
# Rates cover the last seconds, so the page is watched for this time first.
_LOOKED_MS = 6000
_SERVER = ("--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory", "512mb")
_COLOURS = 128
_MOST_BYTES = 150_000


class Shop:
    """A shop that publishes its customers' orders from a thread, at a changing rate."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._order = 48_000

    def start(self) -> Shop:
        """Publish the first tasks and start the thread."""
        for n in range(140):
            self._send("shop.mail.send", f"user{n}@example.org", template="reminder",
                       countdown=random.expovariate(1 / 2400) + 30)  # fmt: skip
        for n in range(3):
            self._send("shop.reports.make", f"2026-11-{n + 20}")
        for n in range(9):
            self._send("shop.webhooks.notify", f"https://partner{n}.example/hook")
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop the thread."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        busy = 3.0
        while not self._ended.wait(random.expovariate(busy)):
            busy = min(max(busy + random.gauss(0, 0.4), 2.0), 9.0)
            self._order += 1
            self._send("shop.orders.charge", self._order, card=f"tok_{self._order:x}")
            if random.random() < 0.5:
                self._send("shop.orders.ship", self._order)
            for _ in range(random.randrange(3)):
                self._send("shop.mail.send", f"user{self._order}@example.org", template="receipt")
            if random.random() < 0.02:
                self._send("shop.mail.send", "late@example.org", template="review", countdown=3600)
            if random.random() < 0.01:
                self._send("shop.reports.make", "2026-11-23")

    def _send(self, task: str, *args: Any, **given: Any) -> None:
        options = {"countdown": given.pop("countdown")} if "countdown" in given else {}
        self._app.send_task(task, args, given, **options)


def batch(app: Celery, name: str, rows: range) -> str:
    """Publish a batch of rows to import; return its id."""
    with closing(reliq.Batch(name, app=app)) as made, made:
        made.map(app.tasks["shop.import.row"], rows)
    return made.id


def run(out: Path, minutes: float) -> None:
    """Run the shop for some minutes, and write the pictures into *out*."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = RedisServer(password="shop", extra=_SERVER)
        stack.callback(server.destroy)
        url = server.start().url("reliq")
        os.environ["SHOP_BROKER"] = url
        journal = Journal(directory / "journal")
        stack.callback(journal.close)

        def worker(name: str, *queues: str, **options: Any) -> CeleryWorker:
            more = {"SHOP_BROKER": url, "PYTHONPATH": f"{SHOP}:{os.environ.get('PYTHONPATH', '')}"}
            started = CeleryWorker(
                url, journal, directory=directory, name=name, app="web_shop", env=more,
                queues=queues, **options,
            )  # fmt: skip
            stack.callback(started.kill_group)
            return started

        doomed = worker("till-2", "orders", "mail", pool="threads", concurrency=2)
        worker("till-1", "orders", "mail", pool="threads", concurrency=3)
        worker("office", "reports", "import", pool="threads", concurrency=4).wait_ready()
        app = shop_application()
        stack.callback(app.close)
        shop = Shop(app).start()
        with Inspector(url) as inspector:
            inspector.pause("webhooks")
        stack.callback(shop.stop)
        batch(app, "prices of October", range(1, 181))
        ends = monotonic() + minutes * 60
        wait_until(lambda: monotonic() > ends - minutes * 20, timeout_s=minutes * 60 + 60)
        doomed.kill_group()
        wait_until(lambda: monotonic() > ends, timeout_s=minutes * 60 + 60)
        running = batch(app, "prices of November", range(1, 4001))
        web = WebProcess(url, directory, "--allow-actions", RELIQ_WEB_USERS=users())
        stack.callback(web.kill_group)
        take(web, out, server.port, running)


def shop_application() -> Celery:
    """Return the application of docs/pictures/web_shop.py, which reads SHOP_BROKER."""
    sys.path.insert(0, str(SHOP))
    from web_shop import app  # type: ignore[import-not-found]

    return app


def take(web: WebProcess, out: Path, port: int, running: str) -> None:
    """Open the pages and take their pictures."""
    with chromium() as browser:
        for theme, viewport in (("light", DESK), ("dark", DESK), ("dark", PHONE)):
            looking = Browsing(
                browser, web.address, "otto", viewport=viewport, color_scheme=theme,
                device_scale_factor=_SCALE, reduced_motion="reduce",
            )  # fmt: skip
            page = looking.open("/", live=True)
            page.wait_for_timeout(_LOOKED_MS)

            def keep(name: str, page: Page = page) -> None:
                picture(page, out / f"web-{name}.png", port)

            if viewport == PHONE:
                keep("phone")
            elif theme == "dark":
                keep("overview-dark")
            else:
                desk(looking, page, keep, running)
            looking.clean()
            looking.close()


def desk(looking: Browsing, page: Page, keep: Callable[[str], None], running: str) -> None:
    """Take the pictures of the light theme on a wide screen."""
    keep("overview")
    looking.go(page, f"/batch?id={running}", live=True)
    keep("batch")
    looking.go(page, "/queue?queue=orders&state=unacked", live=True)
    keep("queue")
    looking.go(page, "/dead", live=True)
    keep("dead")
    page.locator("tbody th a").first.click()
    wait_live(page)
    keep("group")
    page.locator("tbody th a").first.click()
    wait_live(page)
    keep("message")
    looking.go(page, "/delayed", live=True)
    keep("delayed")
    looking.go(page, "/consumers", live=True)
    keep("consumers")


def picture(page: Page, path: Path, port: int) -> None:
    """Write a picture of the page in few colours, with a descriptive address for the broker."""
    page.evaluate(
        """([real, shown, host, name]) => {
          dispatchEvent(new Event("pagehide"));  // it is followed no longer
          const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
          for (let it; (it = walk.nextNode()); ) {
            it.data = it.data.replace(real, shown).replace(host, name);
          }
        }""",
        [f"127.0.0.1:{port}", SHOWN, f"{socket.gethostname()}:", "shop-1:"],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    view = page.viewport_size or DESK
    end = page.locator("main").bounding_box() or {"y": 0, "height": view["height"]}
    clip = {"x": 0, "y": 0, **view, "height": min(view["height"], end["y"] + end["height"])}
    page.screenshot(path=path, clip=clip, animations="disabled", caret="hide")
    with Image.open(path) as taken:
        few = in_few_colours(taken.convert("RGB"))
        few.save(path, optimize=True)
    size = path.stat().st_size
    click.echo(f"{path}: {size:,} bytes")
    if size > _MOST_BYTES:
        raise click.ClickException(f"{path} has more than {_MOST_BYTES:,} bytes")


def in_few_colours(taken: Image.Image) -> Image.Image:
    """Return the picture in its most frequent colours, which keep their exact values."""
    colours = sorted(taken.getcolors(taken.width * taken.height) or [], reverse=True)[:_COLOURS]
    palette = Image.new("P", (1, 1))
    palette.putpalette([channel for _, colour in colours for channel in colour])  # type: ignore[misc]
    return taken.quantize(palette=palette, dither=Image.Dither.NONE)


@click.command()
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=SHOP)
@click.option("--minutes", type=float, default=10.0, show_default=True)
def main(out: Path, minutes: float) -> None:
    """Write the pictures of `reliq web` into a folder, from a shop that runs for some minutes."""
    run(out, minutes)


if __name__ == "__main__":
    main()
