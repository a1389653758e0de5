"""Logins and rights of the page, and the safety of foreign input."""

from __future__ import annotations

import base64
from functools import cache
from time import time

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.websockets import WebSocketDisconnect

from reliq import ConfigurationError
from reliq.admin import Inspector
from reliq.web import app
from reliq.web.guard import HEADERS
from reliq.web.pages import PAGES
from reliq.web.settings import hashed
from tests.integration.web_client import HERE, OURS, fill, kill, page, read

HOSTILE = (
    "\"'><script>alert(1)</script><img src=x onerror=alert(1)>&amp;{{7*7}}{% raw %}\n"
    "javascript:alert(1)\x1b[2J\x07\u202e/../..//evil.example?#%00\\"
)


@cache
def users():
    """Return the users of the page."""
    return f"ann operator {hashed('ann:s')}; bob viewer {hashed('bobs')}"


def login(name, password):
    """Return the header of HTTP Basic."""
    return {"authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


@pytest.fixture
def url(redis_url):
    """Return the URL of a broker with a queue that has one message."""
    fill(redis_url, "q", [1])
    return redis_url


def paused(url):
    """Whether the queue is paused."""
    with Inspector(url) as inspector:
        return inspector.report().queues[0].paused


# -- logins


@pytest.mark.slow
@pytest.mark.parametrize(
    ("client", "host", "headers", "status"),
    [
        (HERE, "localhost:5580", {}, 200),
        (("::1", 1), "[::1]:5580", {}, 200),
        (("10.0.0.7", 1), "localhost", {}, 403),
        (HERE, "evil.example:5580", {}, 421),
        (HERE, "localhost.evil.example", {}, 421),
        (HERE, "shop.internal", {}, 200),
        (HERE, "localhost", {"x-forwarded-for": "10.0.0.7"}, 403),
        (HERE, "localhost", {"forwarded": "for=10.0.0.7"}, 403),
    ],
    ids=["here", "here6", "elsewhere", "rebound", "suffix", "allowed", "proxied", "forwarded"],
)
def test_without_users_only_this_machine_is_answered(url, client, host, headers, status):
    """Without users only local requests are accepted, by address and host, not through a proxy."""
    given = {"host": host, **headers}
    with page(url, client=client, hosts=["shop.internal"]) as browser:
        for path in ("/", "/events?page=/nowhere", "/static/reliq.js", "/nowhere"):
            response = browser.get(path, headers=given)
            if status == 200:
                assert response.status_code in {200, 404}, path
            else:
                assert status == response.status_code, path
                assert "reliq://" not in response.text
        assert status != 403 or "--users" in browser.get("/", headers=given).text


def test_a_password_lets_in_from_everywhere(url):
    """A correct password is accepted from any address; other requests learn nothing."""
    with page(url, client=("10.0.0.7", 1), base_url="http://ops.example", users=users()) as browser:
        for wrong in (
            {},
            login("bob", "wrong"),
            login("eve", "bobs"),
            login("", ""),
            {"authorization": "Basic ???"},
            {"authorization": "Basic " + base64.b64encode(b"\xff:\xff").decode()},
            {"authorization": "Bearer bobs"},
        ):
            refused = browser.get("/", headers=wrong)
            assert 401 == refused.status_code
            assert refused.headers["www-authenticate"].startswith("Basic ")
            assert "reliq://" not in refused.text
        for name, password in (("ann", "ann:s"), ("bob", "bobs"), ("bob", "bobs")):
            assert name in read(browser.get("/", headers=login(name, password))).text


def test_a_name_is_believed_from_the_proxy_alone(url):
    """A user's name is accepted once per request and only from the proxy's address.

    The operators are named in the settings.
    """
    given = {"user_header": "X-User", "proxies": ["10.0.0.1"], "operators": ["ann"]}
    with page(url, client=("10.0.0.1", 1), base_url="http://ops.example", **given) as browser:
        assert 401 == browser.get("/").status_code
        assert 401 == browser.get("/", headers={"x-user": " "}).status_code
        twice = [("x-user", "bob"), ("x-user", "ann")]
        assert 401 == browser.get("/", headers=twice).status_code
        assert "ann" in read(browser.get("/", headers={"x-user": "ann"})).text
    with page(url, client=HERE, **given) as browser:
        assert 403 == browser.get("/", headers={"x-user": "ann"}).status_code


# -- rights


def test_nothing_can_be_changed_unless_that_is_allowed(url):
    """Without allow_actions the pages have no forms, and actions are refused."""
    with page(url) as browser:
        for path in ("/", "/queue?queue=q"):
            assert {"get"} == {method for method, _ in read(browser.get(path)).forms}
        refused = browser.post("/actions/pause?queue=q", headers=OURS)
        assert (403, True) == (refused.status_code, "--allow-actions" in refused.text)
        assert "--allow-actions" in read(browser.get("/confirm?action=purge&queue=q")).text
    assert not paused(url)


@pytest.mark.parametrize("name", ["ann", "bob"])
def test_a_viewer_changes_nothing(url, name):
    """A viewer changes nothing; an operator does, and the log has the operator's name."""
    signed_in = login(name, {"ann": "ann:s", "bob": "bobs"}[name])
    with page(url, users=users(), allow_actions=True, headers=signed_in) as browser:
        forms = read(browser.get("/queue?queue=q")).forms
        done = browser.post("/actions/pause?queue=q", headers=OURS)
        if name == "bob":
            assert {"get"} == {method for method, _ in forms}
            assert (403, False) == (done.status_code, paused(url))
            return
        assert ("post", "/actions/pause?queue=q") in forms
        assert (303, True) == (done.status_code, paused(url))
        assert "paused" in read(browser.get(done.headers["location"])).text
        log = read(browser.get("/log")).text
        assert "ann" in log
        assert "pause" in log


@pytest.mark.slow
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:5581"},
        {"referer": "http://localhost:5580/"},
    ],
    ids=["nothing", "cross", "same-site", "none", "evil", "null", "port", "referer"],
)
def test_another_site_changes_nothing(url, headers):
    """Only a page of this site can cause an action; a browser sends the login with any request."""
    with page(url, allow_actions=True) as browser:
        assert 403 == browser.post("/actions/pause?queue=q", headers=headers).status_code
        assert 403 == browser.put("/actions/pause?queue=q", headers=headers).status_code
        assert 405 == browser.get("/actions/pause?queue=q").status_code
        assert not paused(url)
        by_origin = {"origin": "http://localhost:5580"}
        assert 303 == browser.post("/actions/pause?queue=q", headers=by_origin).status_code
    assert paused(url)


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_has_no_page_made(url, site):
    """A link from another site is followed, but its images and frames cause no work."""
    with page(url) as browser:
        for mode, dest, status in (
            ("navigate", "document", 200),
            ("navigate", "iframe", 403),
            ("no-cors", "image", 403),
            ("cors", "empty", 403),
        ):
            headers = {
                "sec-fetch-site": site, "sec-fetch-mode": mode, "sec-fetch-dest": dest,
            }  # fmt: skip
            for path in ("/log", "/search?text=x", "/health"):
                assert status == browser.get(path, headers=headers).status_code, (mode, dest)
        assert 200 == browser.get("/log", headers={"sec-fetch-site": "none"}).status_code


