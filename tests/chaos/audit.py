"""The audit: every change of each row, recorded by the database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from django.db import connection

# The application_name of the producer's connection: the producer drops messages, others settle
# them.
PRODUCER: Final = "chaos-producer"

_AUDIT: Final = """
CREATE TABLE chaos_audit (
    id bigserial PRIMARY KEY,
    operation text NOT NULL,
    kind text NOT NULL,
    is_producer boolean NOT NULL,
    old_payload text,
    new_payload text,
    old_lease text,
    new_lease text,
    is_delivery boolean,
    available_at bigint,
    at bigint NOT NULL
);
CREATE FUNCTION chaos_audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos_audit (
        operation, kind, is_producer, old_payload, new_payload, old_lease, new_lease,
        is_delivery, available_at, at
    )
    VALUES (
        tg_op, COALESCE(NEW."pKind", OLD."pKind"),
        current_setting('application_name') = 'chaos-producer',
        convert_from(OLD.payload, 'UTF8'), convert_from(NEW.payload, 'UTF8'),
        OLD."lockUuid", NEW."lockUuid", NEW.attempts > OLD.attempts, OLD."scheduledAt",
        floor(extract(epoch FROM statement_timestamp()) * 1000)
    );
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_audit AFTER INSERT OR UPDATE OR DELETE ON delayed_queue
FOR EACH ROW EXECUTE FUNCTION chaos_audit();
"""
_EVENTS: Final = """
SELECT operation, is_producer, trim('"' FROM old_payload), trim('"' FROM new_payload),
    old_lease, new_lease, is_delivery, available_at, at
FROM chaos_audit
WHERE kind = %s
    AND (operation <> 'UPDATE' OR old_payload <> new_payload
        OR old_lease IS DISTINCT FROM new_lease)
ORDER BY id
"""


@dataclass(frozen=True, slots=True)
class Event:
    """One change of one row; payloads are versions, each offered once."""

    operation: str
    is_producer: bool
    old: str | None
    new: str | None
    old_lease: str | None
    new_lease: str | None
    # False for the mark of a suspect, which is in the lease column.
    is_delivery: bool | None
    available_at: int | None
    at: int


def install() -> None:
    with connection.cursor() as cursor:
        cursor.execute(_AUDIT)


def events(kind: str) -> list[Event]:
    with connection.cursor() as cursor:
        cursor.execute(_EVENTS, [kind])
        return [Event(*row) for row in cursor.fetchall()]
