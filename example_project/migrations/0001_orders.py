"""The demo's orders, deliveries and closings."""

from __future__ import annotations

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Closing",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("order_id", models.CharField(db_index=True, max_length=200)),
                ("attempt", models.IntegerField()),
                ("worker", models.IntegerField()),
                (
                    "closed_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Delivery",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("order_id", models.CharField(max_length=200)),
                ("attempt", models.IntegerField()),
                ("delivery_type", models.CharField(max_length=10)),
                ("due_at", models.DateTimeField()),
                (
                    "started_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                ("worker", models.IntegerField(help_text="The process id of the worker.")),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("unfinished", "Unfinished"),
                            ("closed", "Closed"),
                            ("nothing to do", "Nothing To Do"),
                            ("timed out", "Timed Out"),
                            ("refused", "Refused"),
                        ],
                        default="unfinished",
                        max_length=13,
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "deliveries",
                "indexes": [
                    models.Index(fields=["order_id", "attempt"], name="delivery_order_attempt")
                ],
            },
        ),
        migrations.CreateModel(
            name="Order",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("order_id", models.CharField(max_length=200, unique=True)),
                ("customer", models.CharField(max_length=200)),
                ("amount", models.DecimalField(decimal_places=2, max_digits=12)),
                ("currency", models.CharField(max_length=3)),
                (
                    "state",
                    models.CharField(
                        choices=[("open", "Open"), ("paid", "Paid"), ("closed", "Closed")],
                        default="open",
                        max_length=6,
                    ),
                ),
                ("created_at", models.DateTimeField()),
                (
                    "close_at",
                    models.DateTimeField(help_text="When it is closed if it was not paid."),
                ),
                (
                    "pays_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="When the simulated customer pays, if ever.",
                        null=True,
                    ),
                ),
                ("paid_at", models.DateTimeField(blank=True, null=True)),
                ("closed_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "indexes": [models.Index(fields=["pays_at"], name="order_pays_at")],
            },
        ),
    ]
