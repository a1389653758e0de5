"""Celery applications with OpenTelemetry and Sentry, as their users write them.

A worker runs the application. As a module, it publishes one task that retries with a countdown. The
environment selects OpenTelemetry or Sentry.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from celery import Celery
from celery.signals import worker_process_init

COUNTDOWN_S = 1.0

app = Celery("traced", broker=os.environ["RELIQ_TEST_BROKER"])
app.conf.task_ignore_result = True


@app.task(bind=True, name="retry_twice", max_retries=5)
def retry_twice(self, outcome):
    """Succeed or fail at the third try."""
    if self.request.retries < 2:
        raise self.retry(countdown=COUNTDOWN_S)
    if outcome == "fail":
        raise ValueError("as told")


def trace_to(path):
    """Set up OpenTelemetry for this process; each span is one line of JSON."""
    from opentelemetry import trace
    from opentelemetry.instrumentation.celery import CeleryInstrumentor
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

    def line(span):
        return span.to_json(indent=None) + "\n"

    out = Path(path).open("a", encoding="utf-8", buffering=1)  # noqa: SIM115, for the process
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=out, formatter=line)))
    trace.set_tracer_provider(provider)
    CeleryInstrumentor().instrument()


def report_to(dsn):
    """Set up Sentry for this process and its children."""
    import sentry_sdk
    from sentry_sdk.integrations.celery import CeleryIntegration

    sentry_sdk.init(dsn=dsn, integrations=[CeleryIntegration()], traces_sample_rate=1.0)


def publish_traced(outcome):
    """Publish within a span of the publisher."""
    from opentelemetry import trace

    trace_to(os.environ["SPANS"])
    with trace.get_tracer(__name__).start_as_current_span("request"):
        retry_twice.delay(outcome)


def publish_reported(outcome):
    """Publish within a transaction of the publisher."""
    import sentry_sdk

    with sentry_sdk.start_transaction(name="request", op="test"):
        retry_twice.apply_async((outcome,), headers={"my-header": "kept"})
    sentry_sdk.flush(10)


@worker_process_init.connect(weak=False)
def begin(**_):
    """Set up OpenTelemetry in each child, as its documentation requires."""
    if "SPANS" in os.environ:
        trace_to(os.environ["SPANS"])


if "REPORTS" in os.environ:
    report_to(os.environ["REPORTS"])
if __name__ == "__main__":
    (publish_traced if "SPANS" in os.environ else publish_reported)(sys.argv[1])