@pytest.mark.slow
def test_the_outcome_is_told_to_who_acted_and_not_for_long(url, monkeypatch):
    """Only the user of an action sees its outcome, and only for a minute."""
    given = {"users": users(), "allow_actions": True, "base_url": "http://ops.example"}
    with page(url, **given) as browser:
        ann, bob = login("ann", "ann:s"), login("bob", "bobs")
        done = browser.post("/actions/pause?queue=q", headers={**OURS, **ann})
        there = done.headers["location"]
        assert "pause q: paused" in " ".join(read(browser.get(there, headers=ann)).text.split())
        assert "pause q" not in read(browser.get(there, headers=bob)).text
        later = time() + 61
        monkeypatch.setattr("reliq.web.application.time", lambda: later)
        assert "pause q" not in read(browser.get(there, headers=ann)).text


def test_what_has_grown_since_the_question_is_asked_about_again(url):
    """A purge of many more messages than its question stated is asked about again."""
    with page(url, allow_actions=True) as browser:
        asked = read(browser.get("/confirm?action=purge&queue=q"))
        assert ("input", "name", "seen") in asked.attributes
        fill(url, "q", *range(40))
        done = browser.post("/actions/purge?queue=q", data={"seen": "1"}, headers=OURS)
        assert done.headers["location"].startswith("/confirm?")
        again = read(browser.get(done.headers["location"]))
        assert "41" in again.text
        assert "It was 1" in again.text
        done = browser.post("/actions/purge?queue=q", data={"seen": "39"}, headers=OURS)
        assert "41 messages removed" in read(browser.get(done.headers["location"])).text


