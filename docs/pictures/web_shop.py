"""A shop's Celery application, for the pictures of `reliq web`: tasks that work, wait and fail."""

from __future__ import annotations

import os
import random
import time

from celery import Celery, Task

app = Celery("shop", broker=os.environ.get("SHOP_BROKER"))
app.conf.update(
    task_acks_late=True,
    task_acks_on_failure_or_timeout=False,
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=4,
    task_routes={
        "shop.orders.*": {"queue": "orders"},
        "shop.mail.*": {"queue": "mail"},
        "shop.reports.*": {"queue": "reports"},
        "shop.webhooks.*": {"queue": "webhooks"},
        "shop.import.*": {"queue": "import"},
    },
)


@app.task(name="shop.orders.charge")
def charge(order: int, *, card: str = "") -> str:
    """Charge a card."""
    time.sleep(random.uniform(0.05, 0.4))
    if order % 29 == 0:
        raise ConnectionError("payments.example: connection reset by peer")
    if order % 41 == 0:
        raise ValueError(f"card of order {order} has expired")
    return card


@app.task(name="shop.orders.ship")
def ship(order: int) -> int:
    """Ship an order."""
    time.sleep(random.uniform(0.1, 0.6))
    if order % 23 == 0:
        raise KeyError("warehouse")
    return order


@app.task(name="shop.mail.send")
def send(address: str, *, template: str = "welcome") -> str:
    """Send a mail."""
    time.sleep(random.uniform(0.02, 0.2))
    if address.endswith("7@example.org"):
        raise TimeoutError("smtp.example: no answer within 10 s")
    return template


@app.task(name="shop.reports.make")
def make(day: str) -> str:
    """Make a report, which takes its time."""
    time.sleep(random.uniform(20, 40))
    return day


@app.task(name="shop.webhooks.notify")
def notify(url: str) -> str:
    """Call somebody's URL."""
    time.sleep(0.1)
    return url


@app.task(name="shop.import.row", bind=True)
def row(self: Task, number: int) -> int:
    """Import a row of a file."""
    del self
    time.sleep(random.uniform(0.01, 0.06))
    if number % 37 == 0:
        raise ValueError(f"row {number}: price is missing")
    return number
