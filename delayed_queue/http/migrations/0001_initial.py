"""Topics, tokens, rates, and where callbacks go and what became of each."""

from __future__ import annotations

from typing import Any

from django.core.validators import MinValueValidator
from django.db import migrations, models

from delayed_queue.fields import EpochMillisecondField
from delayed_queue.migrations._operations import END_TURN, TAKE_TURN, CreateModelOnce

# A row is updated many times a second, never in an indexed column. With free space on the page its
# versions stay there, and no vacuum is needed.
ROOM = "ALTER TABLE delayed_queue_rate SET (fillfactor = 50)"


def _id() -> tuple[str, models.Field[Any, Any]]:
    field = models.BigAutoField(
        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
    )
    return "id", field


def _at(name: str, column: str, *, blank: bool = False) -> tuple[str, models.Field[Any, Any]]:
    """Return a nullable instant."""
    return name, EpochMillisecondField(null=True, blank=blank, db_column=column)  # type: ignore[misc]


class Migration(migrations.Migration):
    initial = True

    dependencies = [("delayed_queue", "0001_initial")]

    operations = [
        TAKE_TURN,
        CreateModelOnce(
            name="Topic",
            fields=[
                _id(),
                ("name", models.CharField(verbose_name="name", db_collation="C", max_length=80)),
                ("shards", models.IntegerField(db_default=1, default=1)),
                ("created_at", EpochMillisecondField(db_column="createdAt")),
                ("hosts", models.TextField(blank=True, db_default="", default="", editable=False)),
            ],
            options={
                "verbose_name": "topic",
                "verbose_name_plural": "topics",
                "db_table": "delayed_queue_topic",
                "constraints": [models.UniqueConstraint(fields=("name",), name="topic_name")],
            },
        ),
        CreateModelOnce(
            name="IdempotencyKey",
            fields=[
                _id(),
                ("scope", models.CharField(db_collation="C", max_length=200)),
                ("key", models.CharField(db_collation="C", max_length=200)),
                ("request_hash", models.BinaryField(db_column="requestHash")),
                ("status", models.IntegerField()),
                ("answer", models.TextField()),
                ("created_at", EpochMillisecondField(db_column="createdAt")),
            ],
            options={
                "db_table": "delayed_queue_idempotency_key",
                "default_permissions": ["view"],
                "indexes": [models.Index(fields=["created_at", "id"], name="idempotency_created")],
                "constraints": [
                    models.UniqueConstraint(fields=("scope", "key"), name="idempotency_scope_key")
                ],
            },
        ),
        CreateModelOnce(
            name="ApiToken",
            fields=[
                _id(),
                ("name", models.CharField(verbose_name="name", max_length=100)),
                ("prefix", models.CharField(max_length=12)),
                ("digest", models.CharField(max_length=64)),
                ("topics", models.JSONField(db_default=models.Value([], models.JSONField()))),
                ("verbs", models.JSONField(db_default=models.Value([], models.JSONField()))),
                ("rate", models.FloatField(verbose_name="rate", blank=True, null=True)),
                ("burst", models.IntegerField(verbose_name="burst", blank=True, null=True)),
                ("created_at", EpochMillisecondField(db_column="createdAt")),
                _at("expires_at", "expiresAt", blank=True),
                _at("disabled_at", "disabledAt", blank=True),
                _at("last_used_at", "lastUsedAt", blank=True),
            ],
            options={
                "verbose_name": "API token",
                "verbose_name_plural": "API tokens",
                "db_table": "delayed_queue_token",
                "permissions": [("revoke_apitoken", "Can revoke API tokens")],
                "default_permissions": ["view", "add"],
                "constraints": [
                    models.UniqueConstraint(fields=("digest",), name="token_digest"),
                    models.UniqueConstraint(fields=("name",), name="token_name"),
                ],
            },
        ),
        CreateModelOnce(
            name="CallbackAttempt",
            fields=[
                _id(),
                ("key", models.CharField(db_collation="C", max_length=200)),
                ("topic", models.CharField(db_collation="C", max_length=100)),
                ("kind", models.CharField(max_length=100)),
                ("webhook_id", models.TextField(db_column="webhookId")),
                ("attempt", models.IntegerField()),
                ("started_at", EpochMillisecondField(db_column="startedAt")),
                ("duration", models.IntegerField()),
                ("status", models.IntegerField(blank=True, null=True)),
                ("failure", models.TextField(blank=True, db_default="")),
                ("detail", models.TextField(blank=True, db_default="")),
                ("address", models.TextField(blank=True, db_default="")),
                ("excerpt", models.TextField(blank=True, db_default="")),
                ("is_ambiguous", models.BooleanField(db_column="isAmbiguous", db_default=False)),
                ("endpoint_id", models.BigIntegerField(blank=True, null=True)),
                ("url", models.TextField(blank=True, db_default="")),
            ],
            options={
                "verbose_name": "callback attempt",
                "verbose_name_plural": "callback attempts",
                "db_table": "delayed_queue_callback_attempt",
                "default_permissions": ["view"],
                "indexes": [
                    models.Index(fields=["key", "id"], name="attempt_key"),
                    models.Index(fields=["started_at", "id"], name="attempt_started"),
                ],
            },
        ),
        CreateModelOnce(
            name="Endpoint",
            fields=[
                _id(),
                ("origin", models.TextField(db_collation="C")),
                ("prefix", models.TextField(verbose_name="prefix", db_collation="C")),
                ("secret", models.TextField()),
                (
                    "previous_secret",
                    models.TextField(blank=True, db_column="previousSecret", db_default=""),
                ),
                _at("rotated_at", "rotatedAt", blank=True),
                _at("disabled_at", "disabledAt", blank=True),
                (
                    "disabled_reason",
                    models.TextField(blank=True, db_column="disabledReason", db_default=""),
                ),
                ("per_second", models.FloatField(blank=True, db_column="perSecond", null=True)),
                (
                    "burst",
                    models.IntegerField(db_default=1, default=1, validators=[MinValueValidator(1)]),
                ),
                (
                    "concurrency",
                    models.IntegerField(blank=True, null=True, validators=[MinValueValidator(1)]),
                ),
                ("created_at", EpochMillisecondField(db_column="createdAt")),
            ],
            options={
                "verbose_name": "endpoint",
                "verbose_name_plural": "endpoints",
                "db_table": "delayed_queue_endpoint",
                "permissions": [
                    ("rotate_endpoint", "Can rotate the secrets of endpoints"),
                    ("disable_endpoint", "Can disable and enable endpoints"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("origin", "prefix"), name="endpoint_origin_prefix"
                    )
                ],
            },
        ),
        CreateModelOnce(
            name="Host",
            fields=[
                _id(),
                ("name", models.TextField(db_collation="C")),
                _at("opened_at", "openedAt"),
                _at("open_until", "openUntil"),
                ("openings", models.IntegerField(db_default=0)),
                ("reason", models.TextField(blank=True, db_default="")),
                ("probe_by", models.CharField(db_column="probeBy", max_length=36, null=True)),
                _at("probe_until", "probeUntil"),
            ],
            options={
                "verbose_name": "host",
                "verbose_name_plural": "hosts",
                "db_table": "delayed_queue_host",
                "permissions": [("close_host", "Can close and open the breakers of hosts")],
                "default_permissions": ["view"],
                "constraints": [models.UniqueConstraint(fields=("name",), name="host_name")],
            },
        ),
        CreateModelOnce(
            name="Slot",
            fields=[
                _id(),
                ("holder", models.CharField(db_collation="C", max_length=36)),
                ("held_until", EpochMillisecondField(db_column="heldUntil")),
                (
                    "endpoint",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, to="delayed_queue_http.endpoint"
                    ),
                ),
            ],
            options={
                "db_table": "delayed_queue_slot",
                "default_permissions": [],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("endpoint", "holder"), name="slot_endpoint_holder"
                    )
                ],
            },
        ),
        CreateModelOnce(
            name="Rate",
            fields=[
                _id(),
                ("name", models.CharField(db_collation="C", max_length=200)),
                ("booked_until", models.BigIntegerField(db_column="bookedUntil")),
                ("granted", models.IntegerField(db_default=0)),
            ],
            options={
                "db_table": "delayed_queue_rate",
                "default_permissions": [],
                "constraints": [models.UniqueConstraint(fields=("name",), name="rate_name")],
            },
        ),
        migrations.RunSQL(ROOM, reverse_sql=migrations.RunSQL.noop),
        END_TURN,
    ]
