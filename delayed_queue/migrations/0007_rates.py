"""The buckets of permits that all processes share."""

from django.db import migrations, models

from delayed_queue.migrations._operations import CreateModelOnce

# As in the first migration: processes that migrate at the same time queue up.
TAKE_TURNS = """
SELECT pg_advisory_xact_lock(hashtextextended('delayed_queue.migrations', 0));
SET LOCAL lock_timeout = '5s';
"""

# A row is updated many times a second, and none of its indexed columns ever: with room left on the
# page its versions stay there, and go without a vacuum.
ROOM = "ALTER TABLE delayed_queue_rate SET (fillfactor = 50)"


class Migration(migrations.Migration):
    dependencies = [("delayed_queue", "0005_tokens")]

    operations = [
        migrations.RunSQL(TAKE_TURNS, reverse_sql=migrations.RunSQL.noop),
        CreateModelOnce(
            name="Rate",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
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
        migrations.RunSQL(migrations.RunSQL.noop, reverse_sql=TAKE_TURNS),
    ]
