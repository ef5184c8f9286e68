"""Plans of every statement of the admin's pages, at 200,000 messages and as many dead letters.

``ADMIN_ROWS=10000000 pytest -s tests/admin/test_plans.py`` does it at ten million of each, prints
the time of each page in the database and in Python, and limits the sum to 200 ms.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import nullcontext
from io import StringIO
from typing import Any, Final

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from delayed_queue.admin.lists import SCANNED
from delayed_queue.messages import to_milliseconds
from delayed_queue.models import DeadLetter, Message, Worker
from delayed_queue.observe.overview import EXACT, LEASE_CAP
from tests.plans.case import (
    DEAD_DIED,
    DEAD_PRIMARY,
    DUE,
    GROUPS,
    KEYS,
    LEASES,
    PRIMARY,
)
from tests.plans.explain import Plan

SAMPLED_PAGES: Final = 300

# Without the mark, a run of this file alone would fill the real database, not the one for tests.
pytestmark = pytest.mark.django_db

PAGE: Final = 51
IN_FLIGHT: Final = 10_000
DEAD_KEYS: Final = "dead_letter_key"
DEAD_OF_GROUP: Final = "dead_letter_of_group"
TABLES: Final = (
    "delayed_queue, delayed_queue_dead_letter, delayed_queue_worker, delayed_queue_limit, "
    "delayed_queue_sample, delayed_queue_batch"
)

ROWS: Final = int(os.environ.get("ADMIN_ROWS", "200000"))
# Milliseconds for a page.
LIMIT: Final = 200

# Half of them due in one millisecond, a quarter each scheduled and of four small queues; the last
# 10,000 leased, 2,000 of these expired. The order is scrambled, as in a table of some age.
FILL: Final = f"""
INSERT INTO delayed_queue (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", "lockUuid"
)
SELECT
    'key-' || n,
    CASE WHEN n < {ROWS // 2} THEN 'bulk|json' WHEN n < {ROWS // 4 * 3} THEN 'later|json'
        ELSE 'small-' || n % 4 || '|json' END,
    convert_to(repeat('x', 100), 'UTF8'),
    now + CASE WHEN n < {ROWS // 2} OR n >= {ROWS - 2000} THEN -60000 ELSE 3600000 + n END,
    now, now,
    CASE WHEN n >= {ROWS - IN_FLIGHT} THEN 'lease-' || n / 100 END
FROM (SELECT i * 7919::bigint % {ROWS} AS n FROM generate_series(1, {ROWS}) AS i) AS scrambled,
    (SELECT floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint AS now) AS clock
"""  # noqa: S608 - numbers of our own
# As many dead letters, in 5,000 failures of five queues.
FILL_LETTERS: Final = f"""
INSERT INTO delayed_queue_dead_letter (
    "pKind", "pKey", payload, attempts, reason, "scheduledAtInitially", "createdAt", "diedAt",
    fingerprint
)
SELECT
    CASE WHEN n < {ROWS // 2} THEN 'bulk|json' ELSE 'small-' || n % 4 || '|json' END,
    'key-' || n, convert_to(repeat('x', 100), 'UTF8'), 3, 'rejected', 0, 0, now - n * 10,
    CASE WHEN n < {ROWS // 2} THEN md5((n % 1000)::text) ELSE md5((n % 4000)::text) END::char(16)
FROM (SELECT i * 7919::bigint % {ROWS} AS n FROM generate_series(1, {ROWS}) AS i) AS scrambled,
    (SELECT floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint AS now) AS clock
"""  # noqa: S608
# A hundred live workers, nine hundred silent ones, and fifty paused queues.
FILL_WORKERS: Final = """
INSERT INTO delayed_queue_worker (
    name, host, pid, queues, version, "startedAt", "heartbeatAt", rates
)
SELECT
    'worker-' || n, 'host', n, '["small-1", "bulk"]', '1.0', now,
    CASE WHEN n <= 100 THEN now ELSE now - 60000 END, '{"bulk": 5}'
FROM generate_series(1, 1000) AS n,
    (SELECT floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint AS now) AS clock
"""
FILL_PAUSES: Final = """
INSERT INTO delayed_queue_limit ("pKind", "pausedAt", reason)
SELECT 'paused-' || n || '|json', 0, 'maintenance' FROM generate_series(1, 50) AS n
"""


# Each with members of its own or none.
FILL_BATCHES: Final = """
INSERT INTO delayed_queue_batch (
    "pKind", "createdAt", "waitsForDead", "thenKind", "thenKey", "thenPayload"
)
SELECT 'grouped|json', 0, false, 'reports|json', 'report-' || n, ''
FROM generate_series(1, 2000) AS n
"""
# One batch and one group of most of a queue, waiting and leased, and of as many dead letters.
FILL_GROUP: Final = """
INSERT INTO delayed_queue (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", "lockUuid",
    "group", "batchId"
)
SELECT 'grouped-' || n, 'grouped|json', '', n, n, 0, CASE WHEN n % 10 = 0 THEN 'lease-g' END,
    CASE WHEN n % 50 = 0 THEN 'other' ELSE 'customer' END, 7
FROM generate_series(1, 20000) AS n;
INSERT INTO delayed_queue_dead_letter (
    "pKind", "pKey", payload, attempts, reason, "scheduledAtInitially", "createdAt", "diedAt",
    "group"
)
SELECT 'grouped|json', 'grouped-' || n, '', 3, 'rejected', 0, 0, n, 'customer'
FROM generate_series(1, 20000) AS n
"""


# A week of two queues and of the marks of the minutes, with sixteen buckets each.
FILL_SAMPLES: Final = """
INSERT INTO delayed_queue_sample (
    "pKind", minute, due, scheduled, leased, dead, late, done, failed, versions, times
)
SELECT
    kind, extract(epoch FROM now())::bigint / 60 - minute, 10, 20, 30, 40, 50, 600, 7, '1.0',
    ARRAY(SELECT ((each % 2 * 32 + each) << 25) + 99 FROM generate_series(0, 15) AS each)
FROM unnest(ARRAY['', 'bulk|json', 'later|json']) AS kind, generate_series(1, 10080) AS minute
"""

INDEXES: Final = """
SELECT relid.relname, pg_get_indexdef(indexrelid)
FROM pg_index JOIN pg_class AS relid ON relid.oid = indexrelid
WHERE indrelid IN ('delayed_queue'::regclass, 'delayed_queue_dead_letter'::regclass)
    AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid)
"""


MESSAGES: Final = "/admin/delayed_queue/message/"
LETTERS: Final = "/admin/delayed_queue/deadletter/"
QUEUES: Final = "/admin/delayed_queue/queueoverview/"
FAILURES: Final = f"{LETTERS}failures/"
WORKERS: Final = "/admin/delayed_queue/worker/"
BATCHES: Final = "/admin/delayed_queue/storedbatch/"

# Each list, the index that serves it, and its maximum of rows read.
LISTS: Final = [
    (MESSAGES, PRIMARY, PAGE),
    (f"{MESSAGES}?after=100000", PRIMARY, PAGE),
    (f"{MESSAGES}?kind=bulk|json", DUE, PAGE),
    (f"{MESSAGES}?kind=bulk|json&state=due", DUE, PAGE),
    (f"{MESSAGES}?kind=later|json&state=due", DUE, PAGE),
    (f"{MESSAGES}?kind=later|json&state=scheduled", DUE, PAGE),
    (f"{MESSAGES}?kind=small-1|json&state=scheduled", DUE, PAGE),
    (f"{MESSAGES}?state=leased", LEASES, PAGE),
    # All leased messages of all queues; workers hold no more than they can handle. For the rest of
    # them, depending on ANALYZE's sample, the planner may choose a bitmap, which counts rows twice.
    (f"{MESSAGES}?state=leased&after=1.lease-1950", LEASES, 2 * IN_FLIGHT),
    (f"{MESSAGES}?state=expired", LEASES, IN_FLIGHT),
    (f"{MESSAGES}?state=leased&kind=small-1|json", LEASES, 3 * IN_FLIGHT),
    # A lease may have few enough messages for a bitmap, which counts twice.
    (f"{MESSAGES}?q=lease:lease-1950", LEASES, 2 * PAGE),
    (f"{MESSAGES}?q=batch:7", "message_of_batch", PAGE),
    (f"{MESSAGES}?q=key:key-4711", KEYS, 1),
    (f"{MESSAGES}?q=key:nothing", KEYS, 0),
    (f"{MESSAGES}?q=key:key-4711&kind=bulk|json&state=due", KEYS, 1),
    (LETTERS, DEAD_PRIMARY, PAGE),
    (f"{LETTERS}?after=100000", DEAD_PRIMARY, PAGE),
    (f"{LETTERS}?kind=bulk|json", DEAD_DIED, PAGE),
    (f"{LETTERS}?q=key:key-4711", DEAD_KEYS, 1),
    (f"{LETTERS}?q=key:nothing", DEAD_KEYS, 0),
]


@pytest.fixture(scope="module")
def filled(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Both tables filled and analyzed, in a transaction that is never committed.

    With ADMIN_ROWS it is committed, so that VACUUM can run as it does in production.
    """
    is_large = "ADMIN_ROWS" in os.environ
    whole = nullcontext() if is_large else transaction.atomic()
    with django_db_blocker.unblock(), whole:
        with connection.cursor() as cursor:
            cursor.execute(f"TRUNCATE {TABLES}")
            cursor.execute("SET jit = off")
            indexes = dropped_indexes(cursor)
            for fill in (
                FILL,
                FILL_LETTERS,
                FILL_WORKERS,
                FILL_PAUSES,
                FILL_SAMPLES,
                FILL_GROUP,
                FILL_BATCHES,
            ):
                cursor.execute(fill)
            for definition in indexes:
                cursor.execute(definition)
            cursor.execute(f"{'VACUUM' * is_large} ANALYZE {TABLES}")
        yield
        if is_large:
            connection.cursor().execute(f"TRUNCATE {TABLES}")
        else:
            transaction.set_rollback(True)


def dropped_indexes(cursor: Any) -> list[str]:
    """Drop what can be made again of the large tables' indexes; return the definitions."""
    cursor.execute(INDEXES)
    found = cursor.fetchall()
    for name, _ in found:
        cursor.execute(f'DROP INDEX "{name}"')
    return [definition for _, definition in found]


@pytest.fixture
def operator(filled: None, django_db_blocker: Any) -> Iterator[Client]:
    with django_db_blocker.unblock(), transaction.atomic():
        client = Client()
        client.force_login(get_user_model().objects.create_superuser("operator"))
        yield client
        transaction.set_rollback(True)


def statements(client: Client, url: str) -> list[str]:
    """Return the statements on the queue's tables that the page runs."""
    with CaptureQueriesContext(connection) as queries:
        assert client.get(url).status_code == 200
    found = [each["sql"].strip() for each in queries]
    tables = ("FROM delayed_queue", 'FROM "delayed_queue')
    return [each for each in found if any(table in each for table in tables)]


def explained(statement: str) -> Plan:
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) " + statement)
        return Plan(cursor.fetchone()[0][0]["Plan"])


@pytest.mark.parametrize(("url", "index", "rows"), LISTS)
def test_list_reads_its_index_and_little_of_it(operator, url, index, rows):  # W14
    kinds, page, *holders = statements(operator, url)

    assert explained(kinds).buffers <= 100
    # The list of messages reads the names of the workers that hold its leases.
    assert len(holders) == url.startswith(MESSAGES)
    assert all(explained(each).buffers <= 10 for each in holders)
    plan = explained(page)
    assert plan.scanned_whole() == [], plan
    assert index in plan.indexes, plan
    assert plan.rows_read() <= rows, plan
    assert plan.buffers <= rows + 10, plan


def test_the_command_lists_a_queue_by_its_index(operator: Client):
    with CaptureQueriesContext(connection) as queries:
        call_command("queuemessages", "list", "bulk|json", stdout=StringIO())
    (listed,) = [each["sql"] for each in queries if 'FROM "delayed_queue"' in each["sql"]]
    plan = explained(listed)
    assert plan.indexes == {DUE}, plan
    assert plan.rows_read() == 25, plan


def test_a_page_deep_in_one_millisecond_costs_no_more(operator: Client):
    """The row comparison is a position in the index; two conditions would read 50,000 rows."""
    middle = Message.objects.filter(kind="bulk|json").order_by("id")[ROWS // 4]
    cursor = f"{middle.id}.{to_milliseconds(middle.scheduled_at)}"

    plan = explained(statements(operator, f"{MESSAGES}?kind=bulk|json&after={cursor}")[1])

    assert plan.rows_read() == PAGE
    assert plan.buffers <= 20, plan


def test_queues_page_reads_no_further_than_its_caps(operator: Client):  # Q32
    found = statements(operator, QUEUES)
    small, kinds, letter_kinds = found[:3]
    (overview,) = (each for each in found if "held AS MATERIALIZED" in each)
    (throughput,) = (each for each in found if '"delayed_queue_worker"."rates"' in each)
    (estimates,) = (each for each in found if "TABLESAMPLE" in each)

    assert explained(small).rows_read() <= 51
    assert explained(estimates).buffers <= 3 * SAMPLED_PAGES
    assert explained(kinds).buffers <= 100
    assert explained(letter_kinds).buffers <= 100
    plan = explained(overview)
    assert plan.scanned_whole() == [], plan
    assert {DUE, LEASES, DEAD_DIED} <= plan.indexes, plan
    # The rows lie on pages all over the table, so that each of them costs a page.
    counting = (each for each in plan.nodes() if each.get("Index Name") in {DUE, DEAD_DIED})
    assert {each["Node Type"] for each in counting} == {"Index Only Scan"}, plan
    # Six with messages, fifty that are only paused, and those with a handler.
    queues, cap = 6, EXACT
    assert plan.rows_read() <= queues * 3 * cap + LEASE_CAP + queues, plan
    # A hundred, read and sorted.
    assert explained(throughput).rows_read() <= 200, throughput


def test_workers_pages_read_the_workers_and_their_leases(operator: Client):
    (page,) = statements(operator, WORKERS)
    assert explained(page).rows_read() <= PAGE
    worker = Worker.objects.order_by("id").first()
    assert worker is not None
    worker.holder = "0a1b2c3d"
    worker.save()
    Message.objects.filter(lease_id="lease-1950").update(lease_id="0a1b2c3d-1")

    row, held = statements(operator, f"{WORKERS}{worker.pk}/change/")
    assert explained(row).rows_read() <= 1
    plan = explained(held)
    assert plan.scanned_whole() == [], plan
    assert LEASES in plan.indexes, plan
    assert plan.rows_read() <= 2, plan

    for query in (f"q=lease:{worker.holder}", f"q=worker:{worker.name}"):
        *_, listed, _ = statements(operator, f"{MESSAGES}?{query}")
        plan = explained(listed)
        assert LEASES in plan.indexes, plan
        assert plan.rows_read() <= 2 * 20 * 100, plan


def test_b12_the_list_of_batches_reads_a_page_and_counts_members_by_their_index(operator: Client):
    listed, left = statements(operator, BATCHES)
    assert explained(listed).rows_read() <= PAGE
    plan = explained(left)
    assert plan.scanned_whole() == [], plan
    assert {"message_of_batch", "dead_letter_of_batch"} <= plan.indexes, plan


def test_kinds_are_found_by_one_descent_each(operator: Client):
    """The loose index scan: 100,000 messages of one kind cost as much as one."""
    kinds, *_ = statements(operator, MESSAGES)
    plan = explained(kinds)

    assert plan.indexes == {DUE}
    assert plan.rows_read() <= 8, plan


@pytest.mark.parametrize("url", [MESSAGES, LETTERS])
def test_detail_pages_read_one_row(operator: Client, url: str):
    model = Message if url == MESSAGES else DeadLetter
    row = model.objects.order_by("-id").first()
    assert row is not None

    for statement in statements(operator, f"{url}{row.pk}/change/"):
        plan = explained(statement)
        assert plan.scanned_whole() == [], plan
        assert plan.rows_read() <= 1, plan


# A search, the index of its page, and the maximum of rows that each of its statements reads.
SEARCHES: Final = [
    (f"{MESSAGES}?q=key-", KEYS, SCANNED),
    (f"{MESSAGES}?q=key-4711", KEYS, SCANNED),
    (f"{MESSAGES}?q=key-&kind=small-1|json&state=due", KEYS, SCANNED),
    (f"{MESSAGES}?q=key-&kind=nothing", KEYS, SCANNED),
    (f"{MESSAGES}?q=header:tenant=acme", PRIMARY, SCANNED),
    (f"{MESSAGES}?q=header:tenant=acme&kind=bulk|json", DUE, SCANNED),
    (f"{MESSAGES}?q=failure:timeout&kind=later|json&state=scheduled", DUE, SCANNED),
    # A page of its 17,640 waiting messages, and all 1,960 leased ones, in a bitmap.
    (f"{MESSAGES}?q=group:customer&kind=grouped|json", GROUPS, 4_000),
    (f"{MESSAGES}?q=group:customer&kind=grouped|json&state=due", GROUPS, 4_000),
    (f"{LETTERS}?q=key-", DEAD_KEYS, SCANNED),
    (f"{LETTERS}?q=key-&kind=small-1|json", DEAD_KEYS, SCANNED),
    (f"{LETTERS}?q=reason:exhausted", DEAD_PRIMARY, SCANNED),
    (f"{LETTERS}?q=worker:worker-7", DEAD_PRIMARY, SCANNED),
    (f"{LETTERS}?q=failure:timeout&kind=bulk|json", DEAD_DIED, SCANNED),
    (f"{LETTERS}?q=group:customer&kind=grouped|json", DEAD_OF_GROUP, PAGE),
]


@pytest.mark.parametrize(("url", "index", "rows"), SEARCHES)
def test_o23_a_search_is_bounded_however_much_it_covers(operator, url, index, rows):
    of_table = "delayed_queue_dead_letter" if url.startswith(LETTERS) else "delayed_queue"
    found = [each for each in statements(operator, url) if f'FROM "{of_table}"' in each]
    plans = [explained(each) for each in found]

    # There are few workers, so the planner may read all of their rows.
    whole = {name for plan in plans for name in plan.scanned_whole()}
    assert whole <= {"delayed_queue_worker"}, plans
    assert any(index in plan.indexes for plan in plans), plans
    assert all(plan.rows_read() <= rows + PAGE for plan in plans), plans


HISTORIES: Final = [f"{QUEUES}history/?kind=bulk|json&range={each}" for each in ("1h", "7d")]
PAGES: Final = [
    *(url for url, _, _ in LISTS),
    f"{MESSAGES}?_facets=True&all=&o=1.-2&p=2",
    QUEUES,
    *HISTORIES,
    FAILURES,
    f"{FAILURES}?kind=bulk|json",
    WORKERS,
    f"{WORKERS}?state=alive",
    f"{QUEUES}history/?kind=grouped|json",
    "/admin/delayed_queue/schedule/",
    "/admin/delayed_queue/bulkrun/",
    BATCHES,
    "/admin/delayed_queue_tasks/taskresult/",
]


@pytest.mark.parametrize("url", PAGES)
def test_a_page_runs_as_many_statements_full_as_empty(operator: Client, url: str):  # W14
    full = len(statements(operator, url))
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(f"TRUNCATE {TABLES}")
        empty = len(statements(operator, url))
        transaction.set_rollback(True)

    assert full == empty <= 12


# A busy machine is slow: in daily runs the rows and pages that a plan reads are the limit.
if "ADMIN_ROWS" in os.environ:

    @pytest.mark.parametrize("url", [*PAGES, *(url for url, _, _ in SEARCHES)])
    def test_a_page_is_there_at_once(operator: Client, url: str):  # W14
        server, python = min((milliseconds_for(operator, url) for _ in range(5)), key=sum)
        print(f"{server:6.1f} ms and {python:6.1f} ms  {url}")  # noqa: T201 - the aim of ADMIN_ROWS
        assert server + python < LIMIT


def milliseconds_for(client: Client, url: str) -> tuple[float, float]:
    """Return the time in the database, and the processor time of Python."""
    started = time.process_time()
    with CaptureQueriesContext(connection) as queries:
        assert client.get(url).status_code == 200
    spent = time.process_time() - started
    return 1000 * sum(float(each["time"]) for each in queries), 1000 * spent
