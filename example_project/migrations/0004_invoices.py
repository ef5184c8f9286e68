"""The invoices that a task writes."""

from __future__ import annotations

from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):
    dependencies = [("example_project", "0003_expired_vouchers")]

    operations = [
        migrations.CreateModel(
            name="Invoice",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("order_id", models.CharField(db_index=True, max_length=200)),
                ("text", models.TextField()),
                ("written_at", models.DateTimeField(db_default=Now())),
            ],
        ),
    ]
