"""A ledger of effects: one row for each run of a handler."""

from __future__ import annotations

from django.db import models


class Effect(models.Model):
    queue = models.CharField(max_length=100)
    key = models.CharField(max_length=200)
    attempt = models.IntegerField()
    pid = models.IntegerField()

    def __str__(self) -> str:
        return f"{self.queue}/{self.key} attempt {self.attempt}"
