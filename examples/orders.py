"""A small Celery app over reliq.

With a Redis on localhost, in this folder:

    celery -A orders worker --loglevel INFO
    python orders.py

The second command publishes five orders; the worker ships them. Kill the worker
with `kill -9` while it does, start it again, and count: none is missing.
RELIQ_URL names another broker.
"""

from __future__ import annotations

import os
import time

from celery import Celery

app = Celery("orders", broker=os.environ.get("RELIQ_URL", "reliq://localhost:6379/0"))
app.conf.update(
    # Acknowledge when the task is done, not when it starts.
    task_acks_late=True,
    # A pool process that is killed alone: run its task again, too.
    task_reject_on_worker_lost=True,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": 60},
)


@app.task(name="orders.ship")
def ship(order: int) -> None:
    """Ship one order."""
    time.sleep(0.2)
    print(f"shipped order {order}", flush=True)


if __name__ == "__main__":
    for number in range(5):
        ship.delay(number)
    print("published 5 orders")
