"""The jobs of the Django peers."""

from __future__ import annotations

import os

import protocol

if os.environ["BENCH_PEER"] == "django_ox":
    from django.tasks import task
else:
    from django_tasks import task


@task
def noop(text: str) -> None:
    """Do nothing."""


@task
def stamped(offered_at: float) -> None:
    protocol.stamp(offered_at)
