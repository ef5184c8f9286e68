"""``manage.py setupnotifications``: the templates of the shipped requests, and who opted out."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from example_project.samples import set_up


class Command(BaseCommand):
    help = "Add the templates and suppressions of the example; again, it changes nothing."

    def handle(self, **options: Any) -> None:
        templates, suppressed = set_up()
        self.stdout.write(f"templates added: {templates}, suppressed: {suppressed}")
