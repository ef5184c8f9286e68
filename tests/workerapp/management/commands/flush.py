"""Django's ``flush`` for the tests: it empties only the tables with writes.

Django calls it after each test that commits. Its own truncates every table of every app and
recreates the permissions, which takes longer than most tests do.
"""

from __future__ import annotations

from typing import Any, Final

from django.core.management.commands.flush import Command as FlushCommand
from django.db import connections

# Tables that only `migrate` writes.
_KEPT: Final = ("auth_permission", "django_content_type")

# The file of a table without writes since its TRUNCATE is empty. Uncommitted rows count, too:
# TRUNCATE then waits for their transaction, like that of Django.
_WRITTEN: Final = """
SELECT quote_ident(relname)
FROM pg_class
WHERE
    oid = ANY (
        SELECT to_regclass(quote_ident(name)) FROM unnest(%s::text[]) AS name
    )
    AND (
        pg_relation_size(oid) > 0
        -- Of a partitioned table the partitions have the rows.
        OR EXISTS (
            SELECT 1
            FROM pg_inherits
            WHERE inhparent = pg_class.oid AND pg_relation_size(inhrelid) > 0
        )
    )
"""


class Command(FlushCommand):
    def handle(self, **options: Any) -> None:
        connection = connections[options["database"]]
        tables = connection.introspection.django_table_names(only_existing=False)
        with connection.cursor() as cursor:
            cursor.execute(_WRITTEN, [[each for each in tables if each not in _KEPT]])
            if written := ", ".join(row[0] for row in cursor.fetchall()):
                # CASCADE: it also empties tables that refer to these.
                cursor.execute(f"TRUNCATE {written} CASCADE")
