"""The referee of groups: compares the leases in the database with their limits."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from django.db import connection

# These events follow the row locks, in the order of their statements. A queue's claims run one at a
# time. The end of a lease counts from its statement on, before the commit, so the count is never
# too high.
_AUDIT: Final = """
CREATE TABLE group_audit (
    id bigserial PRIMARY KEY, kind text NOT NULL, message bigint NOT NULL, name text,
    lease text, until bigint, first_at bigint, at double precision NOT NULL
);
CREATE FUNCTION group_audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF tg_op <> 'INSERT' AND OLD."group" IS NOT NULL THEN
        INSERT INTO group_audit (kind, message, name, at)
        VALUES (OLD."pKind", OLD.id, OLD."group", extract(epoch FROM clock_timestamp()) * 1000);
    END IF;
    IF tg_op <> 'DELETE' AND NEW."group" IS NOT NULL THEN
        INSERT INTO group_audit (kind, message, name, lease, until, first_at, at)
        VALUES (
            NEW."pKind", NEW.id, NEW."group", NEW."lockUuid", NEW."scheduledAt",
            NEW."scheduledAtInitially", extract(epoch FROM clock_timestamp()) * 1000
        );
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER group_audit AFTER INSERT OR UPDATE OR DELETE ON delayed_queue
FOR EACH ROW EXECUTE FUNCTION group_audit();
"""
_REMOVED: Final = """
DROP TRIGGER IF EXISTS group_audit ON delayed_queue;
DROP FUNCTION IF EXISTS group_audit();
DROP TABLE IF EXISTS group_audit;
"""
_EVENTS: Final = """
SELECT message, name, lease, until, first_at, at FROM group_audit WHERE kind = %s ORDER BY id
"""


@dataclass(frozen=True, slots=True)
class Held:
    """A message's state: leased or waiting until then."""

    lease: str | None
    until: int
    initially: int

    def is_leased(self, at: float) -> bool:
        return self.lease is not None and self.until > at

    def waits(self, at: float) -> bool:
        return self.lease is None and self.until > max(at, self.initially)

    def is_in_the_way(self, at: float) -> bool:
        """True if the message blocks its group while the group is ordered."""
        return self.is_leased(at) or self.waits(at)


@dataclass
class Verdict:
    """The observations of a queue: leases, the maximum of a group at a time, violations."""

    leases: int = 0
    most: int = 0
    violations: list[str] = field(default_factory=list)


def install() -> None:
    with connection.cursor() as cursor:
        cursor.execute(_AUDIT)


def remove() -> None:
    with connection.cursor() as cursor:
        cursor.execute(_REMOVED)


def judge(kind: str, limit: int, *, is_ordered: bool = False) -> Verdict:
    """Replay the leases; count each that started beside too many others."""
    verdict = Verdict()
    groups: defaultdict[str, dict[int, Held]] = defaultdict(dict)
    with connection.cursor() as cursor:
        cursor.execute(_EVENTS, [kind])
        for message, name, lease, until, initially, at in cursor.fetchall():
            others = groups[name]
            others.pop(message, None)
            if until is None:
                continue
            held = Held(lease, until, initially)
            if held.is_leased(at):
                live = [each for each in others.values() if each.is_leased(at)]
                verdict.leases += 1
                verdict.most = max(verdict.most, len(live) + 1)
                is_late = is_ordered and any(e.is_in_the_way(at) for e in others.values())
                if len(live) >= limit or is_late:
                    verdict.violations.append(f"{name}/{message} at {at:.0f}")
            others[message] = held
    return verdict
