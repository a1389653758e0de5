"""An administrator's actions in Django's admin: plan two periodic tasks, or end one."""

from __future__ import annotations

import json
import sys

import django
from django.db import transaction

from tests.outside.programs.django_site import note


def plan():
    """Plan a task that runs every second and one that runs once; publish one on commit."""
    from django_celery_beat.models import IntervalSchedule, PeriodicTask

    with transaction.atomic():
        second, _ = IntervalSchedule.objects.get_or_create(every=1, period=IntervalSchedule.SECONDS)
        for name, once in (("each second", False), ("one time", True)):
            PeriodicTask.objects.create(
                interval=second,
                name=name,
                task="note",
                args=json.dumps([name.replace(" ", "-")]),
                one_off=once,
            )
        note.delay_on_commit("on-commit")


def end():
    """Disable the periodic task."""
    from django_celery_beat.models import PeriodicTask

    task = PeriodicTask.objects.get(name="each second")
    task.enabled = False
    task.save()


django.setup()
{"plan": plan, "end": end}[sys.argv[1]]()
