"""A Django project in one file: settings, and its Celery application with django-celery-beat."""

from __future__ import annotations

import json
import os

from celery import Celery

from tests.support.journal import STARTED, Journal

os.environ.setdefault("DJANGO_SETTINGS_MODULE", __name__)

SECRET_KEY = "for tests"
INSTALLED_APPS = ["django.contrib.contenttypes", "django_celery_beat"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["DATABASE"]}}
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
USE_TZ = True

CELERY_BROKER_URL = os.environ["RELIQ_TEST_BROKER"]
CELERY_TASK_IGNORE_RESULT = True
CELERY_BEAT_MAX_LOOP_INTERVAL = 1
CELERY_BROKER_TRANSPORT_OPTIONS = json.loads(os.environ["RELIQ_TEST_CONFIG"])[
    "broker_transport_options"
]

journal = Journal(os.environ["RELIQ_TEST_JOURNAL"])
app = Celery("site")
app.config_from_object("django.conf:settings", namespace="CELERY")


@app.task(bind=True, name="note")
def note(self, what):
    """Record the name of the scheduled task that ran."""
    journal.write(STARTED, self.request.id)
    journal.write("note", what)
