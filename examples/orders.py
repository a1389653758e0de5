"""A small Celery app over reliq.

Start Redis on localhost. In this folder, run:

    celery -A orders worker --loglevel INFO
    python orders.py

The second command publishes five orders, and the worker ships them. Kill the worker
with `kill -9` meanwhile, and start it again: all five orders are shipped.
To use another broker, set RELIQ_URL.
"""

from __future__ import annotations

import os
import time

from celery import Celery

app = Celery("orders", broker=os.environ.get("RELIQ_URL", "reliq://localhost:6379/0"))
app.conf.update(
    # Acknowledge a task when it ends, not when it starts.
    task_acks_late=True,
    # Also run a task again if only its pool process is killed.
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