def test_an_action_leads_to_a_page_of_ours(url):
    """An action always leads to a page of this site, whatever its parameters are."""
    with page(url, allow_actions=True) as browser:
        for query in ("queue=//evil.example", "queue=q&back=//evil.example", "queue=%0d%0aX:y"):
            done = browser.post(f"/actions/pause?{query}", headers=OURS)
            assert 303 == done.status_code
            assert done.headers["location"].startswith("/queue?queue=")
        assert 404 == browser.post("/actions/nothing?queue=q", headers=OURS).status_code
        assert 404 == browser.post("/actions/pause?queue=q&broker=7", headers=OURS).status_code
        large = b"a=" + b"x" * 200_000
        assert 413 == browser.post("/actions/set?queue=q", content=large, headers=OURS).status_code


# -- headers of all responses


def test_every_answer_has_the_headers(url, monkeypatch):
    """Every response forbids inline scripts, frames, other sites and storage by its headers."""
    with page(url) as browser:
        answers = [browser.get(item.path) for item in PAGES]
        answers += [browser.get(path) for path in ("/none", "/static/none", "/static/reliq.css")]
        answers += [browser.post("/"), browser.get("/", headers={"host": "evil.example"})]
        monkeypatch.setattr(Inspector, "consumers", lambda _: 1 / 0)
        failed = browser.get("/consumers")
        assert 500 == failed.status_code
        assert "ZeroDivision" not in failed.text
        for answer in (*answers, failed):
            for name, value in HEADERS.items():
                assert value == answer.headers[name], answer.url
            kept = "/static/reliq" in str(answer.url)
            assert kept is (answer.headers["cache-control"] != "no-store")
        with pytest.raises(WebSocketDisconnect), browser.websocket_connect("/"):
            pass


@pytest.mark.parametrize("root_path", ["", "/ops/reliq"])
def test_it_works_under_a_path(url, root_path):
    """The page works under a path, whether or not the proxy removes it."""
    with page(url, root_path=root_path, allow_actions=True) as browser:
        for path in {"/", f"{root_path}/"}:
            found = read(browser.get(path))
            assert all(link.startswith(f"{root_path}/") for link in found.links if link[0] == "/")
            (queue,) = (link for link in found.links if "queue=q" in link)
            assert "q" in read(browser.get(queue)).text
        done = browser.post(f"{root_path}/actions/pause?queue=q", headers=OURS)
        assert done.headers["location"].startswith(f"{root_path}/queue?")


def test_it_can_be_mounted(url):
    """The page can be mounted in another application, which sets the path."""
    from starlette.testclient import TestClient

    made = app(url)
    around = Starlette(routes=[Mount("/inner", made)])
    with TestClient(around, "http://localhost", client=HERE) as browser:
        found = read(browser.get("/inner/"))
        assert all(link.startswith("/inner/") for link in found.links if link[0] == "/")
        assert (
            200 == browser.get(next(link for link in found.links if "queue=q" in link)).status_code
        )
        script = next(value for tag, name, value in found.attributes if tag == "script")
        assert 200 == browser.get(script).status_code
    made.close()


