"""A client of the web page that sends the requests of a browser, without a socket."""

from __future__ import annotations

import re
from contextlib import contextmanager
from html.parser import HTMLParser

from kombu import Connection, Exchange, Queue
from starlette.testclient import TestClient

from reliq.web import app

HERE = ("127.0.0.1", 4711)
OURS = {"sec-fetch-site": "same-origin"}
VOID = {"meta", "link", "input", "br", "hr", "img", "path", "rect", "circle"}


@contextmanager
def page(*urls, client=HERE, base_url="http://localhost:5580", headers=None, **given):
    """Yield a client of an application for these brokers."""
    application = app(*urls, **given)
    made = TestClient(application, base_url, client=client, headers=headers, follow_redirects=False)
    try:
        yield made
    finally:
        made.close()
        application.close()


class Read(HTMLParser):
    """The elements of a page; reading a page that is not well-formed fails."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.forms, self.attributes = [], [], [], []
        self.text = ""
        self._open = []
        self.feed(text)
        self.close()
        assert [] == self._open

    def handle_starttag(self, tag, attrs):
        """Record the start of an element."""
        found = dict(attrs)
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag == "a":
            self.links.append(found["href"])
        if tag == "form":
            self.forms.append((found.get("method", "get"), found["action"]))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        """Record an empty element, such as `<br/>`."""
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag):
        """Close the innermost open element."""
        if tag in VOID:
            return
        if tag in {"p", "li"}:
            while self._open and self._open[-1] != tag:
                self._open.pop()
        assert tag == self._open.pop(), (tag, self._open, self.getpos())

    def handle_data(self, data):
        """Record text."""
        self.text += data


def read(response, status=200):
    """Return the elements of a page; fail if it has one that its security policy forbids."""
    assert status == response.status_code, response.text
    found = Read(response.text)
    assert 1 == found.tags.count("script")  # reliq's own file
    assert "style" not in found.tags
    assert not {"iframe", "object", "embed", "base"} & {*found.tags}
    for tag, name, value in found.attributes:
        assert name != "style", tag
        assert not name.startswith("on"), (tag, name)
        if name in {"href", "src", "action"}:
            assert re.match(r"/(?!/)|#main$", value), (tag, value)
    return found


def fill(url, queue, *bodies, options=None, **properties):
    """Declare a queue, and publish messages to it."""
    with Connection(url, transport_options=options or {}) as connection:
        Queue(queue, Exchange(""), queue)(connection.default_channel).declare()
        producer = connection.Producer()
        for body in bodies:
            producer.publish(body, routing_key=queue, **properties)


def kill(url, queue, count, requeue=False):
    """Reject *count* messages of a queue; they are dead letters unless they are requeued."""
    with Connection(url) as connection:
        channel = connection.default_channel
        for _ in range(count):
            message = channel.basic_get(queue)
            channel.basic_reject(message.delivery_tag, requeue)
