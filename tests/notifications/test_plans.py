"""Plans of every statement of the service at 200,000 rows.

``NOTIFICATION_ROWS=1000000 pytest tests/notifications/test_plans.py`` does it at a million. The
statements run through Django's cursors, which send the parameters within the text. PostgreSQL
therefore plans each for its own parameters, and never uses a generic plan.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg
import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from delayed_queue.notifications import (
    intake,
    managing,
    monitor,
    parking,
    services,
    settling,
    sweeping,
)
from delayed_queue.notifications.managing import LAST_ID
from delayed_queue.notifications.models import Status
from tests.plans.explain import Plan, explain
from tests.support.processes import database_url

# Without the mark, a run of this file alone would fill the real database, not the one for tests.
pytestmark = pytest.mark.django_db

ROWS: Final = int(os.environ.get("NOTIFICATION_ROWS", "200000"))
TABLES: Final = (
    "delayed_queue_notification, delayed_queue_notification_delivery, "
    "delayed_queue_notification_suppression, delayed_queue_notification_dedupe, "
    "delayed_queue_notification_soft_bounce, delayed_queue_notification_parked, "
    "delayed_queue_notification_template, "
    "delayed_queue_dead_letter, delayed_queue"
)
COLD: Final = {"effective_cache_size": "8kB", "random_page_cost": "8"}
WARM: Final = {"effective_cache_size": "4GB"}

DRAINED: Final = """
DELETE FROM pg_statistic WHERE starelid = 'delayed_queue'::regclass;
UPDATE pg_class SET reltuples = 1, relpages = 100 WHERE oid = 'delayed_queue'::regclass
"""

# 97 % sent, 1 % each enqueued, processing and failed; none cancelled or expired: a search for
# missing states must cost nothing. Ids ascend over a day. Two tenants, one of them rare.
FILL: Final = f"""
INSERT INTO delayed_queue_notification (
    id, tenant, channel, priority, category, recipient, recipient_hash, template, subject,
    body, html, send_at, expires_at, dedupe_key, callback_url, status, attempts, lease_id, provider,
    provider_id, outcome, error_class, created_at, ended_at
)
SELECT
    encode(
        substring(int8send(%(start)s + n * 86400000::bigint / {ROWS}) FROM 3)
        || '\\x7000'::bytea || '\\x8000'::bytea || substring(int8send(n) FROM 3), 'hex'
    )::uuid,
    CASE WHEN n %% 1000 = 0 THEN 'rare' ELSE 'shop' END,
    'email', 'normal', 'orders', 'customer-' || n || '@example.org',
    substring(sha256(convert_to((n %% 50000)::text, 'UTF8')) FROM 1 FOR 16),
    'order', 'Your order', repeat('x', 200), '', now(),
    CASE WHEN n %% 100 = 0 THEN now() + n * interval '1 second' END, '', '',
    CASE n %% 100
        WHEN 0 THEN 'ENQUEUED' WHEN 1 THEN 'PROCESSING' WHEN 2 THEN 'FAILED'
        ELSE 'SUCCESSFULLY_PROCESSED'
    END,
    1, CASE WHEN n %% 100 = 1 THEN gen_random_uuid() END, 'smtp', '', '', '',
    now(), CASE WHEN n %% 100 > 1 THEN now() END
FROM generate_series(1, {ROWS}) AS n
"""  # noqa: S608 - numbers of our own
FILL_OTHERS: Final = f"""
INSERT INTO delayed_queue_notification_delivery (
    notification_id, at, attempt, provider, provider_id, outcome, error_class, detail, duration_ms
)
SELECT
    id, now() - row_number() OVER () * interval '10 ms', 1, 'smtp-' || length(recipient) %% 3, '',
    'sent', '', '', 100
FROM delayed_queue_notification;
INSERT INTO delayed_queue_notification_suppression (channel, recipient_hash, category, reason)
SELECT
    'email', substring(sha256(convert_to('other' || n, 'UTF8')) FROM 1 FOR 16), 'offers', 'opt-out'
FROM generate_series(1, {ROWS} / 4) AS n;
INSERT INTO delayed_queue_notification_soft_bounce (recipient_hash, at)
SELECT substring(sha256(convert_to(n::text, 'UTF8')) FROM 1 FOR 16), now()
FROM generate_series(1, 10000) AS n;
INSERT INTO delayed_queue_notification_dedupe (tenant, key, notification_id, until)
SELECT 'shop', 'key:' || recipient, id, now() + interval '1 hour'
FROM delayed_queue_notification;
INSERT INTO delayed_queue_notification_parked (
    digest, origin, message_id, content_type, body, reason, errors, times, parked_at
)
SELECT
    sha256(convert_to(n::text, 'UTF8')), 'notifications', '', '', 'x', 'malformed', '[]', 1,
    now() - n * interval '1 second'
