"""Names, headers and bodies chosen by others appear on a page only as text."""

from __future__ import annotations

import json
from contextlib import closing
from urllib.parse import urlencode

import pytest
from playwright.sync_api import expect

import reliq
from reliq.admin import Inspector
from tests.browser.looking import overflow, wait_live
from tests.browser.stock import publish, reject

SCRIPTS = {
    # These would break out of an element, an attribute, a comment or a template.
    "markup": "<script>alert('element')</script>"
    "\"'><img src=x onerror=alert('attribute')> onmouseover=alert(1) x='"
    "</textarea></pre></title></svg><svg onload=alert('closing')>"
    "]]>--><!--<script>alert('comment')</script>"
    "{{ 7 * 7 }}${7*7}{% raw %}",
    # These would become another address, another line, or reversed text.
    "text": "javascript:alert('address')//../../static/reliq.js?x=1&y=2#z%2f%00;"
    "first\nsecond\r\n<b>third</b>\x00\x1b[31m\u202egnp.exe\u2066\u200f\u0301" + "\u0300" * 40,
    "long": "w" * 240,
}
MEGABYTE = "<script>alert('body')</script>\u202e'\"" * 30_000
_PHONE = {"width": 360, "height": 780}
# Counts the parts of a page that could be foreign.
_OWN = """() => ({
  scripts: document.scripts.length,
  made: document.querySelectorAll("main :is(img, iframe, object, embed, style, link, base)").length,
  handlers: [...document.querySelectorAll("*")].filter((it) =>
    [...it.attributes].some(({ name }) => name.startsWith("on") || name === "style")).length,
  links: [...document.links].filter((it) => it.origin !== location.origin).length,
})"""
OWN = {"scripts": 1, "made": 0, "handlers": 0, "links": 0}


@pytest.mark.parametrize("kind", SCRIPTS)
def test_what_others_chose_is_text(kind, stand, sign_in):
    """Hostile names, ids and arguments neither run nor break out of their element."""
    evil = SCRIPTS[kind]
    url = stand.site.broker
    headers = {"task": evil, "id": evil, "argsrepr": evil, "kwargsrepr": evil, evil: {evil: evil}}
    publish(url, evil, [[[evil], {evil: evil}, {}]] * 4, headers=headers, correlation_id=evil)
    reject(url, evil, 1)
    with closing(reliq.Batch(evil, app=stand.site.app)) as batch, batch:
        stand.site.send(evil, queue=evil)
    with Inspector(url) as inspector:
        tag = inspector.peek(evil, "dead")[0].tag
        group = inspector.dead_letter_groups(evil).groups[0].fingerprint
    queue = {"queue": evil}
    operator = sign_in(stand.url, viewport=_PHONE)
    page = operator.open("/?all=1", live=True)
    for path, query in (
        ("/queue", queue),
        ("/queue", {**queue, "state": "dead"}),
        ("/message", {**queue, "tag": tag}),
        ("/dead", queue),
        ("/dead/group", {**queue, "group": group}),
        ("/confirm", {**queue, "action": "purge"}),
        ("/confirm", {**queue, "action": "replay", "tag": tag}),
        ("/batches", {}),
        ("/batch", {"id": batch.id}),
        ("/search", {"text": evil}),
        ("/queue", {"queue": evil + "no such"}),
        ("/batch", {"id": evil}),
        ("/consumer", {"id": evil}),
    ):
        assert OWN == page.evaluate(_OWN), page.url
        assert 0 == overflow(page), page.url
        operator.go(page, f"{path}?{urlencode(query)}")
    operator.clean("404|400")
    operator.go(page, f"/queue?{urlencode(queue)}", live=True)
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("main").get_by_role("status")).to_contain_text("paused")
    assert OWN == page.evaluate(_OWN)
    # The script inserts live updates, and could take text for markup.
    wait_live(page)
    publish(url, evil, [[[evil], {}, {}]], headers=headers)
    expect(page.locator("#head")).to_contain_text("5")
    assert OWN == page.evaluate(_OWN)
    assert 0 == overflow(page)


def test_a_megabyte_is_shown_in_part(stand, sign_in):
    """A body and headers of a megabyte open on a phone, with their size, and fit its width."""
    headers = {"task": "shop.big", "id": "big", "argsrepr": MEGABYTE[:300_000], "x": MEGABYTE}
    publish(stand.site.broker, "big", [[[MEGABYTE], {}, {}]], headers=headers)
    operator = sign_in(stand.url, viewport=_PHONE)
    page = operator.open("/queue?queue=big")
    assert OWN == page.evaluate(_OWN)
    page.locator("#messages tbody th a").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("shop.big")
    size = len(json.dumps([[MEGABYTE], {}, {}]))
    expect(page.get_by_role("region", name="Body")).to_contain_text(f"{size:,}")
    assert OWN == page.evaluate(_OWN)
    assert 0 == overflow(page)
    assert len(page.content()) < 200_000
