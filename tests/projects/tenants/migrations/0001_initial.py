"""The tables of tenants and their hosts, in the shared schema."""

from __future__ import annotations

from django.db import migrations, models
from django_tenants.postgresql_backend.base import _check_schema_name


class Migration(migrations.Migration):
    dependencies = []
    operations = [
        migrations.CreateModel(
            name="Tenant",
            fields=[
                ("id", models.BigAutoField(primary_key=True)),
                (
                    "schema_name",
                    models.CharField(
                        max_length=63, unique=True, db_index=True, validators=[_check_schema_name]
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Domain",
            fields=[
                ("id", models.BigAutoField(primary_key=True)),
                ("domain", models.CharField(max_length=253, unique=True, db_index=True)),
                ("is_primary", models.BooleanField(default=True, db_index=True)),
                (
                    "tenant",
                    models.ForeignKey("tenants.Tenant", models.CASCADE, related_name="domains"),
                ),
            ],
        ),
    ]
