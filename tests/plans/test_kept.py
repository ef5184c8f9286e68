"""Kept plans of job statements: planned on empty tables, and used on full ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import psycopg
import pytest
from django.db import connection, transaction
from psycopg import sql as composed

from delayed_queue.db.sql import NOTIFY
from delayed_queue.http.jobs.adding import add_job, delete_job
from delayed_queue.http.jobs.catalogue import configure_topic, forget_topics
from delayed_queue.http.jobs.jobs import IfExists
from delayed_queue.http.jobs.requests import job_from
from delayed_queue.http.store.adding import ADD_JOBS, KEEP_PLANS
from tests.plans.case import DEAD_KEYS, KEYS, TOPICS
from tests.plans.explain import numbered, planned_by
from tests.plans.http_cases import adding
from tests.plans.test_prepared import OFTEN, executions
from tests.support.statements import sql

pytestmark = pytest.mark.django_db(transaction=True)

ROWS: Final = 20_000
TABLES: Final = ("delayed_queue", "delayed_queue_dead_letter", "delayed_queue_topic")
# Every statement behind KEEP_PLANS, and its allowed indexes.
KEPT: Final[dict[str, tuple[dict[str, Any], set[str]]]] = {
    "LOCK_JOBS": ({"topic": "bulk", "keys": ["1", "2"]}, set()),
    "ADD_JOBS": (adding(3), {TOPICS, KEYS, DEAD_KEYS}),
}  # fmt: skip

FILL: Final = (
    """
    INSERT INTO delayed_queue
        ("pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt")
    SELECT 'key-' || n, 'bulk|json', 'x', n, n, n
    FROM generate_series(%(first)s::int, %(last)s::int) AS n
    """,
    """
    INSERT INTO delayed_queue_dead_letter
        ("pKind", "pKey", payload, attempts, reason, "scheduledAtInitially", "createdAt", "diedAt")
    SELECT 'bulk|json', 'key-' || n, 'x', 3, 'r', 0, 0, n
    FROM generate_series(%(first)s::int, %(last)s::int) AS n
    """,
    """
    INSERT INTO delayed_queue_topic (name, shards, "createdAt")
    SELECT 'topic-' || n, 1, 0
    FROM generate_series(%(first)s::int, %(last)s::int) AS n
    """,
)


@pytest.fixture
def raw(transactional_db: None) -> Iterator[psycopg.Connection[Any]]:
    """A new connection without prepared statements."""
    forget_topics()
    connection.close()
    connection.ensure_connection()
    yield connection.connection
    connection.close()
    forget_topics()


def settings_of(raw: psycopg.Connection[Any]) -> dict[str, str]:
    names = ("enable_seqscan", "jit", "lock_timeout", "plan_cache_mode")
    return {name: raw.execute(f"SHOW {name}").fetchall()[0][0] for name in names}


def add(job_id: str, if_exists: str = "fail", **fields: Any) -> str | None:
    job = job_from({"jobId": job_id, "topic": "orders", **fields})
    return add_job(job, if_exists=IfExists(if_exists)).outcome


@pytest.mark.parametrize("state", ["never looked at", "vacuumed", "analyzed when small"])
@pytest.mark.parametrize("name", KEPT)
def test_a_plan_made_on_empty_tables_reads_the_indexes_of_full_ones(raw, name, state):
    """Without an ANALYZE in between, which would make PostgreSQL plan again."""
    params, indexes = KEPT[name]
    prepare, arguments = numbered(getattr(sql, name), params)
    with raw.transaction(force_rollback=True):
        raw.execute(f"TRUNCATE {', '.join(TABLES)} CASCADE")
        if state == "analyzed when small":
            for fill in FILL:
                raw.execute(fill, {"first": -9, "last": 0})
            raw.execute(f"ANALYZE {', '.join(TABLES)}")
        if state == "vacuumed":  # as VACUUM leaves it; no transaction can run that
            raw.execute(
                "UPDATE pg_class SET reltuples = 0, relpages = 0 WHERE oid = ANY (%s::regclass[])",
                [list(TABLES)],
            )
        raw.execute(KEEP_PLANS, {"timeout": None})
        raw.execute("PREPARE kept AS " + prepare)
        with raw.transaction(force_rollback=True):
            raw.execute(composed.SQL("EXECUTE kept") + arguments)
        for fill in FILL:
            raw.execute(fill, {"first": 1, "last": ROWS})
        plan = planned_by(raw, composed.SQL("EXECUTE kept") + arguments)
        raw.execute("DEALLOCATE kept")

    assert plan.indexes <= indexes, plan
    assert not plan.scanned_whole(), plan
    assert plan.rows_read() <= 50, plan
    assert plan.buffers <= 200, plan


def test_all_that_is_kept_is_tried_above(raw: psycopg.Connection[Any]):
    """PostgreSQL counts each prepared statement's runs on a kept plan."""
    configure_topic("orders", shards=3)
    for turn in range(OFTEN):
        add(f"{turn}")
        add(f"{turn}", "update", body=turn)
        delete_job("orders", f"{turn}")
    found = raw.execute(
        "SELECT statement FROM pg_prepared_statements"
        " WHERE generic_plans > 0 AND strpos(statement, '$1') > 0"
    )
    kept = {row[0] for row in found}
    known = {numbered(getattr(sql, name), params)[0] for name, (params, _) in KEPT.items()}
    known |= {numbered(NOTIFY, {"channel": ""})[0], numbered(KEEP_PLANS, {"timeout": None})[0]}
    assert {shape(each) for each in kept} <= {shape(each) for each in known}
    assert shape(numbered(ADD_JOBS, adding(1))[0]) in {shape(each) for each in kept}


def shape(statement: str) -> str:
    """Return the letters of the statement, without its numbered parameters."""
    return "".join(each for each in statement if each.isalpha())


def test_adding_jobs_keeps_its_plans_and_nothing_else_in_the_session(raw):
    add("first")
    before = settings_of(raw)
    for number in range(OFTEN):
        assert add(f"k{number}") == "created"
    assert settings_of(raw) == before
    assert before["plan_cache_mode"] == "auto"
    (kept,) = executions(raw, "INSERT INTO delayed_queue AS stored")
    assert kept == (OFTEN + 1, 0)


def test_a_callers_transaction_is_left_as_it_is(raw: psycopg.Connection[Any]):
    add("first")
    with transaction.atomic():
        before = settings_of(raw)
        assert add("second") == "created"
        assert delete_job("orders", "second")
        assert settings_of(raw) == before
    assert before["enable_seqscan"] == "on"


@pytest.mark.parametrize("name", ["pKey", "headers"])
def test_a_kept_plan_survives_a_column_of_another_type(raw, other, name):
    """PostgreSQL raises an error for a kept plan whose result type has changed."""
    change, back = {
        "pKey": ('ALTER "pKey" TYPE varchar(220)', 'ALTER "pKey" TYPE varchar(200)'),
        "headers": ("ADD COLUMN later int DEFAULT 1", "DROP COLUMN later"),
    }[name]
    for number in range(OFTEN):
        add(f"before-{number}")
    other.execute(f"ALTER TABLE delayed_queue {change}")
    try:
        assert add("after") == "created"
        assert add("after", "update", body=1) == "updated"
        assert add("after") is None
        assert delete_job("orders", "after")
    finally:
        other.execute(f"ALTER TABLE delayed_queue {back}")
        connection.close()
