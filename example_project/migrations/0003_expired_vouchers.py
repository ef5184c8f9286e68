"""The records of expired vouchers."""

from __future__ import annotations

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("example_project", "0002_sales_reports"),
    ]

    operations = [
        migrations.CreateModel(
            name="ExpiredVoucher",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("number", models.CharField(db_index=True, max_length=200)),
                ("due_at", models.DateTimeField()),
                (
                    "expired_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
            ],
        ),
    ]
