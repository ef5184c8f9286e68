"""One case of a plan test: a statement, its parameters, and what it may cost."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

import psycopg

PRIMARY: Final = "delayed_queue_pkey"
KEYS: Final = "delayed_queue__PKeyPlusKindUniqueIndex"
DUE: Final = "delayed_queue__KindPlusScheduledAtIndex"
LEASES: Final = "delayed_queue__LockUuidPlusIdIndex"
SCHEDULES: Final = "schedule_kind_prefix"
DESCRIBED: Final = "schedule_described"
HEARTBEATS: Final = "worker_heartbeat"
TOKENS: Final = "token_digest"
TOKEN_IDS: Final = "delayed_queue_token_pkey"
PAUSES: Final = "limit_kind_group"
GROUPS: Final = "delayed_queue__GroupPlusScheduledAtIndex"
HELD: Final = "delayed_queue__GroupPlusLeasedUntilIndex"
BEGUN: Final = "delayed_queue__GroupPlusLockUuidIndex"
RATES: Final = "rate_name"
ENDPOINT: Final = "delayed_queue_endpoint_pkey"
ENDPOINTS: Final = "endpoint_origin_prefix"
HOSTS: Final = "host_name"
SLOTS: Final = "slot_endpoint_holder"
ATTEMPT_KEY: Final = "attempt_key"
ATTEMPT_STARTED: Final = "attempt_started"
DEAD_PRIMARY: Final = "delayed_queue_dead_letter_pkey"
DEAD_DIED: Final = "dead_letter_kind_died"
DEAD_IDS: Final = "dead_letter_kind_id"
DEAD_KEYS: Final = "dead_letter_key"
RUNS: Final = "delayed_queue_bulk_run_pkey"
NEXT_RUNS: Final = "bulk_run_next"
RUNS_IN_PROGRESS: Final = "bulk_run_in_progress"
DEAD_GROUPS: Final = "dead_letter_group"
TOPICS: Final = "topic_name"
ANSWERS: Final = "idempotency_scope_key"
SAMPLES: Final = "delayed_queue_sample_rest_pkey"
SAMPLES_TABLE: Final = "delayed_queue_sample_pkey"
OLD_ANSWERS: Final = "idempotency_created"

KINDS: Final = ["bulk|json", "due|json", "scheduled|json", "leased|json", "mixed|json"]

# So far ahead that the dead versions rolled-back claims leave are in no other case's way.
LEASE: Final = 10**11


@dataclass(frozen=True)
class Case:
    """A statement, parameters as the queue would give them, and what it may cost.

    ``n`` is how many rows it is asked for. ``rows`` is how many it may look at for each of
    them, over all scans (a bitmap counts twice), ``buffers`` the pages, ``fixed`` a base of them.
    """

    statement: str
    params: dict[str, Any]
    reads: set[str]
    n: int = 1
    rows: int = 2
    buffers: int = 10
    fixed: int = 20
    or_reads: set[str] = field(default_factory=set)
    may_scan_generically: bool = False
    scans: set[str] = field(default_factory=set)
    # What PostgreSQL 15 and older read instead while they take a table for empty.
    before_16: dict[str, int] = field(default_factory=dict)

    def on(self, connection: psycopg.Connection[Any]) -> Case:
        """Return what it may cost on this server."""
        is_old = connection.info.server_version < 160_000
        return replace(self, **self.before_16) if is_old else self  # type: ignore[arg-type]

    def __str__(self) -> str:
        kinds = [self.params.get("kind") or self.params.get("topic") or ""]
        kind = str((self.params.get("kinds") or kinds)[0]).partition("|")[0]
        rest = [
            str(self.params[name])
            for name in (
                "origin",
                "topic",
                "key",
                "name",
                "key_prefix",
                "lease_id",
                "reason",
                "fingerprint",
                "overwrite",
                "floor",
                "horizon",
                "digest",
                "after",
                "is_due",
                "is_leased",
                "job",
                "cutoff",
                "since",
                "age",
            )
            if name in self.params
        ]
        return "-".join([self.statement, kind, str(self.n), *rest])


def lease_ids(number: int) -> list[str]:
    return [f"lease-{1700 + each}" for each in range(number)]


def of_ids(statement: str, reads: str, sizes: tuple[int, ...], **params: Any) -> list[Case]:
    """Cases over that many ids; the test puts real ones in the place of their number."""
    return [
        Case(
            statement, {**params, "ids": n}, {reads}, n=n, rows=4, buffers=40, fixed=300,
        )
        for n in sizes
    ]  # fmt: skip
