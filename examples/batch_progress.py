"""A page with a progress bar: products are enrolled by workers, and a browser watches.

With a Redis on localhost, in this folder, a worker and the page:

    celery -A batch_progress worker --concurrency 4
    python batch_progress.py

Then open http://localhost:8000. The page begins a batch, and asks for what is known of it twice a
second: `/batches/<id>` answers with `status().as_dict()`. Another port is the argument;
RELIQ_URL names another broker.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from celery import Celery

import reliq

app = Celery("batch_progress", broker=os.environ.get("RELIQ_URL", "reliq://localhost:6379/0"))
app.conf.update(
    # Acknowledge when the task is done, not when it starts.
    task_acks_late=True,
    broker_connection_retry_on_startup=True,
)

WITHOUT_PRICE = range(3, 200, 10)
STEPS = ("looking it up", "checking it", "enrolling it")


@app.task(name="batch_progress.enrol")
def enrol(product: int) -> None:
    """Enrol one product; some cannot be."""
    for number, step in enumerate(STEPS):
        if reliq.cancelled():
            return
        reliq.progress(number, len(STEPS), step)
        time.sleep(0.02)
    if product in WITHOUT_PRICE:
        reliq.report(f"product {product} has no price")
        raise reliq.Failed("price is missing")


@app.task(name="batch_progress.done")
def done(batch: str) -> None:
    """Say that a batch is done."""
    with closing(reliq.Batch.get(batch, app=app)) as found:
        print(f"batch {batch} is done: {found.status().as_dict()['counts']}")


PAGE = """<!doctype html>
<meta charset="utf-8">
<title>Enrol products</title>
<style>
  body { font: 16px system-ui, sans-serif; max-width: 42rem; margin: 2rem auto }
  progress { width: 100%; height: 1.5rem }
  li { font-variant-numeric: tabular-nums }
</style>
<h1>Enrol products</h1>
<button id="start">Enrol 200 products</button>
<button id="cancel">Cancel</button>
<p><progress id="bar" max="100" value="0"></progress><br><span id="counts"></span></p>
<h2>At work</h2><ul id="progress"></ul>
<h2>Failed</h2><ul id="failures"></ul>
<h2>Messages</h2><ul id="messages"></ul>
<script>
  const at = (id) => document.getElementById(id);
  let batch = location.hash.slice(1);
  function list(id, lines) {
    at(id).replaceChildren(...lines.map((line) => {
      const item = document.createElement("li");
      item.textContent = line;  // never as HTML: it is what a task has said
      return item;
    }));
  }
  async function look() {
    if (!batch) return;
    const answer = await fetch(`/batches/${batch}`);
    if (!answer.ok) return;
    const found = await answer.json();
    at("bar").value = found.percent;
    at("counts").textContent = `${found.done} of ${found.total}: ` + Object.entries(found.counts)
      .filter(([, count]) => count).map(([state, count]) => `${count} ${state}`).join(", ");
    list("progress", found.progress.filter((job) => job.state == "working")
      .map((job) => `${job.done}/${job.total} ${job.text}`));
    list("failures", found.failures.map((job) => job.reason));
    list("messages", found.messages.map((message) => message.text));
    if (!found.ended) setTimeout(look, 500);
  }
  at("start").onclick = async () => {
    const answer = await fetch("/batches", { method: "POST" });
    batch = location.hash = (await answer.json()).id;
    look();
  };
  at("cancel").onclick = () => fetch(`/batches/${batch}/cancel`, { method: "POST" });
  look();
</script>
"""


class Handler(BaseHTTPRequestHandler):
    """The page, and what it asks for."""

    def do_GET(self) -> None:
        """Answer with the page, or with what is known of a batch."""
        url = urlsplit(self.path)
        if url.path == "/":
            self.answer(200, "text/html; charset=utf-8", PAGE)
            return
        skip = int(parse_qs(url.query).get("skip", ["0"])[0])
        _, _, batch = url.path.partition("/batches/")
        try:
            with closing(reliq.Batch.get(batch, app=app)) as found:
                self.answer_json(200, found.status(limit=20, skip=skip).as_dict())
        except reliq.NotFound as error:
            self.answer_json(404, {"error": str(error)})

    def do_POST(self) -> None:
        """Begin a batch, or cancel one."""
        _, _, rest = self.path.partition("/batches")
        try:
            if not rest:
                with reliq.Batch("enrol", on_complete=done.s()) as batch:
                    batch.map(enrol, range(200))
                self.answer_json(201, {"id": batch.id})
            else:
                with closing(reliq.Batch.get(rest.strip("/").split("/")[0], app=app)) as found:
                    found.cancel()
                self.answer_json(200, {})
        except reliq.NotFound as error:
            self.answer_json(404, {"error": str(error)})

    def answer_json(self, status: int, content: dict[str, Any]) -> None:
        """Send JSON."""
        self.answer(status, "application/json", json.dumps(content))

    def answer(self, status: int, kind: str, text: str) -> None:
        """Send an answer."""
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing of each request."""


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        print(f"open http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()