# -- foreign text


@pytest.fixture
def hostile(redis_url):
    """Return the URL of a broker with hostile text in every place."""
    headers = {"task": HOSTILE, "id": HOSTILE, "argsrepr": HOSTILE, "kwargsrepr": HOSTILE}
    headers[HOSTILE] = {HOSTILE: [HOSTILE]}
    fill(redis_url, HOSTILE, HOSTILE, b"\xff\x00" + HOSTILE.encode(), content_type="text/plain",
         content_encoding="utf-8", headers=headers)  # fmt: skip
    fill(redis_url, HOSTILE, {"a": HOSTILE}, HOSTILE, headers=headers)
    fill(redis_url, HOSTILE, {"a": HOSTILE}, headers={**headers, "x-delay": 600_000})
    return redis_url


def walk(browser, most=60):
    """Follow every link from the overview, and read each page."""
    seen, left = {}, ["/"]
    while left and len(seen) < most:
        path = left.pop(0)
        if path in seen or path.startswith(("#", "/static")):
            continue
        response = browser.get(path)
        if not response.headers["content-type"].startswith("text/html"):
            seen[path] = None
            continue
        seen[path] = read(response, response.status_code)
        assert response.status_code in {200, 404}, path
        left += seen[path].links
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("actions", [False, True], ids=["read-only", "actions"])
def test_what_others_wrote_stays_text(hostile, actions):
    """Foreign text stays text on every page: it makes no element, link or line."""
    kill(hostile, HOSTILE, 1)
    with page(hostile, allow_actions=actions) as browser:
        seen = walk(browser)
        shown = [path for path, found in seen.items() if found and "alert(1)" in found.text]
        assert len(shown) > 5, seen
        for path, found in seen.items():
            if found is None:
                continue
            assert "\x1b" not in found.text, path
            assert "\u202e" not in found.text, path
        if actions:
            assert any(
                "/actions/pause" in action for f in seen.values() if f for _, action in f.forms
            )


@pytest.mark.slow
def test_a_secret_is_on_no_page(redis_url):
    """Values of hidden keys are on no page, in arguments and headers, alive or dead."""
    headers = {
        "task": "pay", "id": "1", "argsrepr": "[{'card_token': 's3cret'}]",
        "kwargsrepr": "{'password': 's3cret'}", "x-token": "s3cret", "map": {"Password": "s3cret"},
    }  # fmt: skip
    fill(
        redis_url, "q", *[[[{"card_token": "s3cret"}], {"password": "s3cret"}, {}]] * 3,
        headers=headers,
    )  # fmt: skip
    kill(redis_url, "q", 1)
    with page(redis_url, redact=["password", "*token*"]) as browser:
        pages = [browser.get(path).text for path in walk(browser)]
        assert any("[hidden]" in text for text in pages)
        assert not any("s3cret" in text for text in pages)
    with page(redis_url) as browser:
        assert any("s3cret" in browser.get(path).text for path in walk(browser))


def test_passwords_of_brokers_are_on_no_page(url):
    """Passwords of brokers are on no page, even in errors."""
    with page("reliq://ann:s3cret@127.0.0.1:1/0", url.replace("//", "//:s3cret@")) as browser:
        for path in ("/", "/queue?queue=q", "/health?broker=1", "/consumers?broker=1"):
            assert "s3cret" not in browser.get(path).text


def test_what_it_is_given_is_checked_at_once():
    """Wrong arguments are refused at once, before the first request."""
    with pytest.raises(ConfigurationError):
        app()
    with pytest.raises(ConfigurationError):
        app("reliq://x", users="ann operator secret")
