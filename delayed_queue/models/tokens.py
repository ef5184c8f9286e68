"""Who may use the HTTP API."""

from __future__ import annotations

from django.db import models
from django.db.models import Value

from delayed_queue.fields import EpochMillisecondField
from delayed_queue.managers.tokens import ApiTokenManager


class ApiToken(models.Model):
    """A bearer token: what it may do, and a hash of it; the token itself is kept nowhere.

    ``digest`` is SHA-256 of 256 random bits: there is nothing to guess, so a hash that is slow
    on purpose would protect nothing and cost every request.
    """

    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=12)
    digest = models.CharField(max_length=64)
    topics = models.JSONField(db_default=Value([], models.JSONField()))
    verbs = models.JSONField(db_default=Value([], models.JSONField()))
    rate = models.FloatField(null=True, blank=True)
    burst = models.IntegerField(null=True, blank=True)
    created_at = EpochMillisecondField(db_column="createdAt")
    expires_at = EpochMillisecondField(null=True, blank=True, db_column="expiresAt")  # type: ignore[misc]
    disabled_at = EpochMillisecondField(null=True, blank=True, db_column="disabledAt")  # type: ignore[misc]
    last_used_at = EpochMillisecondField(null=True, blank=True, db_column="lastUsedAt")  # type: ignore[misc]

    objects = ApiTokenManager["ApiToken"]()

    class Meta:
        db_table = "delayed_queue_token"
        constraints = [
            # Not unique=True: Django would add an index for LIKE to each.
            models.UniqueConstraint(fields=["digest"], name="token_digest"),
            models.UniqueConstraint(fields=["name"], name="token_name"),
        ]
        permissions = [("revoke_apitoken", "Can revoke API tokens")]
        default_permissions = ["view", "add"]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"
