"""Arrays as they are written past psycopg: what comes back is what was given."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.db import DataError, connection

from delayed_queue.db.statements import fetch

pytestmark = pytest.mark.django_db
ONE, TWO = uuid.UUID(int=1), uuid.UUID(int=2**128 - 1)


@pytest.mark.parametrize(
    ("kind", "items"),
    [
        ("text", ["a", "", "ä€😀", 'quo"te', "back\\slash", "{}", "NULL", " "]),
        ("text", ["a", None, "b"]),
        ("text", [None, None]),
        ("text", []),
        ("bytea", [b"", b"\0\xff", None]),
        ("bigint", [0, -1, 2**63 - 1, -(2**63), None]),
        ("integer", [0, -1, 2**31 - 1, -(2**31)]),
        ("boolean", [True, False, None]),
        ("uuid", [ONE, None, TWO]),
        ("bigint", [1]),
    ],
)
@pytest.mark.parametrize("sign", ["b", "s"])
def test_what_is_given_comes_back(kind: str, items: list[Any], sign: str) -> None:
    statement = f"SELECT %(items){sign}::{kind}[], cardinality(%(items){sign}::{kind}[])"
    assert fetch("default", statement, {"items": items}) == [(items, len(items))]


def test_json_comes_back_as_values() -> None:
    given = {"items": ['{"a": "\u00e4"}', None, "1"]}
    rows = fetch("default", "SELECT unnest(%(items)s::jsonb[])::text", given)
    assert rows == [('{"a": "ä"}',), (None,), ("1",)]


@pytest.mark.parametrize(
    ("kind", "items"),
    [("bigint", None), ("uuid", [str(ONE)]), ("text", [["a"], ["b"]])],
)
def test_what_else_is_given_is_left_to_psycopg(kind: str, items: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT %(items)s::{kind}[]::text", {"items": items})
        expected = cursor.fetchall()
    assert fetch("default", f"SELECT %(items)s::{kind}[]::text", {"items": items}) == expected


@pytest.mark.parametrize(("kind", "number"), [("bigint", 2**63), ("integer", -(2**31) - 1)])
def test_too_large_a_number_is_refused_by_the_server(kind: str, number: int) -> None:
    with pytest.raises(DataError, match="out of range"):
        fetch("default", f"SELECT %(items)b::{kind}[]", {"items": [1, number]})


def test_a_name_that_is_an_array_and_none_has_two_places() -> None:
    statement = "SELECT %(x)s::text[] = ARRAY['a'], %(x)s::varchar[] = ARRAY['a'::varchar], 5 %% 3"
    assert fetch("default", statement, {"x": ["a"]}) == [(True, True, 2)]
