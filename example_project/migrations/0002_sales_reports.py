"""The records of the sales report."""

from __future__ import annotations

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("example_project", "0001_orders"),
    ]

    operations = [
        migrations.CreateModel(
            name="SalesReport",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("key", models.CharField(db_index=True, max_length=200)),
                ("planned_at", models.DateTimeField()),
                ("closed", models.IntegerField(help_text="Orders closed so far.")),
                ("amount", models.DecimalField(decimal_places=2, max_digits=16)),
                ("worker", models.IntegerField()),
                (
                    "written_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
            ],
        ),
    ]