FROM generate_series(1, 20000) AS n;
INSERT INTO delayed_queue_notification_template
    (name, channel, version, subject, body, html, category)
SELECT 'template-' || n %% 1000, 'email', 1 + n / 1000, '', repeat('x', 2000), '', ''
FROM generate_series(0, 19999) AS n;
INSERT INTO delayed_queue_dead_letter (
    "pKind", "pKey", payload, attempts, reason, "scheduledAtInitially", "createdAt", "diedAt"
)
SELECT 'notifications-normal-email|json', id::text, 'x', 1, 'crashed', 0, 0, 0
FROM delayed_queue_notification
WHERE hashtext(recipient) %% 10 = 0;
INSERT INTO delayed_queue (
    "pKind", "pKey", payload, "scheduledAt", "scheduledAtInitially", "createdAt"
)
SELECT 'notifications-normal-email|json', id::text, 'x', 0, 0, 0
FROM delayed_queue_notification
WHERE hashtext(recipient) %% 10 = 1;
"""  # noqa: S608


@dataclass(frozen=True)
class Case:
    """The parameters of a statement, its allowed indexes, and its maximum of rows."""

    params: dict[str, Any]
    rows: int
    indexes: set[str] = field(default_factory=set)


PRIMARY: Final = "delayed_queue_notification_pkey"
# For a state and an id it finds one row, as the primary key does.
BY_STATE: Final = "notification_status_id"
STATES: Final = [each.value for each in Status]
SOME: Final = 50


@pytest.fixture(scope="module")
def filled(django_db_setup: None, django_db_blocker: Any) -> Iterator[psycopg.Connection[Any]]:
    """The tables, filled and committed for this module alone; a connection beside Django's."""
    with django_db_blocker.unblock():
        url = database_url()
    start = int(datetime.now(UTC).timestamp() * 1000) - 86_400_000
    with psycopg.connect(url, autocommit=True) as own:
        try:
            # Earlier tests have left dead rows.
            own.execute(f"TRUNCATE {TABLES}")
            own.execute(FILL, {"start": start})
            own.execute(FILL_OTHERS.replace("%%", "%"))
            own.execute(f"VACUUM ANALYZE {TABLES}")
            yield own
        finally:
            own.execute(f"TRUNCATE {TABLES}")


@pytest.fixture
def some(filled: psycopg.Connection[Any]) -> list[uuid.UUID]:
    """Fifty waiting notifications, spread over the table."""
    rows = filled.execute(
        "SELECT id FROM delayed_queue_notification WHERE status = 'ENQUEUED' "
        "ORDER BY recipient LIMIT %s",
        [SOME],
    )
    return [id_ for (id_,) in rows]


