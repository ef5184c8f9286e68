"""Which version of a message the package's own columns belong to."""

from django.db import migrations

import delayed_queue.fields
from delayed_queue.migrations._operations import AddFieldOnce

# As in the first migration: processes that migrate at the same time queue up.
TAKE_TURNS = """
SELECT pg_advisory_xact_lock(hashtextextended('delayed_queue.migrations', 0));
SET LOCAL lock_timeout = '5s';
"""


class Migration(migrations.Migration):
    dependencies = [("delayed_queue", "0009_archives")]

    operations = [
        migrations.RunSQL(TAKE_TURNS, reverse_sql=migrations.RunSQL.noop),
        # NULL-able and without a default: no row is written, however many there are.
        AddFieldOnce(
            model_name="message",
            name="version_at",
            field=delayed_queue.fields.EpochMillisecondField(  # type: ignore[misc]
                blank=True, db_column="versionAt", null=True
            ),
        ),
        migrations.RunSQL(migrations.RunSQL.noop, reverse_sql=TAKE_TURNS),
    ]
