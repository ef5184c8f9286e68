"""Triggers that refuse the writes of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection


@contextmanager
def refusing(event: str, when: str, table: str = "delayed_queue") -> Iterator[None]:
    """Have a trigger refuse writes to rows that meet a condition."""
    name = f"refuse_{event.split()[0].lower()}"
    row = "OLD" if event == "DELETE" else "NEW"
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                IF {when} THEN
                    RAISE EXCEPTION 'refused by a test' USING ERRCODE = '23514';
                END IF;
                RETURN {row};
            END $$;
            CREATE TRIGGER {name} BEFORE {event} ON {table}
            FOR EACH ROW EXECUTE FUNCTION {name}();
            """
        )
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP TRIGGER {name} ON {table}; DROP FUNCTION {name}();")
