"""A typical FastAPI application whose endpoint publishes from a pool of threads."""

from __future__ import annotations

from fastapi import FastAPI

from tests.integration.apps.tasks import app as celery

api = FastAPI()


@api.post("/tasks/{number}")
def publish(number: int) -> dict[str, str]:
    """Publish a task; the server runs a plain `def` in one of its threads."""
    result = celery.send_task("record", shadow=f"request {number}")
    return {"id": result.id}