def cases(ids: list[uuid.UUID]) -> dict[str, Case]:
    one, new = str(ids[0]), [uuid.uuid4() for _ in ids]
    texts = [""] * SOME
    suppressed = "notification_suppression"
    call = {"provider": "smtp", "provider_id": "", "outcome": "sent", "error_class": "",
            "detail": "", "duration_ms": 1}  # fmt: skip
    ends = [
        {"id": str(id_), "lease_id": str(lease_id), "status": "ENQUEUED", "outcome": "",
         "attempt": 1, "calls": [call]}
        for id_, lease_id in zip(ids, new, strict=True)
    ]  # fmt: skip
    settlement = {
        "settled": json.dumps(ends), "messages": list(range(1, SOME)),
        "message_leases": [str(each) for each in new],
    }  # fmt: skip
    texts_of = dict.fromkeys(
        ("category", "recipient", "template", "subject", "body", "html", "dedupe_key",
         "callback_url"), "",
    )  # fmt: skip
    rows = [
        {**texts_of, "id": str(each), "channel": "email", "priority": "normal",
         "recipient_hash": "eHh4eHh4eHh4eHh4eHh4eA==", "claim": f"key:customer-{n}@example.org"}
        for n, each in enumerate(new)
    ]  # fmt: skip
    requests = {"tenant": "shop", "requests": json.dumps(rows)}
    claims = {
        "tenant": "shop", "keys": [f"key:customer-{n}@example.org" for n in range(1, SOME)],
        "ids": new[1:], "window": timedelta(hours=1),
    }  # fmt: skip
    page = {"before": LAST_ID, "limit": SOME, "statuses": STATES}
    kinds = ["notifications-normal-email|json"] * SOME
    begin = {"ids": ids, "kinds": kinds, "leases": new, "providers": texts}
    by_key = "delayed_queue__PKeyPlusKindUniqueIndex"
    digests = [b"%d" % n for n in range(SOME)]
    parked = {
        "origin": "notifications", "tenant": "shop", "digests": digests, "message_ids": texts,
        "content_types": texts, "bodies": digests, "reasons": texts, "errors": ["[]"] * SOME,
        "times": [1] * SOME,
    }  # fmt: skip
    return {
        "START": Case(begin, 6 * SOME, {PRIMARY, suppressed, by_key}),
        "SETTLE": Case(
            settlement, 6 * SOME,
            {PRIMARY, BY_STATE, "delayed_queue_notification_delivery_notification_id_",
             "delayed_queue_pkey", "delayed_queue__LockUuidPlusIdIndex", by_key},
        ),
        "DEFER": Case(
            settlement, 5 * SOME,
            {PRIMARY, BY_STATE, "delayed_queue_notification_delivery_notification_id_", by_key},
        ),
        "LOCK": Case({"name": "a"}, 1),
        "CANCEL": Case({"id": one, "reason": "cancelled"}, 3, {PRIMARY, BY_STATE, by_key}),
        "EXPIRE": Case({"limit": SOME}, 2 * SOME, {PRIMARY, "notification_expires", by_key}),
        "WITHOUT_MESSAGE": Case(
            {"status": "ENQUEUED", "after": uuid.UUID(int=0), "limit": SOME}, 3 * SOME,
            {BY_STATE, by_key},
        ),
        "FAIL": Case(
            {"ids": ids, "leases": texts, "reasons": texts}, 4 * SOME, {PRIMARY, BY_STATE, by_key}
        ),
        "CLAIM_KEYS": Case(claims, 0, {"notification_dedupe"}),
        "HOLDERS": Case(claims, 3 * SOME, {PRIMARY, "notification_dedupe"}),
        "INSERT": Case(requests, 2 * SOME, {suppressed, "notification_dedupe", by_key}),
        "PAGE_OF_TENANT": Case(page | {"tenant": "rare"}, 6 * SOME, {"notification_tenant"}),
        "PAGE": Case(page, 6 * SOME, {"notification_status_id"}),
        "PROVIDERS": Case(
            {"period": timedelta(minutes=15), "cap": 1000}, 1000, {"notification_delivery_at"}
        ),
        "PARK": Case(parked, 0, {"notification_parked_digest"}),
    }  # fmt: skip


STATEMENTS: Final = {
    name: text
    for module in (intake, managing, monitor, parking, services, settling, sweeping)
    for name, text in vars(module).items()
    if isinstance(text, str)
    and name[0] != "_"
    and text.strip().startswith(("SELECT", "WITH", "INSERT", "UPDATE", "DELETE"))
}
NAMES: Final = sorted(STATEMENTS)


def test_n12_each_statement_has_a_case(some):
    assert set(cases(some)) == set(NAMES)


@pytest.mark.parametrize(
    ("machine", "state"), [(WARM, "analyzed"), (COLD, "analyzed"), (WARM, "drained")],
    ids=["warm", "cold", "drained"],
)  # fmt: skip
@pytest.mark.parametrize("name", NAMES)
def test_n12_a_statement_reads_its_index_and_a_bounded_number_of_rows(
    filled, some, name, machine, state
):
    """A drained queue was empty at its last autovacuum, and has filled since."""
    case = cases(some)[name]
    with filled.transaction(force_rollback=True):
        if state == "drained":
            filled.execute(DRAINED)
        for setting, value in machine.items():
            filled.execute(f"SET LOCAL {setting} = '{value}'")
        plan = explain(filled, STATEMENTS[name], case.params, generic=False)
    known = {index for index in plan.indexes if any(map(index.startswith, case.indexes))}
    assert plan.indexes == known, plan
    assert not plan.scanned_whole(), plan
    assert plan.rows_read() <= case.rows, plan
    assert all(count <= 6 * SOME for count in plan.rows_sorted() if name != "PROVIDERS"), plan


@pytest.mark.parametrize(
    "path",
    ["dashboard/", "", "?status=FAILED", "?status=EXPIRED", "?status=SUCCESSFULLY_PROCESSED"],
)
def test_n12_a_page_costs_the_same_however_much_is_kept(filled, path):
    user = get_user_model().objects.create_superuser("operator")
    client = Client()
    client.force_login(user)
    with CaptureQueriesContext(connection) as queries:
        assert (
            client.get(f"/admin/delayed_queue_notifications/notification/{path}").status_code == 200
        )
    for query in queries:
        if query["sql"].startswith(("SELECT", "WITH")):
            assert _rows_read(query["sql"]) <= 70_000, query["sql"]


def _rows_read(statement: str) -> float:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {statement}")
        return Plan(cursor.fetchone()[0][0]["Plan"]).rows_read()
