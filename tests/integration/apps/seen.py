"""Tasks that report the message as seen by them and by the worker's main process.

The module is independent of the transport under test: only the broker URL differs.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from celery import Celery, signals

app = Celery("seen", broker=os.environ["RELIQ_TEST_BROKER"])
app.conf.update(json.loads(os.environ.get("RELIQ_TEST_CONFIG", "{}")))


def plain(value):
    """Return *value* as JSON represents it, with a repr for other types."""
    return json.loads(json.dumps(value, default=repr))


@app.task(bind=True, name="seen")
def seen(self, *args, **kwargs):
    """Return all attributes of the request."""
    del args, kwargs
    return plain(vars(self.request))


@app.task(bind=True, name="seen_again", max_retries=1)
def seen_again(self, countdown):
    """Return the attributes of the request of the only retry."""
    if self.request.retries == 0:
        raise self.retry(args=(countdown,), countdown=countdown)
    return plain(vars(self.request))


@signals.task_received.connect
def write_received(request, **_):
    """Record the message as seen by the process that receives it."""
    message = request.message
    found = {
        "headers": message.headers,
        "properties": message.properties,
        "delivery_info": message.delivery_info,
        "content": [message.content_type, message.content_encoding, type(message.body).__name__],
        "request": {"delivery_info": request.delivery_info, "expires": request.expires},
        "info": request.info(),
        "eta": request.eta,
    }
    with Path(os.environ["RELIQ_TEST_SEEN"]).open("a") as file:
        file.write(json.dumps(plain(found)) + "\n")
