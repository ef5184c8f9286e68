"""The SQL functions as the migration creates them: schemas, rights, tricks (S4)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any, Final
from uuid import uuid4

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection

from delayed_queue import DelayedQueue, Groups
from tests.support.concurrency import raw_connection
from tests.support.documents import DOCS, blocks
from tests.support.functions import FILE

PAGE: Final = DOCS / "guides/other-languages.md"
DEFINERS: Final = {"offer", "offer_many", "drop", "read"}
FUNCTIONS: Final = """
SELECT proname, prosecdef, proconfig, has_function_privilege('public', oid, 'EXECUTE')
FROM pg_proc
WHERE pronamespace = 'public'::regnamespace AND proname LIKE 'delayed\\_queue\\_%'
"""
# Each object would replace one that the functions use, and reports by which role it was called.
TRICKS: Final = """
CREATE SCHEMA evil AUTHORIZATION {role};
SET ROLE {role};
CREATE TEMP TABLE delayed_queue ("pKey" text, "pKind" text, payload bytea);
CREATE FUNCTION evil.refuse(text, text) RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN RAISE 'called as %', current_user; END $$;
CREATE OPERATOR evil.= (leftarg = text, rightarg = text, function = evil.refuse);
CREATE FUNCTION evil.length(text) RETURNS integer LANGUAGE plpgsql AS $$
    BEGIN RAISE 'called as %', current_user; END $$;
CREATE FUNCTION evil.jsonb_typeof(jsonb) RETURNS text LANGUAGE plpgsql AS $$
    BEGIN RAISE 'called as %', current_user; END $$;
CREATE FUNCTION evil.delayed_queue_put(
    bigint, text, text, jsonb, timestamptz, interval, boolean, jsonb, text, timestamptz, bigint,
    bytea
) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'called as %', current_user; END $$;
CREATE FUNCTION pg_temp.md5(text) RETURNS text LANGUAGE plpgsql AS $$
    BEGIN RAISE 'called as %', current_user; END $$;
CREATE FUNCTION pg_temp.delayed_queue_kind(text, text) RETURNS text LANGUAGE plpgsql AS $$
    BEGIN RAISE 'called as %', current_user; END $$;
