"""``manage.py prunenotifications``: forget what ended long ago."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from example_project.notifications.conf import get_settings
from example_project.notifications.pruning import prune


class Command(BaseCommand):
    help = "Delete ended notifications, deliveries, dedupe keys and parked requests by age."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--days", type=int, help="default: the setting RETENTION")

    def handle(self, *, days: int | None, **options: Any) -> None:
        age = get_settings().RETENTION if days is None else timedelta(days=days)
        self.stdout.write(f"notifications deleted: {prune(age)}")
