"""Triggers that refuse the writes of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from django.db import connection

# The body of a trigger for each SQLSTATE.
FAULTS: Final = {
    "23514": "RAISE EXCEPTION 'refused by a test' USING ERRCODE = '23514'",
    "23505": "INSERT INTO refused_twice VALUES (1), (1)",
    "22001": "INSERT INTO refused_short VALUES ('too long')",
    "42501": "SET LOCAL ROLE pg_signal_backend; INSERT INTO refused_twice VALUES (1)",
}


@contextmanager
def refusing(
    event: str, when: str, table: str = "delayed_queue", state: str = "23514"
) -> Iterator[None]:
    """Create a trigger that refuses writes to rows that meet a condition."""
    name = f"refuse_{event.split()[0].lower()}"
    row = "OLD" if event == "DELETE" else "NEW"
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            CREATE TABLE IF NOT EXISTS refused_twice (id integer PRIMARY KEY);
            CREATE TABLE IF NOT EXISTS refused_short (text varchar(2));
            CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                IF {when} THEN
                    {FAULTS[state]};
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