SET search_path = pg_temp, evil, public, pg_catalog;
"""

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def role_of(name: str) -> Iterator[tuple[psycopg.Connection[Any], str]]:
    """A connection as the role of the guide, with the rights that it lists."""
    role = f"{name}_{uuid4().hex[:8]}"
    grants = [each.text for each in blocks(PAGE, "sql") if f"CREATE ROLE {name} " in each.text]
    with raw_connection() as admin, raw_connection() as own:
        admin.execute(re.sub(rf"\b{name}\b", role, grants[0]))
        try:
            own.execute(f"SET ROLE {role}")
            yield own, role
        finally:
            own.execute("RESET ROLE; DISCARD TEMP")
            admin.execute("DROP SCHEMA IF EXISTS evil CASCADE")
            admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def refuses(own: psycopg.Connection[Any], statement: str) -> bool:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        own.execute(statement)
    return True


def test_s4_public_may_call_none_and_each_has_a_fixed_search_path():
    with connection.cursor() as cursor:
        cursor.execute(FUNCTIONS)
        found = cursor.fetchall()
    assert len(found) == len(set(re.findall(r"FUNCTION public\.(\w+)", FILE.read_text())))
    assert {name for name, *_, is_public in found if is_public} == set()
    definers = {name for name, is_definer, *_ in found if is_definer}
    assert definers == {f"delayed_queue_{each}" for each in DEFINERS}
    paths = {next(iter(config)) for _, _, config, _ in found}
    assert paths == {"search_path=pg_catalog, pg_temp"}


def test_s4_a_role_that_may_offer_can_do_nothing_else():
    with role_of("shop") as (own, _):
        row = own.execute("SELECT delayed_queue_offer('orders', 'k', '1')").fetchone()
        assert row == ("created",)
        own.execute('SELECT delayed_queue_offer_many(\'orders\', \'[{"key": "b", "payload": 1}]\')')
        for statement in (
            "SELECT delayed_queue_drop('orders', 'k')", "SELECT delayed_queue_read('orders', 'k')",
            "SELECT delayed_queue_claim('orders')", "SELECT delayed_queue_acknowledge('x')",
            "SELECT delayed_queue_put(1, 'a', 'b', '1', NULL, NULL, true, NULL, NULL, NULL, NULL)",
            "SELECT * FROM delayed_queue", "DELETE FROM delayed_queue",
            "SELECT nextval('delayed_queue_id_seq')",
        ):  # fmt: skip
            assert refuses(own, statement)
    assert DelayedQueue("orders").contains_message("k")


def test_s4_objects_of_the_caller_replace_nothing():
    with role_of("shop") as (own, role):
        own.execute("RESET ROLE")
        own.execute(TRICKS.format(role=role))
        row = own.execute(
            "SELECT public.delayed_queue_offer('orders', 'k', '{\"a\": [{}]}', \"group\" => 'g')"
        ).fetchone()
        assert row == ("created",)
        own.execute("SELECT public.delayed_queue_offer_many('orders', '[]')")
        row = own.execute("SELECT count(*) FROM pg_temp.delayed_queue").fetchone()
        assert row == (0,)
    assert DelayedQueue("orders").contains_message("k")


def test_s4_the_rights_of_the_guide_suffice_for_a_consumer():
    queue, limited = DelayedQueue("orders"), DelayedQueue("limited")
    limited.groups.set(Groups(concurrency=1, rate="10/s", burst=10))
    for each in (queue, limited):
        for key in "abcd":
            each.offer_or_update(key, 1, group="g")
    with role_of("consumer") as (own, _):
        for name in ("orders", "limited"):
            for settle in ("release", "extend", "reject", "acknowledge"):
                (row,) = own.execute("SELECT id, lease_id FROM delayed_queue_claim(%s)", [name])
                own.execute(
                    f"SELECT delayed_queue_{settle}(%s, ids => ARRAY[%s::bigint])", [row[1], row[0]]
                )
                own.execute("SELECT delayed_queue_acknowledge(%s)", [row[1]])
        assert refuses(own, "SELECT delayed_queue_offer('orders', 'k', '1')")


def test_s4_sqlmigrate_shows_plain_sql():
    out = StringIO()
    call_command("sqlmigrate", "delayed_queue", "0001", stdout=out)
    text = out.getvalue()
    assert FILE.read_text().strip() in text
    assert "REVOKE ALL ON FUNCTION public.delayed_queue_kind, public." in text


@pytest.mark.parametrize("schema", ["tenant", "Two words", "o'brien", 'a"b'])
def test_s4_the_functions_use_the_tables_of_their_schema(schema: str):
    """The search path of the caller changes nothing; a migration back drops them."""
    quoted = '"' + schema.replace('"', '""') + '"'
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE SCHEMA {quoted}; SET search_path = {quoted}")
        try:
            call_command("migrate", "delayed_queue", verbosity=0)
            cursor.execute("SET search_path = public")
            cursor.execute(f"SELECT {quoted}.delayed_queue_offer('tenants', 'k', '1')")
            cursor.execute(f"SELECT key FROM {quoted}.delayed_queue_claim('tenants')")  # noqa: S608
            assert cursor.fetchall() == [("k",)]
            assert not DelayedQueue("tenants").contains_message("k")
            cursor.execute(f"SET search_path = {quoted}")
            call_command("migrate", "delayed_queue", "zero", verbosity=0)
            cursor.execute(
                "SELECT count(*) FROM pg_proc WHERE pronamespace = %s::regnamespace", [quoted]
            )
            assert cursor.fetchone() == (0,)
        finally:
            cursor.execute(f"SET search_path = public; DROP SCHEMA {quoted} CASCADE")
