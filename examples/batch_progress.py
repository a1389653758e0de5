"""A web page with a progress bar for a batch.

Start Redis on localhost. In this folder, start a worker and the page:

    celery -A batch_progress worker --concurrency 4
    python batch_progress.py

Open http://localhost:8000 and start a batch. The page polls `/batches/<id>` twice a second, which
returns `status().as_dict()`. To use another port, give it as the argument. To use another broker,
set RELIQ_URL.
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
    # Acknowledge a task when it ends, not when it starts.
    task_acks_late=True,
    broker_connection_retry_on_startup=True,
)

WITHOUT_PRICE = range(3, 200, 10)
STEPS = ("looking it up", "checking it", "enrolling it")


@app.task(name="batch_progress.enrol")
def enrol(product: int) -> None:
    """Enrol one product; fail if it has no price."""
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
    """Print the counts of a finished batch."""
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
<h2>Working</h2><ul id="progress"></ul>
<h2>Failed</h2><ul id="failures"></ul>
<h2>Messages</h2><ul id="messages"></ul>
<script>
  const at = (id) => document.getElementById(id);
  let batch = location.hash.slice(1);
  function list(id, lines) {
    at(id).replaceChildren(...lines.map((line) => {
      const item = document.createElement("li");
      item.textContent = line;  // never as HTML: tasks wrote it
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
    """Serves the page and its JSON."""

    def do_GET(self) -> None:
        """Send the page, or the status of a batch."""
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
        """Start or cancel a batch."""
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
        """Send a JSON response."""
        self.answer(status, "application/json", json.dumps(content))

    def answer(self, status: int, kind: str, text: str) -> None:
        """Send a response."""
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Do not log requests."""


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        print(f"open http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()
